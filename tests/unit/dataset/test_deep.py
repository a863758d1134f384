"""`verify --deep`: what is stored is what the sources say, token by token, row by row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.cases import quick
from support.deep import moved, reseal, sources, write_tokens  # noqa: F401
from support.inputs import write_jsonl

import tokenmill
from tokenmill.errors import InputError
from tokenmill.output.manifest import Manifest

RULES: dict[str, dict[str, Any]] = {
    "fraction": {"val": 0.2, "seed": 3},
    "docs": {"val": "docs:17"},
    "tokens": {"val": "tokens:5k"},
    "none": {"val": "none", "eot": "none"},
    "shard": {"format": "llmc", "shard_tokens": "9k"},
    "shard-document": {"format": "llmc", "shard_tokens": "9k", "cut": "document"},
    "wide": {"format": "llmc", "shard_tokens": "30k", "tokenizer": "cl100k_base", "val": 0.1},
    "dropped": {"val": 0.2, "drop_empty": True},
}


@pytest.fixture(
    scope="module", params=quick(RULES, "fraction", "tokens", "shard-document"), ids=str
)
def made(
    request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("deep") / request.param
    tokenmill.prepare(sources, out, on_bad_row="quarantine", workers=0, **RULES[request.param])
    return out


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(made, tmp_path / "o")
    return tmp_path / "o"


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "manifest.json").read_bytes())
    change(content)
    manifest = msgspec.convert(content, Manifest).sealed()
    (folder / "manifest.json").write_bytes(manifest.encode())


def test_a_dataset_as_it_was_made_is_complete(made: Path) -> None:
    counts = tokenmill.open_dataset(made).manifest.counts
    assert counts["quarantined"] > 10
    for sample in ("all", None, 10**9):
        report = tokenmill.verify_deep(made, sample=sample)
        assert report.problems == []
        assert report.complete
        assert report.documents == report.documents_total == counts["documents"]
        assert report.rows == counts["rows"]
        assert report.tokens == counts["tokens"]
        assert report.text_bytes == counts["text_bytes"]


def test_a_sample_compares_as_many_documents_as_asked_for(made: Path) -> None:
    report = tokenmill.verify_deep(made, sample=25)
    assert report.ok
    assert report.documents == 25
    assert not report.complete


def test_time_is_kept(made: Path) -> None:
    report = tokenmill.verify_deep(made, seconds=0.0)
    assert report.ok
    assert not report.complete
    assert report.stopped == "time is over"


@pytest.mark.parametrize("where", [0.0, 0.5, 0.99])
def test_one_changed_token_is_found_and_named(dataset: Path, where: float) -> None:
    train = tokenmill.open_dataset(dataset)["train"]
    number = int(where * len(train.documents))
    while len(train.documents[number]) < 4:
        number += 1
    start, stop = train.documents.span(number)
    at = start + (stop - start) // 2
    right = int(train.tokens[at])
    source, row = train.documents.source(number)
    write_tokens(dataset, "train", at, np.array([right ^ 1]))
    reseal(dataset)
    report = tokenmill.verify_deep(dataset, sample="all")
    assert len(report.problems) == 1, report.problems
    problem = report.problems[0]
    assert (problem.split, problem.document) == ("train", number)
    assert (problem.source, problem.row) == (source, row)
    assert (problem.found, problem.expected) == (right ^ 1, right)
    whole, _ = train.documents.whole_span(number)
    assert problem.token == at - whole
    assert f"train document {number} ({source}, row {row})" in problem.message


def test_a_document_over_two_files_is_compared_in_both(dataset: Path) -> None:
    opened = tokenmill.open_dataset(dataset)
    if not opened.layout.shard_tokens or opened.layout.cut == "document":
        pytest.skip("no file ends inside a document")
    found = 0
    for name, split in opened.items():
        for number in range(len(split.documents)):
            view = tokenmill.inspect_document(dataset, document=number, split=name)
            if len(view.places) < 2:
                continue
            at = view.first_token + view.places[0]["tokens"]  # the first of the second file
            right = int(split.tokens[at])
            write_tokens(dataset, name, at, np.array([right ^ 1]))
            found += 1
            reseal(dataset)
            problems = tokenmill.verify_deep(dataset, sample="all").problems
            assert [(p.split, p.document, p.row) for p in problems] == [(name, number, view.row)]
            write_tokens(dataset, name, at, np.array([right]))
            break
    assert found


def test_a_lost_separator_is_found(dataset: Path) -> None:
    settings = tokenmill.open_dataset(dataset).settings
    if settings.first.eot == "none":
        pytest.skip("has no separators")
    train = tokenmill.open_dataset(dataset)["train"]
    start, stop = train.documents.span(5)
    at = start if settings.first.eot == "prepend" else stop - 1
    write_tokens(dataset, "train", at, np.array([11]))
    reseal(dataset)
    problem = tokenmill.verify_deep(dataset, sample="all").problems[0]
    assert (problem.found, problem.expected) == (11, settings.eot_id)


def test_swapped_documents_are_found(dataset: Path) -> None:
    """Two neighbours, and the ends that tell them apart: nothing but the sources knows."""
    train = tokenmill.open_dataset(dataset)["train"]
    documents = train.documents
    number = next(
        i
        for i in range(3, len(documents))
        if len(documents[i]) != len(documents[i + 1])
        and min(len(documents[i]), len(documents[i + 1])) > 3
    )
    first, second = documents[number].copy(), documents[number + 1].copy()
    start = documents.span(number)[0]
    write_tokens(dataset, "train", start, np.concatenate((second, first)))
    stream = next(s.stream for s in train_splits(dataset) if s.name == "train")
    ends = np.memmap(dataset / f"index/{stream}.ends", "<u8", "r+")
    at = documents.first + number
    ends[at] = (int(ends[at - 1]) if at else 0) + len(second)
    ends.flush()
    reseal(dataset)
    report = tokenmill.verify_deep(dataset, sample="all")
    assert {number, number + 1} <= {p.document for p in report.problems if p.kind == "token"}
    assert not report.complete


def train_splits(dataset: Path) -> list[Any]:
    return Manifest.load(dataset).splits


def test_a_shifted_row_is_found(dataset: Path) -> None:
    stream = next(s.stream for s in train_splits(dataset) if s.name == "train")
    runs = np.memmap(dataset / f"index/{stream}.runs", "<u8", "r+").reshape(-1, 3)
    last = len(runs) - 1
    runs[last, 2] += 1
    runs.flush()
    reseal(dataset)
    report = tokenmill.verify_deep(dataset, sample="all")
    assert any(p.kind in ("row", "token") for p in report.problems)
    assert not report.complete


def test_a_quarantined_row_that_was_good_is_found(dataset: Path) -> None:
    path = dataset / "quarantine.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[1])
    changed = lines[1].replace(b'"row":%d,' % record["row"], b'"row":%d,' % (record["row"] + 1))
    assert len(changed) == len(lines[1])
    path.write_bytes(b"".join([lines[0], changed, *lines[2:]]))
    reseal(dataset)
    messages = [p.message for p in tokenmill.verify_deep(dataset, sample="all").problems]
    assert any("quarantine.jsonl does not name it" in message for message in messages)


def test_counts_that_do_not_come_out_are_found(dataset: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["sources"][0]["text_bytes"] += 5

    change_manifest(dataset, change)
    assert tokenmill.verify(dataset).ok
    report = tokenmill.verify_deep(dataset, sample="all")
    assert [p.kind for p in report.problems] == ["count"]
    assert "text_bytes" in report.problems[0].message


def test_a_border_in_the_wrong_place_is_found(dataset: Path) -> None:
    """The split's border moved, and nothing else: all tokens are right, one is in val too many."""
    if len({s.stream for s in train_splits(dataset)}) == 2 or len(train_splits(dataset)) == 1:
        pytest.skip("val is a stream of its own")

    def change(manifest: dict[str, Any]) -> None:
        val, train = manifest["splits"]
        val["tokens"] += 1
        train["first_token"] += 1
        train["tokens"] -= 1

    change_manifest(dataset, change)
    report = tokenmill.verify_deep(dataset, sample=5)
    assert any(p.kind == "border" for p in report.problems)


