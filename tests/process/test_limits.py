"""Trial runs and documents dropped for their length: exact, counted, the same on any machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.commands import command, dataset_bytes, interrupted
from support.inputs import write_jsonl, write_parquet
from support.limits import documents, holds  # noqa: F401
from support.text import small_ranges  # noqa: F401

import tokenmill as mill
from tokenmill.errors import BadRowError, UsageError


@pytest.mark.parametrize("limit", [1, 130, 10_000_000])
def test_limit_docs_takes_the_first_documents(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path, limit: int
) -> None:
    expected = documents[:limit]
    outputs = []
    for workers in (0, 1, 3):
        output = tmp_path / str(workers)
        result = mill.prepare(inputs, output, val="none", limit_docs=limit, workers=workers)
        counts = result.manifest.counts
        assert counts["documents"] == len(expected) == counts["rows"]
        assert mill.verify(output).ok
        outputs.append(dataset_bytes(output))
    assert outputs[0] == outputs[1] == outputs[2]
    assert holds(output, expected)


@pytest.mark.parametrize(("val", "limit"), [("docs:3", 1), ("tokens:100", 90_000), ("0.3", 90_000)])
def test_limit_tokens_takes_what_begins_before(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path, limit: int, val: str
) -> None:
    starts = np.cumsum([0] + [len(ids) for ids in documents])[:-1]
    expected = [ids for ids, start in zip(documents, starts, strict=True) if start < limit]
    options = {"limit_tokens": limit, "val": val}
    result = mill.prepare(inputs, tmp_path / "a", workers=2, **options)
    assert result.manifest.counts["documents"] == len(expected)
    assert result.manifest.counts["tokens"] == sum(map(len, expected))
    assert result.manifest.counts["text_bytes"] == sum(
        len(reference.encoding("gpt2").decode(ids[:-1]).encode()) for ids in expected
    )
    if val != "0.3":
        assert holds(tmp_path / "a", expected)
    mill.prepare(inputs, tmp_path / "b", workers=0, **options)
    assert dataset_bytes(tmp_path / "a") == dataset_bytes(tmp_path / "b")


def test_what_is_wrong_behind_the_limit_does_not_matter(tmp_path: Path) -> None:
    """However far ahead a worker is when it meets it."""
    good = write_jsonl(tmp_path / "a.jsonl", ["some words here"] * 50_000)
    bad = tmp_path / "b.jsonl"
    bad.write_text('{"text": "x"}\nnot json\n')
    for limit, fails in ((50_000, False), (50_001, False), (50_002, True)):
        output = tmp_path / str(limit)
        options = {"limit_docs": limit, "val": "none", "workers": 3}
        if fails:
            with pytest.raises(BadRowError, match=r"b\.jsonl: row 1"):
                mill.prepare([good, bad], output, **options)
            continue
        result = mill.prepare([good, bad], output, **options)
        assert result.manifest.counts["documents"] == limit
        assert result.manifest.counts["quarantined"] == 0


def test_bad_and_empty_rows_before_the_limit_are_accounted_for(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["a", None, "", "b", None, "c", "d"], rows=3)
    result = mill.prepare(
        path, tmp_path / "o", val="none", limit_docs=3, drop_empty=True, on_bad_row="quarantine"
    )
    counts = result.manifest.counts
    assert (counts["rows"], counts["documents"]) == (6, 3)
    assert (counts["dropped"], counts["quarantined"]) == (1, 2)
    assert (tmp_path / "o" / "quarantine.jsonl").read_text().count("\n") == 2


def test_a_stopped_trial_run_resumes(large_inputs: list[Path], tmp_path: Path) -> None:
    whole = mill.prepare(large_inputs, tmp_path / "a", limit_tokens="12M")
    assert 12_000_000 <= whole.manifest.counts["tokens"] < 12_200_000
    interrupted(large_inputs, tmp_path / "b", units=2, limit_tokens="12M")
    result = mill.prepare(large_inputs, tmp_path / "b", limit_tokens="12M")
    assert result.run["units_resumed"] == 2
    assert dataset_bytes(tmp_path / "a") == dataset_bytes(tmp_path / "b")


@pytest.mark.usefixtures("small_ranges")
def test_deep_verification_knows_limits_and_giant_documents(
    texts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("@@".join(["a b", " ".join(texts) * 4, "c", "d", "e"]), newline="")
    options = {"text_separator": "@@", "limit_docs": 4, "val": "docs:1"}
    mill.prepare(path, tmp_path / "o", start_method="fork", **options)
    report = mill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    assert report.documents == 4


def test_the_command_says_what_was_left_out(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["one", "two words and more", "x " * 300] * 5)
    run = command(
        "prepare", path, "-o", tmp_path / "o", "--min-tokens", 2, "--max-tokens", 100,
        "--limit-docs", 3, "--val", "none", "--quiet",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "under --min-tokens" in run.stdout
    assert "over --max-tokens" in run.stdout
    assert "limited to the first 3 documents" in run.stdout
    for wrong in ({"limit_docs": 0}, {"min_tokens": "x"}, {"min_tokens": 5, "max_tokens": 4}):
        with pytest.raises(UsageError):
            mill.prepare(path, tmp_path / "x", **wrong)
