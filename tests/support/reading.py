"""All rows of a file, by its segments."""

from __future__ import annotations

from pathlib import Path

from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.settings import Reading


def read(path: Path, column: str = "text") -> tuple[list[str], list[tuple[int, str]]]:
    """All texts and all bad rows (row in its segment, reason) of a file."""
    source = find_sources([path], column).sources[0]
    texts, bad = [], []
    for segment in segments_of(source, Reading(column)):
        for batch in read_segment(source, segment, Reading(column)):
            assert batch.row_count == batch.texts.documents + len(batch.bad)
            texts += [batch.texts.document(i).decode() for i in range(batch.texts.documents)]
            bad += [(b.row, b.reason) for b in batch.bad]
    return texts, bad
