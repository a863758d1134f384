"""Trial runs and documents dropped for their length: exact, counted, the same on any machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.commands import command, dataset_bytes, interrupted
from support.inputs import write_jsonl, write_parquet
from support.text import small_ranges  # noqa: F401

import tokenmill as mill
from tokenmill.errors import BadRowError, UsageError
from tokenmill.inputs import segments


@pytest.fixture(scope="module")
def documents(inputs: list[Path]) -> list[list[int]]:
    """What the slow twin makes of the inputs."""
    return [ids for _, _, ids in reference.documents(inputs, "gpt2", "append")]


def holds(output: Path, documents: list[list[int]]) -> bool:
    """Whether a dataset is these documents, val before train."""
    dataset = mill.open_dataset(output)
    found = [dataset[name].tokens[:] for name in ("val", "train") if name in dataset]
    return np.array_equal(np.concatenate(found), np.concatenate(documents))


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
def test_a_giant_text_within_limits(texts: list[str], tmp_path: Path) -> None:
    """A document that is cut for encoding is taken whole if it begins before the limit."""
    piece = "a " + " ".join(texts) + " z"
    giant = " ".join([piece] * 4)
    rows = ["first words", giant, "third", "fourth"]
    path = tmp_path / "a.txt"
    path.write_text("@@".join(rows), newline="")
    encode = reference.encoding("gpt2").encode_ordinary
    ids = [[*encode(row), 50256] for row in rows if row is not giant]
    # Between two words the pieces are encoded each for itself.
    ids.insert(1, [*encode(piece), *(encode(" " + piece) * 3), 50256])
    assert len(giant.encode()) > 2 * segments.SEGMENT_BYTES
    for limits, count in (
        ({"limit_docs": 1}, 1), ({"limit_docs": 2}, 2), ({"limit_tokens": 3}, 1),
        ({"limit_tokens": len(ids[0]) + len(ids[1]) + 1}, 3),
    ):  # fmt: skip
        output = tmp_path / f"{next(iter(limits))}{count}{len(str(limits))}"
        mill.prepare(path, output, text_separator="@@", val="none", start_method="fork", **limits)
        assert holds(output, ids[:count]), limits


def test_documents_are_dropped_for_their_length(
    inputs: list[Path], documents: list[list[int]], tmp_path: Path
) -> None:
    lengths = [len(ids) - 1 for ids in documents]
    for least, most, drop_empty in ((0, 0, True), (5, 0, False), (0, 500, False), (3, 900, True)):
        options: dict[str, object] = {"drop_empty": drop_empty}
        if least:
            options["min_tokens"] = least
        if most:
            options["max_tokens"] = most
        output = tmp_path / f"{least}-{most}"
        result = mill.prepare(inputs, output, val="none", workers=2, **options)
        kept = [
            ids
            for ids, length in zip(documents, lengths, strict=True)
            if max(least, int(drop_empty)) <= length <= (most or length)
        ]
        counts = result.manifest.counts
        assert holds(output, kept)
        assert counts["dropped"] == len(documents) - len(kept)
        assert counts["too_long"] == (sum(n > most for n in lengths) if most else 0)
        short = [n for n in lengths if n < least and (n or not drop_empty)]
        assert counts["too_short"] == len(short)
        assert counts["empty"] == lengths.count(0)
        report = mill.verify_deep(output, sample="all")
        assert report.ok, report.problems
        assert report.complete


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
