"""`export --shuffle`: a new order of documents, against a slow twin that sorts them in memory."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shuffled as twin
from support.cases import quick
from support.deep import reseal
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from reliability.memory_store import MemoryStore
from tokenmill.dataset.streams import open_streams
from tokenmill.errors import UsageError
from tokenmill.tokens.order import export_keys, export_numbers
from tokenmill.tokens.splits import mix, unmix

EXPORT = 3  # the domain of docs/order.md
SEED = 5
RULES: dict[str, dict[str, Any]] = {
    "fraction": {"val": 0.2, "format": "llmc", "shard_tokens": "5k"},
    "docs": {"val": "docs:7"},
    "tokens": {"val": "tokens:900"},
    "shard": {"val": "shard", "format": "llmc", "shard_tokens": "5k"},
    "shard-document": {"val": "shard", "format": "llmc", "shard_tokens": "5k", "cut": "document"},
    "tail": {"val": "tail:0.3"},
    "none": {"val": "none", "eot": "none"},
    "framed": {"val": 0.1, "format": "parquet"},
    "shuffled": {"val": 0.2, "shuffle": True, "seed": 3},
    "limited": {"val": "docs:9", "shuffle": True, "limit_docs": 70},
}


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "15000")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Also empty documents, equal documents, and one that is longer than a range."""
    folder = tmp_path_factory.mktemp("reshuffled")
    texts = [text[:600] for text in sample_texts()]
    a = write_parquet(folder / "a.parquet", [*texts[:60], "", "", "same", "same"], rows=20)
    b = write_jsonl(folder / "b.jsonl", ["", *texts[60:110], "long " * 15000, "same", ""])
    return [a, b]


