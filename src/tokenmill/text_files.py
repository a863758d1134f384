"""Text files to documents: split at a separator, or whole; giant ones by byte ranges.

A plain file is read by many workers, each a byte range. Where a range ends, the document that
stands there is read to its end by the range it begins in; unless it goes on for long: then it is
cut at a place where encoding the pieces apart gives the ids of the whole (encoders/cuts.py), and
its pieces are fragments of one document. Bytes are kept as they are, a byte order mark included.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.batch import Alive, BadRow, Batch, Fragment
from tokenmill.config import Reading
from tokenmill.encoders.cuts import BEHIND_BYTES, LETTER_BYTES, next_cut
from tokenmill.errors import SourceError
from tokenmill.memory import NO_LIMIT, READ_FACTOR, Room
from tokenmill.plan import BATCH_BYTES, SEGMENT_BYTES, TEXT_WINDOW, Segment
from tokenmill.separators import BLOCK_BYTES, Separator, separator_of
from tokenmill.sources import Source
from tokenmill.streams import open_stream
from tokenmill.text_batches import (
    KEPT_BYTES,
    LONG_BYTES,
    bad_batch,
    fragments,
    separated,
    whole_documents,
    whole_letters,
)
from tokenmill.texts import I64, longest_word, utf8_fault

RANGE_BYTES = SEGMENT_BYTES + 2 * TEXT_WINDOW  # longer only where a document is not cut
SCAN_BYTES = 1 << 20  # small enough to stay in the cache between reading and checking


class Boundary(NamedTuple):
    position: int
    at_document: bool  # else a document is cut here


class LongDocument(NamedTuple):
    """One that is cut: its extent, and what is wrong with it ('' nothing)."""

    start: int
    stop: int
    fault: str


class _Known:
    """What this process has learned of a file while reading ranges of it."""

    def __init__(self) -> None:
        self.long: list[LongDocument] = []
        self.no_cut = (0, 0)  # no cut in [first, second)


@functools.lru_cache(maxsize=4)
def _known(path: str, mtime_ns: int, reading: Reading) -> _Known:
    return _Known()


def read_text(
    source: Source, segment: Segment, reading: Reading, alive: Alive, room: Room = NO_LIMIT
) -> Iterator[Batch]:
    room.leave()
    try:
        if source.compression:
            yield from _Stream(source, reading, alive, room).batches()
        else:
            with _Range(source, segment, reading, alive, room) as text:
                yield from text.batches()
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise SourceError(
            f"{source.name}: cannot be read: {error}",
            hint="the file is damaged or cut short: fetch it again and compare its size",
        ) from None


def _take_uncut(room: Room, where: str, size: int, blocks: Iterator[bytes]) -> None:
    """Room for so much text that is read, and encoded, as one document."""
    need = READ_FACTOR * size + room.whole_need(size, longest_word(blocks))
    what = f"a document, or a part of one, of {size:,} bytes that may not be cut for encoding"
    room.take(need, where, what, held=READ_FACTOR * size)


def _watched(blocks: Iterator[bytes], alive: Alive) -> Iterator[bytes]:
    for block in blocks:
        alive()
        yield block


def documents_before(source: Source, segment: Segment, reading: Reading) -> int:
    """How many documents end before a segment's first: for error messages only."""
    if source.compression or reading.separator is None or segment.start == 0:
        return 0
    with _Range(source, segment, reading, lambda: None) as text:
        assert text.separator is not None
        return text.separator.count(text.read, text.boundary(segment.start).position)


def long_document(source: Source, segment: Segment, reading: Reading, position: int) -> bytes:
    """All of a document of a plain file that is cut, by a place in it."""
    with _Range(source, segment, reading, lambda: None) as text:
        document = text.document_at(position)
        return text.read(document.start, document.stop)


# --- a byte range of a plain file ------------------------------------------------------------


