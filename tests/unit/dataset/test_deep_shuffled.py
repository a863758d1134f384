"""`verify --deep` of shuffled datasets: sources are read in their order, documents are anywhere."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cases import quick
from support.deep import reseal, sources, write_tokens  # noqa: F401
from support.inputs import write_jsonl

import tokenmill
from tokenmill.dataset.deep.key_order import KeyOrder, order_problems
from tokenmill.formats import FORMATS

RULES: dict[str, dict[str, Any]] = {
    "fraction": {"val": 0.2, "seed": 3},
    "docs": {"val": "docs:17"},
    "none": {"val": "none", "eot": "none"},
    "shard": {"format": "llmc", "shard_tokens": "9k"},
    "dropped": {"val": 0.2, "drop_empty": True, "min_tokens": 9},
    "limited": {"val": 0.2, "limit_docs": 70},
    "limited-tokens": {"val": "docs:5", "limit_tokens": "40k", "drop_empty": True},
}


def shuffled(sources: Path, out: Path, **options: Any) -> Path:
    options = {"shuffle": True, "on_bad_row": "quarantine", "workers": 0, **options}
    tokenmill.prepare(sources, out, **options)
    return out


@pytest.fixture(scope="module", params=quick(RULES, "fraction", "shard", "limited"), ids=str)
def made(
    request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("deep-shuffled") / request.param
    return shuffled(sources, out, **RULES[request.param])


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(made, tmp_path / "o")
    return tmp_path / "o"


def problems(folder: Path, **options: Any) -> list[Any]:
    reseal(folder)
    return tokenmill.verify_deep(folder, **{"sample": "all", **options}).problems


def test_a_shuffled_dataset_is_complete(made: Path) -> None:
    counts = tokenmill.open_dataset(made).manifest.counts
    for sample in ("all", None, 10**9):
        report = tokenmill.verify_deep(made, sample=sample)
        assert report.problems == []
        assert report.documents == report.documents_total == counts["documents"]
        assert report.rows == counts["rows"]
        assert report.tokens == counts["tokens"]
        assert report.complete
    some = tokenmill.verify_deep(made, sample=20)
    assert (some.problems, some.documents) == ([], 20)


def test_every_row_of_a_shuffled_dataset_is_where_it_went(made: Path) -> None:
    dataset = tokenmill.open_dataset(made)
    found: dict[str, list[int]] = {name: [] for name in dataset}
    for entry in dataset.manifest.sources:
        states = {"written": 0, "dropped": 0, "quarantined": 0, "not chosen": 0}
        for row in range(entry["rows"]):
            view = tokenmill.inspect_row(made, source=entry["name"], row=row)
            if view.state == "dropped or not chosen":
                states["dropped"] += 1
                continue
            states[view.state] += 1
            for one in view.documents:
                found[one.split].append(one.document)
                documents = dataset[one.split].documents
                assert documents.source(one.document) == (entry["name"], row)
                assert documents.span(one.document)[0] == one.first_token
        assert states["written"] == entry["documents"]
        assert states["quarantined"] == entry["quarantined"]
        left = entry["dropped"] + entry.get("not_chosen", 0)
        assert states["dropped"] + states["not chosen"] == left
    for name, split in dataset.items():
        assert sorted(found[name]) == list(range(len(split.documents)))


@pytest.mark.parametrize("where", [0.0, 0.5, 0.99])
def test_a_changed_token_is_found_and_named(dataset: Path, where: float) -> None:
    train = tokenmill.open_dataset(dataset)["train"]
    number = int(where * len(train.documents))
    while len(train.documents[number]) < 4:
        number = (number + 1) % len(train.documents)
    start, stop = train.documents.span(number)
    at = (start + stop) // 2
    right = int(train.tokens[at])
    write_tokens(dataset, "train", at, np.array([right ^ 1]))
    (problem,) = problems(dataset)
    assert (problem.kind, problem.split, problem.document) == ("token", "train", number)
    assert (problem.source, problem.row) == train.documents.source(number)
    assert (problem.found, problem.expected) == (right ^ 1, right)


def stream_of(dataset: Path) -> str:
    entries = tokenmill.open_dataset(dataset).splits
    return next(str(split.stream) for split in entries if split.name == "train")


def swap(dataset: Path, first: int, second: int, what: Callable[..., None]) -> None:
    """Two documents of train, and what else of the index is to change places."""
    train = tokenmill.open_dataset(dataset)["train"]
    spans = [train.documents.span(number) for number in range(first, second + 1)]
    contents = [train.tokens[start:stop] for start, stop in spans]
    contents[0], contents[-1] = contents[-1], contents[0]
    write_tokens(dataset, "train", spans[0][0], np.concatenate(contents))
    stream, before = stream_of(dataset), train.documents.first
    ends = np.memmap(dataset / f"index/{stream}.ends", "<u8", "r+")
    at = before + first
    begin = int(ends[at - 1]) if at else 0
    for number, content in enumerate(contents):
        begin = ends[at + number] = begin + len(content)
    ends.flush()
    what(dataset / f"index/{stream}", at, before + second)


def not_the_index(path: Path, first: int, second: int) -> None: ...


def runs_too(path: Path, first: int, second: int) -> None:
    runs = np.memmap(f"{path}.runs", "<u8", "r+").reshape(-1, 3)
    runs[[first, second], 1:] = runs[[second, first], 1:]
    runs.flush()


def runs_and_rows(path: Path, first: int, second: int) -> None:
    runs_too(path, first, second)
    rows = np.memmap(f"{path}.rows", "<u8", "r+")
    places = [int(np.flatnonzero(rows == number)[0]) for number in (first, second)]
    rows[places] = rows[places[::-1]]
    rows.flush()


def two_documents(dataset: Path) -> tuple[int, int]:
    """Of the middle, which differ in length."""
    documents = tokenmill.open_dataset(dataset)["train"].documents
    middle = len(documents) // 2
    for first, second in itertools.combinations(range(middle, middle + 9), 2):
        lengths = len(documents[first]), len(documents[second])
        if min(lengths) > 3 and lengths[0] != lengths[1]:
            return first, second
    raise AssertionError("no two documents differ")


def test_documents_that_changed_places_are_found(dataset: Path) -> None:
    first, second = two_documents(dataset)
    swap(dataset, first, second, not_the_index)
    found = {p.document for p in problems(dataset) if p.kind == "token"}
    assert {first, second} <= found


def test_documents_that_changed_places_in_half_of_the_index_are_found(dataset: Path) -> None:
    swap(dataset, *two_documents(dataset), runs_too)
    assert {p.kind for p in problems(dataset)} & {"index", "row"}


def test_documents_that_changed_places_in_all_of_the_index_are_found_by_their_keys(
    dataset: Path,
) -> None:
    """Tokens, rows and index agree: nothing but the order of the keys is broken."""
    first, second = two_documents(dataset)
    swap(dataset, first, second, runs_and_rows)
    kinds = {problem.kind for problem in problems(dataset)}
    assert "order" in kinds
    assert not kinds & {"token", "row", "index"}


def test_a_document_that_is_twice_or_missing_is_found(dataset: Path) -> None:
    """Another row takes the place of a document: one row is there twice, one is not."""
    stream, at = stream_of(dataset), len(tokenmill.open_dataset(dataset)["train"].documents) // 2
    runs = np.memmap(dataset / f"index/{stream}.runs", "<u8", "r+").reshape(-1, 3)
    runs[at, 1:] = runs[at + 1, 1:]
    runs.flush()
    found = problems(dataset)
    assert any(p.kind == "index" and "order of their rows" in p.message for p in found)
    assert not tokenmill.verify_deep(dataset, sample="all").complete


def test_another_seed_is_another_order(dataset: Path) -> None:
    import json

    import msgspec

    from tokenmill.output.manifest import Manifest

    content = json.loads((dataset / "manifest.json").read_bytes())
    content["plan"]["settings"]["seed"] += 1
    manifest = msgspec.convert(content, Manifest).sealed()
    (dataset / "manifest.json").write_bytes(manifest.encode())
    assert "order" in {p.kind for p in tokenmill.verify_deep(dataset, sample="all").problems}


@pytest.mark.parametrize(
    "name", quick([*FORMATS, "llmc,mds,parquet"], "megatron", "mds", "hf", "llmc,mds,parquet")
)
def test_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        texts = [f"document {number} {i} " + "and more text " * (i % 9) for i in range(60)]
        write_jsonl(tmp_path / f"in/{number}.jsonl", texts)
    sharded = name not in ("nanogpt", "megatron", "flat")
    options: dict[str, Any] = {"shard_tokens": 400} if sharded else {}
    out = shuffled(tmp_path / "in", tmp_path / "o", format=name, val="docs:9", **options)
    report = tokenmill.verify_deep(out, sample="all")
    assert report.problems == []
    assert report.complete
    exported = tmp_path / "exported"
    tokenmill.export(out, exported, format="nanogpt")
    assert tokenmill.verify_deep(exported, sample="all").complete
    for row in (0, 33, 59):
        (one,) = tokenmill.inspect_row(out, source="1.jsonl", row=row).documents
        view = tokenmill.inspect_document(out, document=one.document, split=one.split)
        assert view.text.startswith(f"document 1 {row} ")


def test_sources_of_the_same_content_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        write_jsonl(tmp_path / f"in/{name}.jsonl", ["one", "two words", "three"] * 9)
    out = shuffled(tmp_path / "in", tmp_path / "o", val=0.3)
    assert tokenmill.verify_deep(out, sample="all").complete


class _NoDocuments:
    """A stream that `prepare --shuffle` has written."""

    documents = 0
    settings = SimpleNamespace(shuffle=True, mixture=None, reshuffle=None)

    def old_places(self, documents: Any) -> Any:
        return documents


def test_keys_beyond_those_that_are_kept_are_compared_where_they_are_read_together() -> None:
    class FewDocuments(_NoDocuments):
        documents = 8

        def number_in_split(self, document: int, token: int) -> tuple[str, int, int]:
            return "train", document, token

        def span(self, document: int) -> tuple[int, int]:
            return document, document + 1

    keys = np.arange(8, dtype=np.uint64) * np.uint64(10)
    swapped = keys[[0, 1, 2, 3, 4, 6, 5, 7]]
    for kept, together, told in ((8, False, [6]), (4, True, [6]), (4, False, [])):
        order = KeyOrder(FewDocuments(), kept=kept)  # type: ignore[arg-type]
        for batch in [np.arange(8)] if together else np.arange(8).reshape(-1, 1):
            order.note(batch, swapped[batch])
        assert [p.document for p in order_problems([order])] == told


def test_a_row_that_a_limit_should_have_taken_is_found(made: Path) -> None:
    if "limited" not in made.name:
        pytest.skip("has no limit")
    order = KeyOrder(_NoDocuments(), kept=0)  # type: ignore[arg-type]
    order.note(np.array([5]), np.array([100], np.uint64))
    order.note_left("a.jsonl", np.array([7, 8]), np.array([99, 101], np.uint64))
    (problem,) = order_problems([order])
    assert (problem.kind, problem.row) == ("order", 7)
