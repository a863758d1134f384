"""Trial runs and documents dropped for their length: exact, counted, the same on any machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import reference
from support.limits import documents, holds  # noqa: F401
from support.text import small_ranges  # noqa: F401

import tokenmill as mill
from tokenmill.inputs import segments


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