class _Range:
    def __init__(
        self,
        source: Source,
        segment: Segment,
        reading: Reading,
        alive: Alive,
        room: Room = NO_LIMIT,
    ) -> None:
        self.source, self.segment, self.reading, self.alive = source, segment, reading, alive
        self.room = room
        self.separator = separator_of(reading.separator)
        self.known = _known(source.path, source.mtime_ns, reading)
        self.size = source.size

    def __enter__(self) -> _Range:
        self.fd = os.open(self.source.path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, start: int, stop: int) -> bytes:
        pieces = []
        while start < stop:
            piece = os.pread(self.fd, stop - start, start)
            if not piece:
                raise EOFError("it is shorter than it was")
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def batches(self) -> Iterator[Batch]:
        begin, end = self.boundary(self.segment.start), self.boundary(self.segment.stop)
        if begin.position < end.position:
            size = end.position - begin.position
            if size > RANGE_BYTES:
                where = f"{self.source.name}: from byte {begin.position} on"
                steps = range(begin.position, end.position, BLOCK_BYTES)
                blocks = (self.read(at, min(at + BLOCK_BYTES, end.position)) for at in steps)
                _take_uncut(self.room, where, size, _watched(blocks, self.alive))
            data = self.read(begin.position, end.position)
            yield from self._documents(data, begin, end)
        elif self.size == 0 and self.separator is None:
            yield from whole_documents([b""], 0, np.zeros(1, np.int64))

    # --- where a range begins and ends -------------------------------------------------------

    def boundary(self, position: int) -> Boundary:
        """The first place at `position` or later where a range may end."""
        if not 0 < position < self.size:
            return Boundary(max(0, min(position, self.size)), True)
        if self.separator is None:
            cut = self._next_cut(position, self.size) if self.reading.may_cut else -1
            return Boundary(cut, False) if cut >= 0 else Boundary(self.size, True)
        separator = self.separator
        start = separator.sync(self.read, position)
        reach = min(self.size, position + TEXT_WINDOW) if self.reading.may_cut else self.size
        end = separator.next_end(self.read, start, position, reach)
        if end >= 0 or reach == self.size:
            return Boundary(end if end >= 0 else self.size, True)
        # A long document: at the first cut, unless it ends before.
        while True:
            text_stop = end - separator.length
            if end < 0:  # one may begin before `reach` and end behind it
                text_stop = reach if reach == self.size else reach - separator.length + 1
            cut = self._next_cut(position, text_stop)
            if cut >= 0:
                return Boundary(cut, False)
            if end >= 0 or reach == self.size:
                return Boundary(end if end >= 0 else self.size, True)
            self.alive()
            start = max(start, reach - separator.length + 1)
            reach = min(self.size, reach + BLOCK_BYTES)
            end = separator.next_end(self.read, start, position, reach)

    def _next_cut(self, position: int, stop: int) -> int:
        first, after = self.known.no_cut
        if not first <= position < after:
            first = after = position
        while after < stop:
            base = max(0, after - LETTER_BYTES)
            data = self.read(base, min(stop, after + BLOCK_BYTES))
            cut = next_cut(data, after - base, len(data))
            if cut >= 0:
                return base + cut
            # The last bytes again with the next block: a cut is seen by what stands behind it.
            reached = base + len(data) - BEHIND_BYTES
            if reached <= after:
                return -1
            after = reached
            self.known.no_cut = (first, after)
            self.alive()
        return -1

    # --- what stands between -----------------------------------------------------------------

    def _documents(self, data: bytes, begin: Boundary, end: Boundary) -> Iterator[Batch]:
        base, start, row = begin.position, 0, 0
        separator = self.separator
        for found in separator.blocks(data) if separator else ():
            if separator is None or len(found) == 0:
                continue
            starts = np.concatenate((np.array([start], np.int64), found[:-1] + separator.length))
            stops = found
            if start == 0 and not begin.at_document:
                piece = data[: int(stops[0])]
                yield from self._fragments(piece, base, 0, Fragment(False, True))
                row, starts, stops = 1, starts[1:], stops[1:]
            yield from self._whole(data, base, starts, stops, row)
            row += len(starts)
            start = int(found[-1]) + separator.length
        if 0 < start == len(data) and end.at_document:
            return  # a separator at the end begins no document
        first = begin.at_document or start > 0
        if first and end.at_document:
            rest = np.array([[start], [len(data)]], np.int64)
            yield from self._whole(data, base, rest[0], rest[1], row)
        else:
            fragment = Fragment(first, end.at_document)
            yield from self._fragments(data[start:], base + start, row, fragment)

    def _whole(self, data: bytes, base: int, starts: I64, stops: I64, row: int) -> Iterator[Batch]:
        done, separator = 0, self.reading.separator or b""
        for index in np.flatnonzero(stops - starts > LONG_BYTES).tolist():
            yield from separated(
                data, separator, starts[done:index], stops[done:index], row + done, base
            )
            piece = data[starts[index] : stops[index]]
            position = base + int(starts[index])
            if self.reading.may_cut and not utf8_fault(piece):
                cut = Fragment(True, True)
                yield from fragments(piece, row + index, cut, position)
            else:
                yield from whole_documents([piece], row + index, np.array([position], np.int64))
            done = index + 1
        yield from separated(data, separator, starts[done:], stops[done:], row + done, base)

    def _fragments(
        self, piece: bytes, position: int, row: int, fragment: Fragment
    ) -> Iterator[Batch]:
        """Pieces of a document that reaches out of this range, if all of it is good text."""
        document = self.document_at(position)
        if not document.fault:
            yield from fragments(piece, row, fragment, document.start)
        elif fragment.last:
            yield bad_batch(self._bad_row(document, row))

    def document_at(self, position: int) -> LongDocument:
        for known in self.known.long:
            if known.start <= position < known.stop:
                return known
        start, stop = 0, self.size
        if self.separator is not None:
            start = self.separator.last_end(self.read, position)
            free = self.separator.sync(self.read, position)
            end = self.separator.next_end(self.read, max(start, free), position + 1, self.size)
            stop = end - self.separator.length if end >= 0 else self.size
        found = LongDocument(start, stop, self._fault(start, stop))
        self.known.long.append(found)
        return found

    def _fault(self, start: int, stop: int) -> str:
        at = start
        while at < stop:
            data = self.read(at, min(stop, at + SCAN_BYTES))
            if at + len(data) < stop:
                data = data[: whole_letters(data)]
            fault = utf8_fault(data, at - start)
            if fault:
                return fault
            at += len(data)
            self.alive()
        return ""

    def _bad_row(self, document: LongDocument, row: int) -> BadRow:
        digest = hashlib.sha256()
        for at in range(document.start, document.stop, BLOCK_BYTES):
            digest.update(self.read(at, min(document.stop, at + BLOCK_BYTES)))
        kept = self.read(document.start, min(document.stop, document.start + KEPT_BYTES))
        length = document.stop - document.start
        return BadRow(row, -1, document.fault, kept, length, digest.hexdigest())