def test_a_document_in_the_wrong_split_is_found(dataset: Path) -> None:
    """By another seed other documents are held out: the tokens are right, the splits are not."""
    if tokenmill.open_dataset(dataset).settings.val.kind != "fraction":
        pytest.skip("splits are not hashed")

    def change(manifest: dict[str, Any]) -> None:
        manifest["plan"]["settings"]["seed"] += 1

    change_manifest(dataset, change)
    assert tokenmill.verify(dataset).ok
    for sample in ("all", 5, None):
        messages = [p.message for p in tokenmill.verify_deep(dataset, sample=sample).problems]
        assert any("should be a document of val, and is not there" in m for m in messages)
        assert any("that row is not a document of train" in m for m in messages)


@pytest.mark.parametrize("more", [b'{"text": "one more"}\n', b"{oops\n", b""])
def test_a_row_too_many_or_too_few_is_found(tmp_path: Path, more: bytes) -> None:
    """A dataset that claims to be made from a file with another row, or with one row less."""
    first = write_jsonl(tmp_path / "x.jsonl", ["a b c", "d", "e f"])
    whole = first.read_bytes()
    other = tmp_path / "y/x.jsonl"
    other.parent.mkdir()
    other.write_bytes(whole + more if more else whole[: whole.rindex(b"{", 0, whole.rindex(b"z"))])
    tokenmill.prepare(first, tmp_path / "o", val="none", workers=0)
    tokenmill.prepare(other, tmp_path / "p", val="none", on_bad_row="quarantine", workers=0)
    claimed = json.loads((tmp_path / "p/manifest.json").read_bytes())["sources"][0]

    def change(manifest: dict[str, Any]) -> None:
        manifest["sources"][0]["size"] = claimed["size"]
        manifest["sources"][0]["fingerprint"] = claimed["fingerprint"]

    change_manifest(tmp_path / "o", change)
    report = tokenmill.verify_deep(tmp_path / "o", source_root=other.parent, sample="all")
    kinds = {p.kind for p in report.problems}
    assert "count" in kinds
    assert kinds & {"row", "quarantine"}
    assert not report.complete


