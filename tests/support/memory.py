"""What must be held whole: measured before it is touched, refused with the memory it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.errors import TooLargeError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.settings import Reading
from tokenmill.system.memory import MemoryShare

SMALL = MemoryShare(350_000_000, 2)  # what a worker has under --memory 1GB


def refusal(path: Path, room: MemoryShare = SMALL, *, may_cut: bool = True) -> str:
    source = find_sources([path], "text").sources[0]
    reading = Reading("text", None, may_cut)
    segments = segments_of(source, reading)
    batches = (b for s in segments for b in read_segment(source, s, reading, room=room))
    with pytest.raises(TooLargeError) as caught:
        list(batches)
    return f"{caught.value.message}\n{caught.value.hint}"


def passes(path: Path, room: MemoryShare, *, may_cut: bool = True) -> int:
    source = find_sources([path], "text").sources[0]
    reading = Reading("text", None, may_cut)
    batches = (
        b for s in segments_of(source, reading) for b in read_segment(source, s, reading, room=room)
    )
    return sum(batch.row_count for batch in batches)