@pytest.fixture(
    scope="module", params=quick(RULES, "fraction", "tail", "framed", "limited"), ids=str
)
def made(
    request: pytest.FixtureRequest, files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    output = tmp_path_factory.mktemp("made") / request.param
    options = {"format": "nanogpt", **RULES[request.param]}
    tokenmill.prepare(files, output, workers=0, quiet=True, **options)
    return output


def shuffled(source: Any, output: Path, **options: Any) -> Path:
    options = {"format": "llmc", "shard_tokens": "4k", "seed": SEED, "name": "x", **options}
    tokenmill.export(source, output, shuffle=True, workers=0, quiet=True, **options)
    return output


Documents = list[tuple[tuple[str, int], list[int]]]


def documents(folder: Path) -> dict[str, Documents]:
    """Of each split: source, row and ids of every document, without separators."""
    dataset = tokenmill.open_dataset(folder)
    eot = dataset.settings.eot_id
    found: dict[str, Documents] = {}
    for name, split in dataset.items():
        view = split.documents
        origins = [view.source(number) for number in range(len(view))]
        ids = [[id for id in np.asarray(one).tolist() if id != eot] for one in view]
        found[name] = list(zip(origins, ids, strict=True))
    return found


def by_the_twin(folder: Path, checksum: str) -> dict[str, Documents]:
    """Every split sorted by its own; the document at a border of two splits stays there."""
    manifest = tokenmill.open_dataset(folder).manifest
    everything = documents(folder)
    in_turn = sorted(manifest.splits, key=lambda one: one.first_token)
    found = {split.name: everything[split.name] for split in in_turn if split.name in everything}
    streams = {split.name: split.stream for split in manifest.splits}
    number = dict.fromkeys(streams.values(), 0)
    names = list(dict.fromkeys(streams.values()))
    last_of = {stream: [name for name in found if streams[name] == stream][-1] for stream in names}
    by_tokens = manifest.settings.val.kind in ("tokens", "shard", "tail")
    result: dict[str, Documents] = {}
    cut = False
    for name, mine in found.items():
        stream = streams[name]
        numbered = []
        for document in mine:
            numbered.append((number[stream], document))
            number[stream] += 1
        border = by_tokens and name != last_of[stream]
        stays_first = cut
        cut = False
        if border:
            follower = found[last_of[stream]]
            cut = follower[0][0] == mine[-1][0]  # one document in both splits
            number[stream] -= cut
        head = numbered[:1] if stays_first else []
        tail = numbered[-1:] if border else []
        middle = numbered[len(head) : len(numbered) - len(tail)]
        place = names.index(stream)
        middle.sort(key=lambda one: twin.key(SEED, EXPORT, checksum, place, one[0]))
        result[name] = [document for _, document in (*head, *middle, *tail)]
    return result


def test_the_keys_are_those_of_the_page() -> None:
    keys = export_keys(7, "xxh3:0123", 0, np.array([0, 1, 10**12]))
    assert [twin.key(7, EXPORT, "xxh3:0123", 0, n) for n in (0, 1, 10**12)] == keys.tolist()
    page = Path("docs/order.md").read_text()
    for key in keys.tolist():
        assert f"0x{key:016X}" in page


def test_a_key_tells_its_number() -> None:
    numbers = np.array([0, 1, 2, 77, 2**40, 2**62], np.int64)
    for seed, stream in ((0, 0), (7, 1), (2**64 - 1, 0)):
        keys = export_keys(seed, "xxh3:0123", stream, numbers)
        assert export_numbers(seed, "xxh3:0123", stream, keys).tolist() == numbers.tolist()
    values = np.array([0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF], np.uint64)
    assert unmix(mix(values)).tolist() == values.tolist()


def test_every_split_is_shuffled_as_the_slow_twin_does_it(made: Path, tmp_path: Path) -> None:
    source = tokenmill.open_dataset(made).manifest
    first = source.settings.first  # other separators or cuts would move the border of splits
    same = {"eot": first.eot, **({"cut": "document"} if first.cut == "document" else {})}
    output = shuffled(made, tmp_path / "o", format="llmc,parquet", **same)
    found = documents(output)
    assert found == by_the_twin(made, source.checksum)
    assert any(found[name] != before for name, before in documents(made).items())
    opened = tokenmill.open_dataset(output)
    assert opened.manifest.counts == source.counts
    assert opened.settings.reshuffle is not None
    assert (opened.settings.reshuffle.seed, opened.settings.reshuffle.of) == (SEED, source.checksum)
    report = tokenmill.verify_deep(output, sample="all")
    assert report.problems == []
    assert report.complete
    some = tokenmill.verify_deep(output, sample=20)
    assert (some.problems, some.documents) == ([], 20)
    for name, mine in found.items():
        for number in (0, len(mine) // 2, len(mine) - 1):
            (source, row), _ = mine[number]
            view = tokenmill.inspect_row(output, source=source, row=row)
            assert (name, number) in [(one.split, one.document) for one in view.documents]


SOME = pytest.mark.parametrize("made", ["shard", "shuffled"], indirect=True)


@SOME
def test_neither_ranges_nor_merged_runs_change_a_byte(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dataset_bytes(shuffled(made, tmp_path / "usual"))
    for ranges, most in (("1500", "3"), ("64000000", "8192")):
        monkeypatch.setenv("TOKENMILL_RANGE_BYTES", ranges)
        monkeypatch.setenv("TOKENMILL_MAX_RUNS", most)
        assert dataset_bytes(shuffled(made, tmp_path / ranges)) == expected


def dataset_bytes(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@SOME
def test_a_shuffle_of_a_shuffle_is_one_of_the_first_dataset(made: Path, tmp_path: Path) -> None:
    """Keys are made of the first dataset's numbers: only the last seed counts."""
    once = shuffled(made, tmp_path / "once", seed=1)
    twice, direct = shuffled(once, tmp_path / "twice"), shuffled(made, tmp_path / "direct")
    assert documents(twice) == documents(direct)
    index = "index/" + open_streams(tokenmill.open_dataset(direct))[0].name + ".numbers"
    assert (twice / index).read_bytes() == (direct / index).read_bytes()
    assert tokenmill.verify_deep(twice, sample="all").complete


@pytest.mark.parametrize("made", ["docs", "shuffled"], indirect=True)
def test_a_usual_export_keeps_the_new_order(made: Path, tmp_path: Path) -> None:
    once = shuffled(made, tmp_path / "once")
    tokenmill.export(once, tmp_path / "again", format="megatron", workers=0, quiet=True)
    assert documents(tmp_path / "again") == documents(once)
    assert tokenmill.verify_deep(tmp_path / "again", sample="all").complete


@SOME
def test_another_seed_is_another_order_and_the_same_seed_the_same(
    made: Path, tmp_path: Path
) -> None:
    orders = [documents(shuffled(made, tmp_path / str(seed), seed=seed)) for seed in (1, 2)]
    assert orders[0] != orders[1]
    assert orders[0] == documents(shuffled(made, tmp_path / "again", seed=1))


@SOME
def test_a_dataset_in_another_store_is_shuffled_too(made: Path, tmp_path: Path) -> None:
    here = shuffled(made, tmp_path / "here")
    there = shuffled(MemoryStore.copy_of(made), tmp_path / "there")
    assert dataset_bytes(here) == dataset_bytes(there)


def plain(files: list[Path], folder: Path, **options: Any) -> Path:
    options = {"val": 0.2, "workers": 0, "quiet": True, **options}
    tokenmill.prepare(files, folder, **options)
    return folder


@pytest.mark.parametrize("by_key", [False, True])
def test_wrong_numbers_and_exchanged_documents_are_found(
    files: list[Path], tmp_path: Path, by_key: bool
) -> None:
    source = plain(files, tmp_path / "d", val="none", shuffle=by_key)
    output = shuffled(source, tmp_path / "o")
    assert tokenmill.verify_deep(output, sample="all").ok
    shutil.copytree(output, tmp_path / "p")
    numbers = np.fromfile(output / "index/train.numbers", "<u8")
    numbers[[3, 4]] = numbers[[4, 3]]
    numbers.tofile(output / "index/train.numbers")
    assert "the keys of documents are not in order" in first_problem(output)
    _exchange_equal_documents(tmp_path / "p")
    what = "its key belongs before" if by_key else "not in the order of sources and rows"
    assert what in first_problem(tmp_path / "p")


def first_problem(folder: Path) -> str:
    reseal(folder)
    return tokenmill.verify_deep(folder, sample="all").problems[0].message


def _exchange_equal_documents(folder: Path) -> None:
    """Two with the same text: no token differs, only where they are."""
    first, other = (
        tokenmill.inspect_row(folder, source="a.parquet", row=row).documents[0].document
        for row in (62, 63)
    )
    runs = np.fromfile(folder / "index/train.runs", "<u8").reshape(-1, 3)
    runs[[first, other], 1:] = runs[[other, first], 1:]
    runs.tofile(folder / "index/train.runs")
    rows = np.fromfile(folder / "index/train.rows", "<u8")
    places = np.flatnonzero(np.isin(rows, (first, other)))
    rows[places] = rows[places[::-1]]
    rows.tofile(folder / "index/train.rows")


def test_what_cannot_be_shuffled_is_refused(files: list[Path], tmp_path: Path) -> None:
    source = plain(files, tmp_path / "d")
    with pytest.raises(UsageError, match="nothing is drawn without shuffle=True"):
        tokenmill.export(source, tmp_path / "o", format="llmc", seed=3, quiet=True)
    adopted = tmp_path / "adopted"
    adopted.mkdir()
    np.array([5, 6, 50256, 7, 8], "<u2").tofile(adopted / "train.bin")
    tokenmill.adopt(adopted, format="nanogpt")
    with pytest.raises(UsageError, match="documents cannot be moved"):
        shuffled(adopted, tmp_path / "o")


def test_a_shuffled_export_can_be_reused(files: list[Path], tmp_path: Path) -> None:
    output = shuffled(plain(files, tmp_path / "d"), tmp_path / "o")
    plain(files, tmp_path / "new", val=0.1, reuse=output)
    plain(files, tmp_path / "fresh", val=0.1)
    assert dataset_bytes(tmp_path / "new") == dataset_bytes(tmp_path / "fresh")


def test_the_longest_run_of_one_source_is_as_long_as_chance_makes_it(
    tmp_path: Path,
) -> None:
    files = [write_jsonl(tmp_path / f"{n}.jsonl", [f"{n} {i}" for i in range(500)]) for n in (0, 1)]
    output = shuffled(plain(files, tmp_path / "d", val="none"), tmp_path / "o")
    sources = [origin[0] for origin, _ in documents(output)["train"]]
    longest = max(len(list(group)) for _, group in itertools.groupby(sources))
    assert 5 <= longest <= 25  # 10 is usual for 1,000 throws of a coin