def test_damaged_files_are_not_compared_any_further(dataset: Path) -> None:
    with open(dataset / "index/units", "r+b") as file:
        file.write(b"\xff")
    report = tokenmill.verify_deep(dataset)
    assert [p.kind for p in report.problems] == ["file"]


def test_moved_inputs_are_found_with_source_root(moved: tuple[Path, Path]) -> None:
    inputs, out = moved
    elsewhere = inputs.rename(inputs.with_name("elsewhere"))
    with pytest.raises(InputError, match="no such file") as caught:
        tokenmill.verify_deep(out)
    assert "source_root" in caught.value.hint
    assert tokenmill.verify_deep(out, source_root=elsewhere, sample="all").complete
    (out / "run.json").unlink()
    with pytest.raises(InputError, match=r"run\.json does not say"):
        tokenmill.verify_deep(out)
    assert tokenmill.verify_deep(out, source_root=elsewhere, sample="all").complete


def test_a_source_changed_since_is_named_and_the_others_are_compared(
    moved: tuple[Path, Path],
) -> None:
    inputs, out = moved
    path = inputs / "more/b.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b" the ", b" teh ", 1))
    report = tokenmill.verify_deep(out, sample="all")
    assert [(p.kind, p.source) for p in report.problems] == [("source", "more/b.jsonl")]
    assert "same size, other content" in report.problems[0].message
    assert not report.complete
    others = [s for s in tokenmill.open_dataset(out).manifest.sources if "b.jsonl" not in s["name"]]
    assert report.documents == sum(s["documents"] for s in others)
    path.write_bytes(content + b"\n")
    report = tokenmill.verify_deep(out, sample=10)
    assert "bytes" in report.problems[0].message
    path.write_bytes(b"")
    assert not tokenmill.verify_deep(out, sample=10).ok


def test_what_the_reference_cannot_encode_is_compared_with_the_fast_encoder(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["a", " " * 1_200_000 + "b", "c"])
    tokenmill.prepare(tmp_path / "x.jsonl", tmp_path / "o", val="none", workers=0)
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.complete
    assert report.reference_failures == 1


def test_hundreds_of_problems_end_the_comparison(dataset: Path) -> None:
    train = tokenmill.open_dataset(dataset)["train"]
    write_tokens(dataset, "train", 0, np.zeros(len(train.tokens), np.uint16))
    reseal(dataset)
    report = tokenmill.verify_deep(dataset, sample="all")
    assert 20 <= len(report.problems) <= 30
    assert "stopped after" in report.stopped
