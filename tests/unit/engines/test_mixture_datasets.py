"""`dataset:DIR` as an input of a mixture: its documents are taken as they are, and against the
slow twin; what does not fit is refused."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from support import mixed, reference
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.cli.documents import document_lines
from tokenmill.dataset.deep.origins import find_origins, read_again, read_tasks
from tokenmill.errors import (
    InputError,
    RefusedError,
    TokenmillError,
    UsageError,
    VerificationError,
)
from tokenmill.inputs import segments
from tokenmill.inputs.kinds import segments_of
from tokenmill.output.prepared import reader
from tokenmill.planning.mixture.table import manifest_rows

SEED, HELD = 5, 0.1
MIX = """
tokens = 30_000
[source.web]
inputs = ["web.parquet"]
weight = 0.4
[source.math]
inputs = ["dataset:math"]
weight = 0.4
max_epochs = 3.5
[source.both]
inputs = ["wiki.jsonl", "dataset:forum"]
weight = "rest"
"""


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "30000")
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 15)


def make(folder: Path, name: str, **options: Any) -> Any:
    options = {"workers": 0, "quiet": True, **options}
    return tokenmill.prepare(folder / f"{name}.jsonl", folder / name, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text beside two prepared datasets: one of two shards, shuffled; one of which a border
    between the splits cuts a document."""
    folder = tmp_path_factory.mktemp("datasets")
    texts = [text[:600] for text in sample_texts()]
    write_parquet(folder / "web.parquet", texts[:120], rows=25)
    write_jsonl(folder / "math.jsonl", [*texts[100:190], "", ""])
    write_jsonl(folder / "wiki.jsonl", texts[:20])
    write_jsonl(folder / "forum.jsonl", texts[120:180])
    make(folder, "math", format="llmc", val=0.1, shuffle=True, shard_tokens=4000)
    make(folder, "forum", val="tail:0.2", eot="prepend")
    (folder / "mix.toml").write_text(MIX)
    return folder


def prepare(folder: Path, output: Path, mix: str = "mix.toml", **options: Any) -> Any:
    options = {"shuffle": True, "seed": SEED, "workers": 0, "val": HELD, "quiet": True, **options}
    return tokenmill.prepare((), output, mix=folder / mix, **options)


def check(folder: Path, output: Path, manifest: Any, shares: dict[str, int]) -> None:
    """The dataset is what its slow twin says."""
    train, val = mixed.found_documents(manifest, folder, SEED, HELD, {})
    taken = {name: mixed.taken(train[name], share) for name, share in shares.items()}
    names = [source["name"] for source in manifest.sources]
    groups = [list(shares).index(source["mix"]) for source in manifest.sources]
    opened = tokenmill.open_dataset(output)
    for split, documents in (("train", list(itertools.chain(*taken.values()))), ("val", val)):
        wanted = sorted(documents, key=lambda one: (groups[one.source], one))
        if manifest.settings.shuffle:
            wanted = sorted(documents)
        flat = list(itertools.chain.from_iterable(one.ids for one in wanted))
        assert opened[split].tokens[:].tolist() == flat, split
        assert mixed.origins(output, split) == [(names[one.source], one.row) for one in wanted]
    rows = manifest_rows(manifest.plan["settings"], manifest.sources)
    for row in rows:
        assert row.taken_tokens == sum(len(one.ids) for one in taken[row.source])
    assert tokenmill.verify(output).ok


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_mixture_with_prepared_datasets_equals_its_slow_twin(
    folder: Path, tmp_path: Path, shuffle: bool
) -> None:
    manifest = prepare(folder, tmp_path / "o", shuffle=shuffle).manifest
    check(folder, tmp_path / "o", manifest, {"web": 12_000, "math": 12_000, "both": 6000})
    rows = {source["name"]: source["rows"] for source in manifest.sources}
    before = {name: tokenmill.open_dataset(folder / name) for name in ("math", "forum")}
    assert rows["math"] == len(before["math"]["train"].documents)
    assert rows["forum"] == len(before["forum"]["train"].documents) - 1, "one is cut"
    for source in manifest.sources:
        parts = (source["documents"], source["dropped"], source["quarantined"])
        assert source["rows"] == sum(parts) + source.get("not_chosen", 0)


