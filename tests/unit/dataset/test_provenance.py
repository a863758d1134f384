"""`inspect --source --row`: where a row of a source went, or why it did not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import reference
from support.cases import quick
from support.deep import reseal, sources  # noqa: F401
from support.inputs import ROOT, write_jsonl

import tokenmill
from tokenmill.errors import UsageError, VerificationError

GOLDEN = ROOT / "tests" / "golden" / "0.1.0"
RULES: dict[str, dict[str, Any]] = {
    "fraction": {"val": 0.2, "seed": 3},
    "docs": {"val": "docs:17"},
    "shards": {"format": "llmc", "shard_tokens": "9k"},
    "framed": {"format": "mds", "shard_tokens": "9k", "val": "tokens:5k"},
    "dropped": {"val": 0.2, "drop_empty": True, "min_tokens": 5},
    "limited": {"val": "docs:5", "limit_docs": 90},
}


@pytest.fixture(scope="module", params=quick(RULES, "fraction", "shards"), ids=str)
def made(
    request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("provenance") / request.param
    tokenmill.prepare(sources, out, on_bad_row="quarantine", workers=0, **RULES[request.param])
    return out


def test_every_row_is_where_it_went_or_says_why_not(made: Path) -> None:
    """Every row of every source is asked for; each document is found exactly as often as it is
    there, and the states add up to the counts of the manifest."""
    dataset = tokenmill.open_dataset(made)
    found: dict[str, list[int]] = {name: [] for name in dataset}
    for entry in dataset.manifest.sources:
        states: dict[str, int] = {"written": 0, "dropped": 0, "quarantined": 0}
        for row in range(entry["rows"]):
            view = tokenmill.inspect_row(made, source=entry["name"], row=row)
            states[view.state] += 1
            assert bool(view.documents) == (view.state == "written") != bool(view.reason)
            for one in view.documents:
                found[one.split].append(one.document)
                shown = tokenmill.inspect_document(made, document=one.document, split=one.split)
                assert (shown.source, shown.row) == (entry["name"], row)
                for field in ("documents", "first_token", "tokens", "cut", "places"):
                    assert getattr(shown, field) == getattr(one, field)
        assert states["written"] == entry["documents"]
        assert states["dropped"] == entry["dropped"]
        assert states["quarantined"] == entry["quarantined"]
    for name, split in dataset.items():
        assert sorted(found[name]) == list(range(len(split.documents)))


def test_a_document_that_a_border_cuts_is_in_both_splits(made: Path) -> None:
    if "shards" not in made.name:
        pytest.skip("no document is cut by the border of its split")
    first = tokenmill.inspect_document(made, document=0)
    view = tokenmill.inspect_row(made, source=first.source, row=first.row)
    assert [one.split for one in view.documents] == ["val", "train"]
    assert all(one.cut for one in view.documents)


def test_the_file_and_the_tokens_are_those_of_the_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["one", "two words", "and three words"])
    tokenmill.prepare(path, tmp_path / "o", val="none", workers=0)
    view = tokenmill.inspect_row(tmp_path / "o", source="x.jsonl", row=1)
    (one,) = view.documents
    assert (one.split, one.document, one.first_token, one.tokens) == ("train", 1, 2, 3)
    assert one.places == [{"path": "train.bin", "first_token": 2, "tokens": 3}]
    ids = np.fromfile(tmp_path / "o/train.bin", "<u2")[2:5].tolist()
    assert reference.encoding("gpt2").decode(ids[:-1]) == "two words"
    assert repr(view) == "RowView('x.jsonl' row 1: train document 1)"
    assert tokenmill.inspect_row(tmp_path / "o", source="x.jsonl", row=-1).row == 2


def test_a_row_behind_a_limit_was_not_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["one", "two", "three"])
    tokenmill.prepare(path, tmp_path / "o", val="none", limit_docs=2, workers=0)
    view = tokenmill.inspect_row(tmp_path / "o", source="x.jsonl", row=2)
    assert (view.state, view.documents) == ("not read", [])
    assert view.reason == "--limit-docs 2 was reached after 2 rows of it"


def test_the_options_that_dropped_a_row_are_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["one two three", "a", "five six seven"])
    options: dict[str, Any] = {"min_tokens": 2, "where": "text != 'five six seven'"}
    tokenmill.prepare(path, tmp_path / "o", val="none", workers=0, **options)
    for row in (1, 2):
        view = tokenmill.inspect_row(tmp_path / "o", source="x.jsonl", row=row)
        assert view.state == "dropped"
        assert "--min-tokens 2 or --where" in view.reason


def test_an_empty_document_without_a_separator_is_written(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["", ""])
    tokenmill.prepare(path, tmp_path / "o", val="none", eot="none", workers=0)
    view = tokenmill.inspect_row(tmp_path / "o", source="x.jsonl", row=1)
    assert (view.state, view.documents) == ("written", [])
    assert "no tokens" in view.reason


@pytest.fixture
def named(tmp_path: Path) -> Path:
    for name in ("in/a/x.jsonl", "in/b/x.jsonl", "in/b/deep/y.jsonl", "in/z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / name, [name, "same"])
    tokenmill.prepare(tmp_path / "in", tmp_path / "o", val="none", workers=0)
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("a/x.jsonl", "a/x.jsonl"),
        ("y.jsonl", "b/deep/y.jsonl"),
        ("deep/y.jsonl", "b/deep/y.jsonl"),
        ("./deep/../b/x.jsonl", "b/x.jsonl"),
        ("{folder}/in/b/x.jsonl", "b/x.jsonl"),
        ("/another/machine/b/x.jsonl", "b/x.jsonl"),
        ("z.jsonl", "z.jsonl"),
    ],
)
def test_a_source_is_found_by_name_suffix_or_path(named: Path, asked: str, name: str) -> None:
    asked = asked.format(folder=named)
    view = tokenmill.inspect_row(named / "o", source=asked, row=0)
    assert view.source == name
    shown = tokenmill.inspect_document(named / "o", document=view.documents[0].document)
    assert shown.text == f"{named}/in/{name}".removeprefix(f"{named}/")


def test_a_path_is_found_from_the_folder_where_the_caller_is(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(named / "in/b")
    found = tokenmill.inspect_row(named / "o", source=Path("x.jsonl"), row=0)
    assert found.source == "b/x.jsonl"
    os.unlink(named / "o/run.json")  # which knows the paths
    with pytest.raises(UsageError, match="2 sources end with"):
        tokenmill.inspect_row(named / "o", source=Path("x.jsonl"), row=0)


@pytest.mark.parametrize(
    ("asked", "row", "message", "hint"),
    [
        ("x.jsonl", 0, "2 sources end with 'x.jsonl'", "a/x.jsonl, b/x.jsonl"),
        ("q.jsonl", 0, "no source 'q.jsonl'", "the dataset has: a/x.jsonl"),
        (".jsonl", 0, "no source '.jsonl'", "the dataset has"),
        ("z.jsonl", 2, "z.jsonl: no row 2, it has 2 rows", "counted from 0"),
        ("z.jsonl", -3, "z.jsonl: no row -3", "counted from 0"),
    ],
)
def test_a_wrong_source_or_row_is_answered(
    named: Path, asked: str, row: int, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        tokenmill.inspect_row(named / "o", source=asked, row=row)
    assert hint in error.value.hint


def test_an_index_that_lost_a_row_is_called_damaged(named: Path) -> None:
    runs = np.fromfile(named / "o/index/train.runs", "<u8").reshape(-1, 3)
    runs[0, 2] += 1  # its first run begins a row later than the source
    runs.tofile(named / "o/index/train.runs")
    with pytest.raises(VerificationError, match="neither written nor dropped"):
        tokenmill.inspect_row(named / "o", source="a/x.jsonl", row=0)


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_datasets_of_version_0_1_0_say_where_their_rows_went(name: str, tmp_path: Path) -> None:
    if name == "input":
        pytest.skip("what they were made of")
    shutil.copytree(GOLDEN / name, tmp_path / "o")
    dataset = tokenmill.open_dataset(tmp_path / "o")
    for entry in dataset.manifest.sources:
        for row in range(entry["rows"]):
            view = tokenmill.inspect_row(tmp_path / "o", source=entry["name"], row=row)
            assert view.state in ("written", "quarantined")
            for one in view.documents:
                assert dataset[one.split].documents.source(one.document) == (entry["name"], row)


@pytest.mark.parametrize("damage", ["other bytes", "gone"])
def test_a_damaged_quarantine_is_called_damaged(tmp_path: Path, damage: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    path.write_text(path.read_text() + "not JSON\n")
    options = {"on_bad_row": "quarantine", "val": "none", "workers": 0, "quiet": True}
    tokenmill.prepare(path, tmp_path / "o", **options)
    quarantine = tmp_path / "o/quarantine.jsonl"
    assert tokenmill.inspect_row(tmp_path / "o", source="a.jsonl", row=2).state == "quarantined"
    if damage == "gone":
        quarantine.unlink()
    else:
        quarantine.write_bytes(b"x" * quarantine.stat().st_size)
    with pytest.raises(VerificationError, match=r"quarantine\.jsonl"):
        tokenmill.inspect_row(tmp_path / "o", source="a.jsonl", row=2)
