"""Pieces of a text to batches: bad UTF-8 quarantined, long documents in fragments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenmill.errors import first_line
from tokenmill.inputs.batch import BadRow, Batch, Fragment
from tokenmill.inputs.segments import BATCH_BYTES
from tokenmill.texts import I64, Texts, from_bytes, offsets_of, runs
from tokenmill.tokenizer.encoders.cuts import next_cut

LONG_BYTES = 2 * BATCH_BYTES  # a document longer than this is encoded in pieces
KEPT_BYTES = 1 << 20  # of a long bad document


def whole_letters(data: bytes) -> int:
    """How many bytes up to the last letter that is complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a lead byte: does its letter end here?
            return len(data) if back >= 2 + (byte >= 0xE0) + (byte >= 0xF0) else len(data) - back
        if byte < 0x80:
            return len(data)
    return len(data)


def empty_batch(row: int) -> Batch:
    nothing = np.zeros(0, np.int64)
    return Batch(from_bytes([]), nothing, nothing, [], row, 0, 0)


def bad_batch(bad: BadRow) -> Batch:
    return empty_batch(bad.row)._replace(bad=[bad], row_count=1)


def damaged_batch(first: int, stop: int, part: str, error: BaseException) -> Batch:
    """Rows [first, stop) that cannot be read; the error goes on where they are none, or where the
    fault is the machine's and not the file's."""
    if stop <= first or (isinstance(error, OSError) and error.errno):
        raise error
    reason = f"{part}: cannot be read: {first_line(error)}"
    bad = BadRow(first, -1, reason, b"", rows=stop - first, part=part)
    return empty_batch(first)._replace(bad=[bad], row_count=stop - first)


def in_fragments(batch: Batch) -> Iterator[Batch]:
    """A batch, its long documents in pieces: what holds the ids of one need not hold all of them.

    A document that is quarantined because it ends its worker is passed over in the same pieces,
    so that the units are cut as before.
    """
    long = np.flatnonzero(batch.texts.lengths > LONG_BYTES).tolist()
    good = {int(batch.rows[index]): index for index in long}
    aside = {b.row: b for b in batch.bad if b.fatal and len(b.content) > LONG_BYTES}
    if not (good or aside) or batch.fragment is not None or batch.stands_for >= 0:
        yield batch
        return
    first, lines = batch.first_row, batch.line_count
    for row in [*sorted(good.keys() | aside.keys()), batch.first_row + batch.row_count]:
        if row > first:
            yield batch.between(first, row)._replace(line_count=lines)
            lines = 0
        if row in good:
            # A view: a copy of a document of 300 MB would be 300 MB more.
            piece = memoryview(batch.texts.slice(good[row], good[row] + 1).used())  # type: ignore[arg-type]
            position = int(batch.positions[good[row]])
            for part in fragments(piece, row, Fragment(True, True), position):
                yield part._replace(line_count=lines)
                lines = 0
        elif row in aside:
            # It counts with its first piece: the unit that passes over it first must say so.
            empty = bad_batch(aside[row])
            for part in fragments(aside[row].content, row, Fragment(True, True), 0):
                yield empty._replace(stands_for=part.size, line_count=lines)
                empty, lines = empty_batch(row + 1), 0
        first = row + 1


def fragments(
    piece: bytes | memoryview, row: int, fragment: Fragment, document: int
) -> Iterator[Batch]:
    """A piece of a document in batches of about BATCH_BYTES, cut where that is exact.

    `document` is the place where the document begins, which decides its split.
    """
    begin = 0
    while begin >= 0:
        stop = -1
        if len(piece) - begin > LONG_BYTES:
            stop = next_cut(piece, begin + BATCH_BYTES, len(piece))
        last = fragment.last and stop < 0
        texts = from_bytes([piece[begin:] if stop < 0 else piece[begin:stop]])
        rows, places = np.array([row], np.int64), np.array([document], np.int64)
        part = Fragment(fragment.first and begin == 0, last)
        yield Batch(texts, rows, places, [], row, int(last), 0, part)
        begin = stop


def separated(
    text: bytes, separator: bytes, starts: I64, stops: I64, row: int, base: int
) -> Iterator[Batch]:
    """The documents between separators: these are taken out of the bytes, not the documents apart.

    `base` is the place of the text in its file.
    """
    if len(starts) == 0:
        return
    block = text[int(starts[0]) : int(stops[-1])]
    if len(starts) > 1:
        block = block.replace(separator, b"")
    texts = Texts(np.frombuffer(block, np.uint8), offsets_of(stops - starts))
    yield from batches_of(texts, row, starts + base)


def batches_of(texts: Texts, row: int, positions: I64) -> Iterator[Batch]:
    """Batches of about BATCH_BYTES; documents that are not UTF-8 are among their bad rows."""
    for start, stop in runs(texts.offsets, BATCH_BYTES):
        part = texts.slice(start, stop)
        rows = np.arange(row + start, row + stop, dtype=np.int64)
        batch = Batch(part, rows, positions[start:stop], [], row + start, stop - start, 0)
        yield batch.without(part.faults())


def whole_document(document: bytes, row: int, position: int, may_cut: bool) -> Iterator[Batch]:
    """One document, in pieces if it is long and may be cut."""
    for batch in batches_of(from_bytes([document]), row, np.array([position], np.int64)):
        yield from in_fragments(batch) if may_cut else [batch]