def test_the_validation_documents_of_a_prepared_dataset_are_in_no_split(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "all.toml").write_text("[source.math]\ninputs = ['dataset:math']\nweight = 1\n")
    prepare(folder, tmp_path / "o", "all.toml", allow_empty_split=True)
    made = tokenmill.open_dataset(tmp_path / "o")
    before = tokenmill.open_dataset(folder / "math")
    held = {tuple(one[1:].tolist()) for one in before["val"].documents}  # llmc: separator first
    here = {tuple(one[:-1].tolist()) for split in made for one in made[split].documents}
    there = {tuple(one[1:].tolist()) for one in before["train"].documents}
    assert held
    assert not (held - {()}) & here
    assert here == there
    report = tokenmill.plan((), tmp_path / "p", mix=folder / "all.toml", quiet=True)
    assert f"its val split, {len(held)} documents, is not trained on" in str(report)


@pytest.mark.parametrize(
    "options",
    [
        {"format": "megatron"},
        {"format": "mds", "eot": "none", "val": "none", "drop_empty": True},
        {"format": "parquet", "val": "docs:9"},
        {"format": "nanogpt", "val": "tail:0.2", "dtype": "uint32"},
        {"format": "llmc,hf", "shuffle": True, "val": 0.1},
    ],
    ids=str,
)
def test_datasets_of_every_format_and_separator_are_inputs(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    write_jsonl(tmp_path / "old.jsonl", [text[:600] for text in sample_texts()[50:110]])
    make(tmp_path, "old", **options)
    (tmp_path / "mix.toml").write_text(
        "[source.old]\ninputs = ['dataset:old']\ntokens = 9000\nmax_epochs = 2\n"
    )
    manifest = prepare(tmp_path, tmp_path / "o", format="olmo").manifest
    check(tmp_path, tmp_path / "o", manifest, {"old": 9000})


def test_nothing_of_a_prepared_dataset_is_encoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something is encoded")

    monkeypatch.setattr("tokenmill.tokenizer.session.EncoderSession.encode", refuse)
    (folder / "none.toml").write_text("[source.math]\ninputs = ['dataset:math']\nweight = 1\n")
    assert prepare(folder, tmp_path / "o", "none.toml", allow_empty_split=True).manifest
    with pytest.raises(AssertionError, match="something is encoded"):
        prepare(folder, tmp_path / "p")


def test_a_long_document_of_a_prepared_dataset_comes_in_parts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 256)
    monkeypatch.setattr(reader, "LONG_BYTES", 512)
    monkeypatch.setattr(reader, "ENDS_AT_ONCE", 7)
    monkeypatch.setattr("tokenmill.engines.unit.UNIT_BYTES", 1000)
    manifest = prepare(folder, tmp_path / "o").manifest
    check(folder, tmp_path / "o", manifest, {"web": 12_000, "math": 12_000, "both": 6000})
    whole = prepare(folder, tmp_path / "w", min_tokens=3, drop_empty=True).manifest
    math = next(source for source in whole.sources if source["name"] == "math")
    assert math["dropped"] == math["empty"] == 1


def test_a_document_names_the_dataset_and_what_that_was_made_from(
    folder: Path, tmp_path: Path
) -> None:
    prepare(folder, tmp_path / "o")
    for name in ("math", "forum"):
        number = next(
            number
            for number, (source, _) in enumerate(mixed.origins(tmp_path / "o", "train"))
            if source == name
        )
        view = tokenmill.inspect_document(tmp_path / "o", document=number)
        assert view.origin is not None
        there = tokenmill.inspect_document(folder / name, document=view.origin.document)
        assert (there.source, there.row) == (view.origin.source, view.origin.row)
        assert there.text == view.text
        told = "\n".join(document_lines(view, full=False, color=False))
        made = f"made from {name}.jsonl, row {view.origin.row}"
        assert f"train document {view.origin.document} of the dataset {name}, {made}" in told
        found = tokenmill.inspect_row(tmp_path / "o", source=name, row=view.row)
        assert number in [one.document for one in found.documents if one.split == "train"]