# --- a compressed file -----------------------------------------------------------------------


class _Stream:
    """One chain from the first byte to the last: where a document ends only reading tells."""

    def __init__(self, source: Source, reading: Reading, alive: Alive, room: Room) -> None:
        self.source, self.reading, self.alive, self.room = source, reading, alive, room
        self.separator = separator_of(reading.separator)
        self.row = 0
        self.base = 0  # place of the first byte of `text`
        self.text = bytearray()  # read and not yet yielded
        self.document = 0  # place where the first document in it begins
        self.begun = False  # a piece of that document has been yielded
        self.no_cut = 0  # before this place of `text` there is no cut, behind BATCH_BYTES
        self.long: dict[int, str] | None = None  # long documents, by place, and their faults

    def batches(self) -> Iterator[Batch]:
        with open_stream(self.source.path, self.source.compression) as stream:
            size = self.separator.block_bytes if self.separator else BLOCK_BYTES
            while block := stream.read(size):
                yield from self._add(block)
        if self.text or self.begun or self.separator is None:
            yield from self._end(bytes(self.text))

    def _add(self, block: bytes) -> Iterator[Batch]:
        self.alive()
        overlap = self.separator.length - 1 if self.separator else 0
        searched = max(0, len(self.text) - overlap)
        self.text += block
        if self.separator is not None:
            found = self.separator.find_all(self.text, searched)
            if len(found):
                yield from self._complete(found, self.separator.length)
        if self.reading.may_cut and len(self.text) > LONG_BYTES:
            yield from self._cut_off()
        self._take_room()

    def _take_room(self) -> None:
        """For the text whose end, or a place to cut it, has not come; by how long it will be."""
        held = len(self.text)
        if held > LONG_BYTES and held * READ_FACTOR + self.room.whole_need(held) > self.room.most(
            1
        ):
            where = f"{self.source.name}: from byte {self.base} of the decompressed text on"
            for start, _, _, length, _ in _scan(self.source, self.separator, self.alive):
                if start == self.document:
                    stop = max(self.base + held, start + length)
                    blocks = _watched(_decompressed(self.source, self.base, stop), self.alive)
                    _take_uncut(self.room, where, stop - self.base, blocks)

    def _complete(self, found: I64, length: int) -> Iterator[Batch]:
        """The documents that end in what has been read."""
        text, base = bytes(self.text), self.base
        yield from self._end(text[: int(found[0])])
        starts, stops = found[:-1] + length, found[1:]
        self.base = base + int(found[-1]) + length
        self.no_cut = 0
        del self.text[: int(found[-1]) + length]
        self.document = self.base
        yield from separated(text, self.reading.separator or b"", starts, stops, self.row, base)
        self.row += len(starts)

    def _end(self, text: bytes) -> Iterator[Batch]:
        """The document at hand ends here."""
        start = self.document
        if self.begun:
            fault = self._faults()[start]
            if fault:
                yield bad_batch(self._bad_row(start, fault))
            else:
                cut = Fragment(False, True)
                yield from fragments(text, self.row, cut, start)
        elif len(text) > LONG_BYTES and self.reading.may_cut and not utf8_fault(text):
            yield from fragments(text, self.row, Fragment(True, True), start)
        else:
            yield from whole_documents([text], self.row, np.array([start], np.int64))
        self.row += 1
        self.begun = False

    def _cut_off(self) -> Iterator[Batch]:
        """Yield a piece of a document whose end is not in sight."""
        overlap = self.separator.length - 1 if self.separator else 0
        last = -1
        position, stop = max(BATCH_BYTES, self.no_cut), len(self.text) - overlap
        while position < stop:
            cut = next_cut(self.text, position, stop)
            if cut < 0:
                break
            last, position = cut, cut + BATCH_BYTES
        if last < 0:
            self.no_cut = max(0, stop - BEHIND_BYTES)
            return
        self.no_cut = 0
        piece = bytes(self.text[:last])
        del self.text[:last]
        if not self._faults()[self.document]:
            cut_piece = Fragment(not self.begun, False)
            yield from fragments(piece, self.row, cut_piece, self.document)
        self.base, self.begun = self.base + last, True

    def _faults(self) -> dict[int, str]:
        """All documents that may be cut, read ahead once: is every byte of them good text?"""
        if self.long is None:
            self.long = {}
            for start, fault, _, length, _ in _scan(self.source, self.separator, self.alive):
                if length > BATCH_BYTES:
                    self.long[start] = fault
        return self.long

    def _bad_row(self, wanted: int, fault: str) -> BadRow:
        for start, _, kept, length, digest in _scan(self.source, self.separator, self.alive):
            if start == wanted:
                return BadRow(self.row, -1, fault, kept, length, digest)
        raise EOFError("it is shorter than it was")


