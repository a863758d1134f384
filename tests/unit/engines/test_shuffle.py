"""`--shuffle` against its slow twin: every format, every rule of splits, limits, odd documents."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shuffled
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.inputs import segments

SEED = 5


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen ranges, and several units of each file."""
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "30000")
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 15)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Several kinds, a file twice, empty documents, many equal ones."""
    folder = tmp_path_factory.mktemp("shuffled")
    texts = [text[:900] for text in sample_texts()]
    some = [
        write_parquet(folder / "a.parquet", texts[:120], rows=25),
        write_jsonl(folder / "b.jsonl", texts[100:160]),
        write_jsonl(folder / "b-again.jsonl", texts[100:160]),
        write_jsonl(folder / "c.jsonl.gz", [""] * 40 + ["the same"] * 200),
    ]
    return {path.name: path for path in some}


def prepare(files: dict[str, Path], output: Path, **options: Any) -> Any:
    options = {"shuffle": True, "seed": SEED, "workers": 0, **options}
    return tokenmill.prepare(list(files.values()), output, **options).manifest


def flat(documents: list[shuffled.Document]) -> list[int]:
    return list(itertools.chain.from_iterable(one.ids for one in documents))


def check(
    output: Path,
    files: dict[str, Path],
    manifest: Any,
    expected: dict[str, list[shuffled.Document]],
) -> None:
    """Tokens and origins of every split, in every format; and the index both ways."""
    names = [str(source["name"]) for source in manifest.sources]
    formats = dict.fromkeys(split.format for split in manifest.splits)
    for fmt in formats:
        opened = tokenmill.open_dataset(output, format=fmt)
        for split, wanted in expected.items():
            assert list(opened[split].tokens) == flat(wanted), (fmt, split)
            origins = [(names[one.source], one.row) for one in wanted]
            view = opened[split].documents
            assert [view.source(index) for index in range(len(view))] == origins
    assert tokenmill.verify(output).ok
    for stream in {split.stream for split in manifest.splits}:
        if not (output / f"index/{stream}.runs").exists():
            continue
        runs = np.fromfile(output / f"index/{stream}.runs", "<u8").reshape(-1, 3)
        rows = np.fromfile(output / f"index/{stream}.rows", "<u8")
        assert runs[:, 0].tolist() == list(range(len(runs)))
        by_row = [(s, r) for _, s, r in runs[rows].tolist()]
        assert by_row == sorted(by_row)
        assert len(set(by_row)) == len(runs)


@pytest.mark.parametrize(
    "fmt", ["nanogpt", "llmc", "megatron", "datatrove", "mds", "litdata", "hf", "parquet"]
)
def test_every_format_has_the_order_of_the_twin(
    files: dict[str, Path], tmp_path: Path, fmt: str
) -> None:
    manifest = prepare(files, tmp_path / "o", format=fmt, val=0.1, eot="append")
    everything = shuffled.documents(files, manifest, SEED)
    bound = int(0.1 * 2**64)
    val = [one for one in everything if one.hold_out < bound]
    train = [one for one in everything if one.hold_out >= bound]
    assert len(val) > 20
    check(tmp_path / "o", files, manifest, {"train": train, "val": val})


def test_several_formats_and_an_export_have_the_same_order(
    files: dict[str, Path], tmp_path: Path
) -> None:
    manifest = prepare(files, tmp_path / "o", format=["nanogpt", "hf"], val="docs:30", eot="append")
    everything = shuffled.documents(files, manifest, SEED)
    expected = {"val": everything[:30], "train": everything[30:]}
    check(tmp_path / "o", files, manifest, expected)
    exported = tokenmill.export(tmp_path / "o", tmp_path / "e", format="megatron", eot="append")
    check(tmp_path / "e", files, exported.manifest, expected)


def test_docs(files: dict[str, Path], tmp_path: Path) -> None:
    manifest = prepare(files, tmp_path / "o", val="docs:77")
    everything = shuffled.documents(files, manifest, SEED)
    check(tmp_path / "o", files, manifest, {"val": everything[:77], "train": everything[77:]})


def test_tokens(files: dict[str, Path], tmp_path: Path) -> None:
    manifest = prepare(files, tmp_path / "o", val="tokens:5000")
    everything = shuffled.documents(files, manifest, SEED)
    ends = np.cumsum([len(one.ids) for one in everything])
    count = int(np.searchsorted(ends, 5000)) + 1
    check(tmp_path / "o", files, manifest, {"val": everything[:count], "train": everything[count:]})


def test_shard_and_tail_cut_the_shuffled_stream(files: dict[str, Path], tmp_path: Path) -> None:
    manifest = prepare(files, tmp_path / "s", format="llmc", shard_tokens=7000, name="x")
    stream = flat(shuffled.documents(files, manifest, SEED, "prepend"))
    opened = tokenmill.open_dataset(tmp_path / "s")
    assert list(opened["val"].tokens) == stream[:7000]
    assert list(opened["train"].tokens) == stream[7000:]
    prepare(files, tmp_path / "t", val="tail:0.25")
    stream = flat(shuffled.documents(files, manifest, SEED))
    opened, cut = tokenmill.open_dataset(tmp_path / "t"), int(len(stream) * 0.75)
    assert list(opened["train"].tokens) == stream[:cut]
    assert list(opened["val"].tokens) == stream[cut:]


def test_val_inputs_are_shuffled_among_themselves(files: dict[str, Path], tmp_path: Path) -> None:
    train = {name: path for name, path in files.items() if name != "b.jsonl"}
    manifest = prepare(train, tmp_path / "o", val_inputs=[str(files["b.jsonl"])])
    everything = shuffled.documents(files, manifest, SEED)
    names = [one["name"] for one in manifest.sources]
    val = [one for one in everything if names[one.source] == "b.jsonl"]
    rest = [one for one in everything if names[one.source] != "b.jsonl"]
    check(tmp_path / "o", files, manifest, {"train": rest, "val": val})


@pytest.mark.parametrize("val", ["none", 0.2])
def test_limits_take_the_beginning_of_the_shuffled_stream(
    files: dict[str, Path], tmp_path: Path, val: str | float
) -> None:
    manifest = prepare(files, tmp_path / "d", limit_docs=101, val=val)
    everything = shuffled.documents(files, manifest, SEED)
    chosen = everything[:101]
    bound = int(0.2 * 2**64) if val == 0.2 else 0

    def splits(documents: list[shuffled.Document]) -> dict[str, list[shuffled.Document]]:
        parts = {"train": [one for one in documents if one.hold_out >= bound]}
        return parts | (
            {"val": [one for one in documents if one.hold_out < bound]} if bound else {}
        )

    check(tmp_path / "d", files, manifest, splits(chosen))
    counts = manifest.counts
    assert (counts["rows"], counts["documents"]) == (len(everything), 101)
    assert counts["not_chosen"] == len(everything) - 101
    assert counts["tokens"] == len(flat(chosen))
    for number, source in enumerate(manifest.sources):
        mine = [one for one in chosen if one.source == number]
        assert (source["documents"], source["tokens"]) == (len(mine), len(flat(mine)))
        assert source["rows"] == source["documents"] + source.get("not_chosen", 0)
    manifest = prepare(files, tmp_path / "t", limit_tokens=9000, val=val)
    starts = np.cumsum([len(one.ids) for one in everything])
    count = int(np.searchsorted(starts, 9000)) + 1
    check(tmp_path / "t", files, manifest, splits(everything[:count]))


def test_pieces_of_giant_documents_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document over several units, and longer than several ranges; others around it."""
    from tokenmill.inputs.readers import fragments, text

    words = [text for text in sample_texts() if len(text) > 500]
    giant = " ".join(words[:60])
    for module in (segments, text, fragments):
        for name, size in (("BATCH_BYTES", 1 << 12), ("TEXT_WINDOW", 1 << 12)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(fragments, "LONG_BYTES", 1 << 13)
    monkeypatch.setattr(segments, "UNIT_BYTES", 1 << 14)
    monkeypatch.setattr("tokenmill.engines.unit.UNIT_BYTES", 1 << 14)
    monkeypatch.setattr("tokenmill.engines.unit.BATCH_BYTES", 1 << 12)
    files = {
        "a.jsonl": write_jsonl(tmp_path / "a.jsonl", [*words[:9], giant, *words[9:20]]),
        "b.parquet": write_parquet(tmp_path / "b.parquet", [giant, "small", giant[::-1]]),
        "c.txt": tmp_path / "c.txt",
    }
    files["c.txt"].write_text(giant)
    expected = {}
    del files["c.txt"]  # the twin does not read texts
    for val in ("docs:11", 0.4, "none"):
        manifest = prepare(files, tmp_path / str(val), val=val)
        assert manifest.counts["documents"] == 24
        everything = shuffled.documents(files, manifest, SEED)
        if val == 0.4:
            bound = int(0.4 * 2**64)
            expected = {
                "val": [one for one in everything if one.hold_out < bound],
                "train": [one for one in everything if one.hold_out >= bound],
            }
        elif val == "none":
            expected = {"train": everything}
        else:
            expected = {"val": everything[:11], "train": everything[11:]}
        check(tmp_path / str(val), files, manifest, expected)
    manifest = prepare(files, tmp_path / "l", val="none", limit_docs=13)
    check(tmp_path / "l", files, manifest, {"train": everything[:13]})


def test_groups_of_units_are_merged_first(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = prepare(files, tmp_path / "o", val=0.1)
    monkeypatch.setenv("TOKENMILL_MAX_RUNS", "2")
    merged = prepare(files, tmp_path / "m", val=0.1)
    for name in ("train.bin", "val.bin", "index/train.runs", "index/train.rows"):
        assert (tmp_path / "o" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    assert plain.counts == merged.counts


def test_the_order_of_the_inputs_changes_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    wanted = prepare(files, tmp_path / "o")
    names = list(files)
    random.Random(1).shuffle(names)
    manifest = prepare({name: files[name] for name in names}, tmp_path / "p")
    assert manifest == wanted
    assert (tmp_path / "o/train.bin").read_bytes() == (tmp_path / "p/train.bin").read_bytes()


def test_another_source_leaves_the_relative_order(files: dict[str, Path], tmp_path: Path) -> None:
    few = {name: files[name] for name in ("a.parquet", "b.jsonl")}
    prepare(few, tmp_path / "o", val="none")
    prepare(files, tmp_path / "p", val="none")
    before = shuffled.origins(tmp_path / "o", "train")
    after = [one for one in shuffled.origins(tmp_path / "p", "train") if one[0] in few]
    # b-again.jsonl has the same content and comes first by name: b.jsonl has other keys now
    assert [one for one in after if one[0] == "a.parquet"] == [
        one for one in before if one[0] == "a.parquet"
    ]


def test_a_shuffle_is_part_of_the_plan(files: dict[str, Path], tmp_path: Path) -> None:
    shuffled_plan = prepare(files, tmp_path / "o").plan
    plain_plan = prepare(files, tmp_path / "p", shuffle=False).plan
    assert shuffled_plan["settings"]["shuffle"] is True
    assert "shuffle" not in plain_plan["settings"]
    with pytest.raises(tokenmill.errors.RefusedError, match="shuffle: True -> not set"):
        prepare(files, tmp_path / "o", shuffle=False)


def test_only_empty_documents(tmp_path: Path) -> None:
    files = {"e.jsonl": write_jsonl(tmp_path / "e.jsonl", [""] * 1000)}
    manifest = prepare(files, tmp_path / "o", val="docs:10")
    everything = shuffled.documents(files, manifest, SEED)
    check(tmp_path / "o", files, manifest, {"val": everything[:10], "train": everything[10:]})
    assert everything != sorted(everything, key=lambda one: one.row)


def test_plan_counts_the_disk_and_says_that_all_rows_are_read(
    files: dict[str, Path], tmp_path: Path
) -> None:
    inputs = [str(path) for path in files.values()]
    plain = tokenmill.plan(inputs, tmp_path / "o", quiet=True)
    report = tokenmill.plan(inputs, tmp_path / "o", shuffle=True, quiet=True)
    assert report.estimate.disk_bytes > plain.estimate.disk_bytes + report.tokens * 2
    few = tokenmill.plan(inputs, tmp_path / "o", shuffle=True, limit_docs=5, quiet=True)
    assert any("all rows are read" in line for line in few.warnings)
    assert few.estimate.documents == 5
    assert few.estimate.disk_bytes > report.tokens * 2