def test_the_rows_of_a_prepared_dataset_are_found_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `verify --deep` compares with."""
    here = changed(folder, tmp_path)
    prepare(here, tmp_path / "o", shuffle=False)
    dataset = tokenmill.open_dataset(tmp_path / "o")
    sources, problems = find_origins(dataset, None)
    assert not problems
    tasks, problems = read_tasks(dataset.store, dataset.manifest)
    assert not problems
    math = next(one for one in sources.values() if one.name == "math")
    cut = {one.number: one for one in segments_of(math, dataset.settings.reading)}
    found = [
        ids.tobytes()
        for task in tasks
        if task.source == math.number
        for batch in read_again(math, cut[task.segment], dataset.settings, task)
        for ids in map(batch.texts.document, range(len(batch.rows)))
        for ids in [np.frombuffer(ids, np.uint32)]
    ]
    documents = tokenmill.open_dataset(here / "math")["train"].documents
    assert found == [one[1:].astype(np.uint32).tobytes() for one in documents]  # separator first
    make(here, "math", format="llmc", val=0.2, shuffle=True, overwrite=True)
    _, problems = find_origins(dataset, None)
    assert [problem.message for problem in problems] == [
        "math: changed since the dataset was made (it has another manifest)"
    ]


COUNTED = """
tokens = 9000
[source.math]
inputs = ["dataset:math"]
weight = 1
[source.web]
inputs = ["counted.parquet"]
weight = 1
"""


@pytest.fixture
def counted(folder: Path) -> Path:
    """A file like FineWeb's, that counts its tokens itself."""
    texts = [text[:600] for text in sample_texts()[:60]]
    counts = [len(reference.encoded("gpt2", text)) for text in texts]
    columns = {"text": texts, "token_count": pyarrow.array(counts, pyarrow.int32())}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "counted.parquet")
    (folder / "counted.toml").write_text(COUNTED)
    return folder


