"""Sources cut into segments: by their bytes and by constants, never by workers or memory.

A source is cut when its turn comes, so that a job of a million units has a small plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from tokenmill.inputs.source import Source

# Bump when the rule changes: a journal cut by another rule is then refused, not misread.
CUT_RULE = 3
# A segment is worth some 16 MB of text: a lost one costs a tenth of a second.
SEGMENT_BYTES = 16 << 20
# A segment that turns out longer (compressed file, giant row group) is a chain of units this big.
UNIT_BYTES = 16 << 20
FEW_ROW_GROUPS = 8
# At the end of a byte range, a document that ends within so many bytes is read whole.
TEXT_WINDOW = 4 << 20
# Text given to the encoder at once: its memory grows with the batch (docs/log.md).
BATCH_BYTES = 4 << 20


def cut_rule() -> list[int]:
    """Whatever decides how a source is cut: part of every plan."""
    return [CUT_RULE, SEGMENT_BYTES, UNIT_BYTES, BATCH_BYTES, FEW_ROW_GROUPS, TEXT_WINDOW]


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a source that one worker reads: row groups, record batches or bytes
    [start, stop).

    Of one large row group it may be a range of its text, [text_start, text_stop) in bytes: the
    batches that begin there (-1: to the end); of one large record batch, of its rows. It becomes
    one unit, or a chain of units done in order where its length is known only by reading it.
    """

    source: int
    number: int
    start: int
    stop: int
    size: int  # bytes to read, for the progress bar
    text_start: int = 0
    text_stop: int = -1


class UnitId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Source, segment in it, part of the segment: units sort in the order of their documents."""

    source: int
    segment: int
    part: int

    def __str__(self) -> str:
        return f"{self.source}.{self.segment}.{self.part}"


Span = tuple[int, int, int, int]  # start, stop, text_start, text_stop


def _cut_runs(sizes: Sequence[int], large: Callable[[int], list[Span]]) -> list[Span]:
    """Runs of row groups or record batches worth SEGMENT_BYTES together; a large one alone."""
    spans: list[Span] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if size >= 2 * SEGMENT_BYTES:
            if start < index:
                spans.append((start, index, 0, -1))
            spans.extend(large(index))
            start, total = index + 1, 0
            continue
        total += size
        if total >= SEGMENT_BYTES:
            spans.append((start, index + 1, 0, -1))
            start, total = index + 1, 0
    if start < len(sizes):
        spans.append((start, len(sizes), 0, -1))
    return spans


def cut_row_groups(sizes: Sequence[int]) -> list[Span]:
    """In a file of few row groups, a large one is cut into up to four ranges, or most cores would
    idle. A range is found by decoding its row group from the start, so more would cost more than
    they gain.
    """

    def large(group: int) -> list[Span]:
        if len(sizes) > FEW_ROW_GROUPS:
            return [(group, group + 1, 0, -1)]
        count = min(4, sizes[group] // SEGMENT_BYTES)
        step = -(-sizes[group] // count)
        firsts = [(group, group + 1, i * step, (i + 1) * step) for i in range(count - 1)]
        return [*firsts, (group, group + 1, (count - 1) * step, -1)]

    return _cut_runs(sizes, large)


def cut_record_batches(
    sizes: Sequence[int], rows: Sequence[int], texts: Mapping[int, int]
) -> list[Span]:
    """One that can be read in parts (`texts`: its bytes of text) is cut into ranges of its rows."""

    def large(batch: int) -> list[Span]:
        step = -(-rows[batch] // max(1, texts.get(batch, 0) // SEGMENT_BYTES)) or 1
        firsts = range(0, max(1, rows[batch]), step)
        ranges = [(batch, batch + 1, first, first + step) for first in firsts[:-1]]
        return [*ranges, (batch, batch + 1, firsts[-1], -1)]

    return _cut_runs(sizes, large)


def byte_segments(source: Source) -> Iterator[Segment]:
    """Equal byte ranges; a line belongs to the range in which it starts.

    A compressed file can only be read from its start. An empty text file is an empty document.
    """
    step = source.size if source.compression else SEGMENT_BYTES
    for number, start in enumerate(range(0, source.size or 1, step)):
        stop = min(source.size, start + step)
        yield Segment(source.number, number, start, stop, stop - start)