def _decompressed(source: Source, start: int, stop: int) -> Iterator[bytes]:
    """[start, stop) of a compressed file's text."""
    at = 0
    with open_stream(source.path, source.compression) as stream:
        while at < stop and (block := stream.read(BLOCK_BYTES)):
            yield block[max(0, start - at) : stop - at]
            at += len(block)


def _scan(
    source: Source, separator: Separator | None, alive: Alive
) -> Iterator[tuple[int, str, bytes, int, str]]:
    """Start, fault, first bytes, length and SHA-256 of every document of a compressed file."""
    state = _Scanned(0)
    rest = b""
    with open_stream(source.path, source.compression) as stream:
        while block := stream.read(BLOCK_BYTES):
            alive()
            text = rest + block
            keep, begin = 0, 0
            if separator is not None:
                for hit in separator.find_all(text).tolist():
                    state.add(text[begin:hit])
                    yield state.finish()
                    begin = hit + separator.length
                    state = _Scanned(state.start + state.length + separator.length)
                keep = separator.length - 1
            stop = max(begin, len(text) - keep)
            state.add(text[begin:stop])
            rest = text[stop:]
    state.add(rest)
    yield state.finish()


class _Scanned:
    def __init__(self, start: int) -> None:
        self.start, self.length, self.fault, self.kept, self.tail = start, 0, "", b"", b""
        self.digest = hashlib.sha256()

    def add(self, text: bytes) -> None:
        self.digest.update(text)
        if len(self.kept) < KEPT_BYTES:
            self.kept += text[: KEPT_BYTES - len(self.kept)]
        data = self.tail + text
        stop = whole_letters(data)
        self.fault = self.fault or utf8_fault(data[:stop], self.length - len(self.tail))
        self.tail = data[stop:]
        self.length += len(text)

    def finish(self) -> tuple[int, str, bytes, int, str]:
        fault = self.fault or utf8_fault(self.tail, self.length - len(self.tail))
        return self.start, fault, self.kept, self.length, self.digest.hexdigest()