@pytest.mark.parametrize("options", [{}, {"drop_empty": True, "min_tokens": 100}], ids=str)
def test_where_counts_are_known_plan_shows_the_true_table(
    counted: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    options = {"shuffle": True, "seed": SEED, "val": HELD, "quiet": True, **options}
    report = tokenmill.plan((), tmp_path / "o", mix=counted / "counted.toml", **options)
    assert "(estimated)" not in str(report)
    made = prepare(counted, tmp_path / "o", "counted.toml", **options).manifest
    rows = manifest_rows(made.plan["settings"], made.sources)
    for row, planned in zip(rows, report.estimate.mixture, strict=True):
        assert not planned.estimated
        there = (row.there_tokens, row.there_documents)
        assert (planned.there_tokens, planned.there_documents) == there
    report = tokenmill.plan((), tmp_path / "p", mix=counted / "mix.toml", **options)
    assert "(estimated)" in str(report)
    assert {row.source: row.estimated for row in report.estimate.mixture} == {
        "web": True, "math": False, "both": True,
    }  # fmt: skip


@pytest.mark.parametrize("short", ["dataset:math", "counted.parquet"])
def test_where_counts_are_known_a_mixture_that_cannot_be_met_is_refused_first(
    counted: Path, tmp_path: Path, short: str
) -> None:
    (counted / "short.toml").write_text(
        f"[source.short]\ninputs = ['{short}']\ntokens = 1_200_000\n"
        "[source.wiki]\ninputs = ['wiki.jsonl']\ntokens = 500\n"
    )
    with pytest.raises(UsageError, match="source short: asked 1,200,000 tokens"):
        prepare(counted, tmp_path / "o", "short.toml")
    assert not (tmp_path / "o").exists()


def test_counts_that_are_not_true_refuse_nothing(counted: Path, tmp_path: Path) -> None:
    table = pyarrow.parquet.read_table(counted / "counted.parquet")
    wrong = pyarrow.array([1] * len(table), pyarrow.int32())
    table = table.set_column(1, "token_count", wrong)
    pyarrow.parquet.write_table(table, counted / "counted.parquet")
    assert prepare(counted, tmp_path / "o", "counted.toml").manifest


def changed(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_dataset_of_another_tokenizer_is_refused_with_the_difference(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=r"source math: .*its tokens do not fit") as error:
        prepare(folder, tmp_path / "o", tokenizer="cl100k_base")
    assert "tokenizer: gpt2 -> cl100k_base" in str(error.value)
    assert not (tmp_path / "o").exists()


def test_what_is_not_a_finished_dataset_of_ours_is_refused(folder: Path, tmp_path: Path) -> None:
    here = changed(folder, tmp_path)
    with pytest.raises(UsageError, match="is the output itself"):
        prepare(here, here / "math", overwrite=True)
    assert tokenmill.verify(here / "math").ok
    (here / "math/manifest.json").unlink()
    with pytest.raises(TokenmillError, match=r"source math: .*math"):
        prepare(here, tmp_path / "o")
    shutil.rmtree(here / "math")
    with pytest.raises(InputError, match=r"source math: dataset:.*math: no such folder"):
        prepare(here, tmp_path / "o")
    (here / "math").mkdir()
    np.full(3000, 50256, np.uint16).tofile(here / "math/train.bin")
    tokenmill.adopt(here / "math", format="nanogpt")
    with pytest.raises(RefusedError, match="do not fit") as error:
        prepare(here, tmp_path / "o")
    assert "it was imported from token files" in str(error.value)


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("text_column = 'content'", {}, "source math: text_column: says how text files are read"),
        ("as = 'jsonl'", {}, "source math: as: says how text files are read"),
        ("", {"where": "text != ''"}, "source math: dataset:.*math: --?where"),
    ],
)
def test_what_speaks_of_text_is_refused(
    folder: Path, tmp_path: Path, line: str, options: dict[str, Any], message: str
) -> None:
    mix = MIX.replace("max_epochs = 3.5", f"max_epochs = 3.5\n{line}")
    (folder / "text.toml").write_text(mix)
    with pytest.raises(UsageError, match=message.replace("--?", "(--)?")):
        prepare(folder, tmp_path / "o", "text.toml", **options)


def test_names_that_cannot_be_datasets_are_refused(folder: Path, tmp_path: Path) -> None:
    for name, what in (("", "names no folder"), ("hf://x/y", "is not on this machine")):
        (folder / "names.toml").write_text(MIX.replace("dataset:math", f"dataset:{name}"))
        with pytest.raises(UsageError, match=what):
            prepare(folder, tmp_path / "o", "names.toml")
    with pytest.raises(InputError, match="a file is not a prepared dataset"):
        tokenmill.prepare(folder / "wiki.jsonl", tmp_path / "o", as_kind="dataset", workers=0)


def test_a_dataset_with_a_flipped_bit_stops_the_job(folder: Path, tmp_path: Path) -> None:
    here = changed(folder, tmp_path)
    shard = next((here / "math").glob("*train*.bin"))
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(VerificationError, match=r"was changed in bytes .* cannot be an input"):
        prepare(here, tmp_path / "o")
    content[-100] ^= 1
    shard.write_bytes(content)
    assert prepare(here, tmp_path / "o").manifest, "what is done already is kept"


def test_another_dataset_under_the_same_name_is_another_plan(folder: Path, tmp_path: Path) -> None:
    here = changed(folder, tmp_path)
    prepare(here, tmp_path / "o")
    make(here, "math", format="llmc", val=0.2, shuffle=True, overwrite=True)
    with pytest.raises(RefusedError, match="math"):
        prepare(here, tmp_path / "o")


def test_a_copy_of_a_dataset_elsewhere_gives_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    here = changed(folder, tmp_path)
    made = prepare(folder, tmp_path / "o").manifest
    assert prepare(here, tmp_path / "p" / "o").manifest == made
