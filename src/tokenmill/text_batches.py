"""Pieces of a text to batches: bad UTF-8 set aside, long documents in fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tokenmill.batch import BadRow, Batch, Fragment
from tokenmill.encoders.cuts import BEHIND_BYTES, next_cut
from tokenmill.plan import BATCH_BYTES
from tokenmill.texts import I64, Texts, from_bytes, utf8_fault

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


def in_fragments(batch: Batch) -> Iterator[Batch]:
    """A batch, its long documents in pieces: what holds the ids of one need not hold all of them.

    One that is set aside because it ends its worker is passed over in the same pieces, so that
    the units are cut as before.
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
            yield _rows_of(batch, first, row)._replace(line_count=lines)
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


def _rows_of(batch: Batch, first: int, stop: int) -> Batch:
    low, high = np.searchsorted(batch.rows, [first, stop]).tolist()
    return batch._replace(
        texts=batch.texts.slice(low, high),
        rows=batch.rows[low:high],
        positions=batch.positions[low:high],
        bad=[bad for bad in batch.bad if first <= bad.row < stop],
        first_row=first,
        row_count=stop - first,
    )


def fragments(
    piece: bytes | memoryview, row: int, fragment: Fragment, document: int
) -> Iterator[Batch]:
    """A piece of a document in batches of about BATCH_BYTES, cut where that is exact.

    `document` is the place where the document begins, which decides its split.
    """
    begin = 0
    while True:
        stop = -1
        if len(piece) - begin > LONG_BYTES:
            stop = next_cut(piece, begin + BATCH_BYTES, len(piece))
        final = stop < 0
        part = Fragment(fragment.first and begin == 0, fragment.last and final)
        yield _fragment(piece[begin:] if final else piece[begin:stop], row, part, document)
        if final:
            return
        begin = stop


def _fragment(
    content: bytes | bytearray | memoryview, row: int, fragment: Fragment, document: int
) -> Batch:
    rows, places = np.array([row], np.int64), np.array([document], np.int64)
    texts = from_bytes([content])
    return Batch(texts, rows, places, [], row, int(fragment.last), 0, fragment)


def fragments_of(
    parts: Iterator[bytes],
    row: int,
    document: int,
    limit: Callable[[int], None] = lambda _: None,
) -> Iterator[Batch]:
    """A whole document that comes in parts: the same batches as `fragments` makes of it.

    `limit` is told how much has to be held because there is no place to cut it.
    """
    waiting = bytearray()
    first, no_cut = True, 0
    for part in parts:
        waiting += part
        while len(waiting) > LONG_BYTES:
            stop = next_cut(waiting, max(BATCH_BYTES, no_cut), len(waiting))
            if stop < 0:
                no_cut = len(waiting) - BEHIND_BYTES
                limit(len(waiting))
                break
            yield _fragment(waiting[:stop], row, Fragment(first, False), document)
            del waiting[:stop]
            first, no_cut = False, 0
    yield _fragment(waiting, row, Fragment(first, True), document)


def sizes_of_fragments(parts: Iterator[bytes]) -> list[int]:
    """How long the pieces are in which such a document comes."""
    return [batch.size for batch in fragments_of(parts, 0, 0)]


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
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(stops - starts)))
    yield from split_documents(Texts(np.frombuffer(block, np.uint8), offsets), row, starts + base)


def split_documents(texts: Texts, row: int, positions: I64) -> Iterator[Batch]:
    """Batches of about BATCH_BYTES; where one holds bad UTF-8, its documents one by one."""
    for start, stop in texts.runs(BATCH_BYTES):
        part = texts.slice(start, stop)
        if utf8_fault(part.used()):
            documents = [part.document(i) for i in range(part.documents)]
            yield from whole_documents(documents, row + start, positions[start:stop])
        else:
            rows = np.arange(row + start, row + stop, dtype=np.int64)
            yield Batch(part, rows, positions[start:stop], [], row + start, stop - start, 0)


def whole_documents(documents: list[bytes], row: int, positions: I64) -> Iterator[Batch]:
    faults = [utf8_fault(document) for document in documents]
    keep = np.array([not fault for fault in faults], bool)
    bad = [BadRow(row + i, -1, fault, documents[i]) for i, fault in enumerate(faults) if fault]
    good = from_bytes(
        document for document, fault in zip(documents, faults, strict=True) if not fault
    )
    rows = np.arange(row, row + len(documents), dtype=np.int64)
    yield Batch(good, rows[keep], positions[keep], bad, row, len(documents), 0)
