"""Text files to documents: split at a separator, or whole; giant ones by byte ranges.

A plain file is read by many workers, each a byte range. Where a range ends, the document that
stands there is read to its end by the range it begins in; unless it goes on for long: then it is
cut at a place where encoding the pieces apart gives the ids of the whole
(`tokenizer/encoders/cuts.py`), and its pieces are fragments of one document. Bytes are
kept as they are, a byte order mark included.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenmill.errors import SourceError
from tokenmill.inputs.batch import BadRow, Batch, Fragment
from tokenmill.inputs.kind import InputKind, ReadRequest
from tokenmill.inputs.readers.decompress import (
    DAMAGED_HINT,
    READ_FAULTS,
    decompressed_range,
    open_stream,
    read_exactly,
)
from tokenmill.inputs.readers.fragments import (
    KEPT_BYTES,
    LONG_BYTES,
    bad_batch,
    fragments,
    separated,
    whole_document,
    whole_letters,
)
from tokenmill.inputs.readers.separators import BLOCK_BYTES, Separator, separator_of
from tokenmill.inputs.segments import BATCH_BYTES, SEGMENT_BYTES, TEXT_WINDOW, Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.memory import READ_FACTOR, MemoryShare
from tokenmill.texts import I64, longest_word, utf8_fault
from tokenmill.tokenizer.encoders.cuts import BEHIND_BYTES, LETTER_BYTES, next_cut

RANGE_BYTES = SEGMENT_BYTES + 2 * TEXT_WINDOW  # longer only where a document is not cut
SCAN_BYTES = 1 << 20  # small enough to stay in the cache between reading and checking


class Boundary(NamedTuple):
    position: int
    at_document: bool  # else a document is cut here


class LongDocument(NamedTuple):
    """A document that is encoded in pieces."""

    start: int
    stop: int
    fault: str  # what is wrong with its text; '' where nothing is

    def bad_row(self, row: int, blocks: Iterable[bytes]) -> BadRow:
        """Its beginning, its length and its hash; `blocks` are its text."""
        kept, digest = b"", hashlib.sha256()
        for block in blocks:
            kept += block[: KEPT_BYTES - len(kept)]
            digest.update(block)
        return BadRow(row, -1, self.fault, kept, self.stop - self.start, digest.hexdigest())


class _FileKnowledge:
    """What this process has learned about a file while reading ranges of it."""

    def __init__(self) -> None:
        self.long: list[LongDocument] = []
        self.no_cut = (0, 0)  # no cut in [first, second)


@functools.lru_cache(maxsize=4)
def _known(path: str, mtime_ns: int, reading: Reading) -> _FileKnowledge:
    return _FileKnowledge()


class Text(InputKind):
    name = "text"
    title = "text"
    extensions = (".txt",)
    typical = (1, 0.22)  # at 4.6 bytes per token
    may_be_empty = True  # an empty document
    has_separators = True
    cuts_documents = True

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        request.room.leave()
        try:
            if request.source.compression:
                yield from _CompressedText(request).batches()
            else:
                with _Range(request) as text:
                    yield from text.batches()
        except READ_FAULTS as error:
            raise SourceError(
                f"{request.source.name}: cannot be read: {error}", hint=DAMAGED_HINT
            ) from None

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        if source.compression or reading.separator is None or segment.start == 0:
            return f"document {bad.row}"
        with _Range(ReadRequest(source, segment, reading)) as text:
            assert text.separator is not None
            first = text.boundary(segment.start).position
            return f"document {bad.row + text.separator.count(text.read, first)}"


TEXT = Text()


def _take_uncut(room: MemoryShare, where: str, size: int, blocks: Iterator[bytes]) -> None:
    """Room for so much text that is read, and encoded, as one document."""
    need = READ_FACTOR * size + room.whole_need(size, longest_word(blocks))
    what = f"a document, or a part of one, of {size:,} bytes that may not be cut for encoding"
    room.take(need, where, what, held=READ_FACTOR * size)


def long_document(source: Source, segment: Segment, reading: Reading, position: int) -> bytes:
    """All of a document of a plain file that is cut, by a place in it."""
    with _Range(ReadRequest(source, segment, reading)) as text:
        document = text.document_at(position)
        return text.read(document.start, document.stop)


# --- a byte range of a plain file ------------------------------------------------------------


class _Range:
    def __init__(self, request: ReadRequest) -> None:
        self.source, self.segment, self.reading, _, self.alive, self.room, _ = request
        self.separator = separator_of(self.reading.separator)
        self.known = _known(self.source.path, self.source.mtime_ns, self.reading)
        self.size = self.source.size

    def __enter__(self) -> _Range:
        fd = os.open(self.source.path, os.O_RDONLY | os.O_CLOEXEC)
        self.read, self.close = partial(read_exactly, fd), partial(os.close, fd)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def batches(self) -> Iterator[Batch]:
        begin, end = self.boundary(self.segment.start), self.boundary(self.segment.stop)
        size = end.position - begin.position
        if size > 0:
            if size > RANGE_BYTES:
                where = f"{self.source.name}: from byte {begin.position} on"
                _take_uncut(self.room, where, size, self._blocks(begin.position, end.position))
            yield from self._documents(self.read(begin.position, end.position), begin, end)
        elif self.size == 0 and self.separator is None:
            yield from whole_document(b"", 0, 0, False)

    def _blocks(self, start: int, stop: int) -> Iterator[bytes]:
        for at in range(start, stop, SCAN_BYTES):
            self.alive()
            yield self.read(at, min(stop, at + SCAN_BYTES))

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
        long = False
        while True:
            end = separator.next_end(self.read, start, position, reach)
            ended = end >= 0 or reach == self.size
            if long or not ended:  # at the first cut, unless the document ends before
                text_stop = end - separator.length if end >= 0 else reach
                if not ended:  # a separator may begin before `reach` and end behind it
                    text_stop = reach - separator.length + 1
                cut = self._next_cut(position, text_stop)
                if cut >= 0:
                    return Boundary(cut, False)
            if ended:
                return Boundary(end if end >= 0 else self.size, True)
            long = True
            self.alive()
            start = max(start, reach - separator.length + 1)
            reach = min(self.size, reach + BLOCK_BYTES)

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

    # --- the text between -----------------------------------------------------------------

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
            start = int(starts[index])
            piece = data[start : stops[index]]
            yield from whole_document(piece, row + index, base + start, self.reading.may_cut)
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
            yield bad_batch(document.bad_row(row, self._blocks(document.start, document.stop)))

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
        found = next(_documents_in(self._blocks(start, stop), None, start))
        self.known.long.append(found)
        return found


# --- a compressed file -----------------------------------------------------------------------


class _CompressedText:
    """One chain from the first byte to the last: where a document ends only reading tells."""

    def __init__(self, request: ReadRequest) -> None:
        self.source, _, self.reading, _, self.alive, self.room, _ = request
        self.separator = separator_of(self.reading.separator)
        self.row = 0
        self.base = 0  # place of the first byte of `text`
        self.text = bytearray()  # read and not yet yielded
        self.document = 0  # place where the first document in it begins
        self.begun = False  # a piece of that document has been yielded
        self.no_cut = 0  # before this place of `text` there is no cut, behind BATCH_BYTES

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
        need = READ_FACTOR * held + self.room.whole_need(held)
        if held > LONG_BYTES and need > self.room.most(1):
            where = f"{self.source.name}: from byte {self.base} of the decompressed text on"
            stop = max(self.base + held, self.long[self.document].stop)
            _take_uncut(self.room, where, stop - self.base, self._blocks(self.base, stop))

    def _blocks(self, start: int, stop: int) -> Iterator[bytes]:
        return decompressed_range(self.source, start, stop, self.alive)

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
            document = self.long[start]
            if document.fault:
                blocks = self._blocks(document.start, document.stop)
                yield bad_batch(document.bad_row(self.row, blocks))
            else:
                yield from fragments(text, self.row, Fragment(False, True), start)
        else:
            yield from whole_document(text, self.row, start, self.reading.may_cut)
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
        if not self.long[self.document].fault:
            cut_piece = Fragment(not self.begun, False)
            yield from fragments(piece, self.row, cut_piece, self.document)
        self.base, self.begun = self.base + last, True

    @functools.cached_property
    def long(self) -> dict[int, LongDocument]:
        """The documents that may be cut, by their start. For these the file is read ahead once."""
        found = _documents_in(self._all_blocks(), self.separator)
        return {one.start: one for one in found if one.stop - one.start > BATCH_BYTES}

    def _all_blocks(self) -> Iterator[bytes]:
        with open_stream(self.source.path, self.source.compression) as stream:
            while block := stream.read(BLOCK_BYTES):
                self.alive()
                yield block


def _documents_in(
    blocks: Iterator[bytes], separator: Separator | None, start: int = 0
) -> Iterator[LongDocument]:
    """Every document of a text that begins at `start`, long or short."""
    scan = _DocumentScan(start)
    rest = b""
    keep = separator.length - 1 if separator else 0
    for block in blocks:
        text, begin = rest + block, 0
        for hit in separator.find_all(text).tolist() if separator else ():
            scan.add(text[begin:hit])
            yield scan.finish()
            begin = hit + keep + 1
            scan = _DocumentScan(scan.stop + keep + 1)
        stop = max(begin, len(text) - keep)
        scan.add(text[begin:stop])
        rest = text[stop:]
    scan.add(rest)
    yield scan.finish()


class _DocumentScan:
    """A document that comes in blocks: how long it is, and whether it is good text."""

    def __init__(self, start: int) -> None:
        self.start = self.stop = start
        self.fault = ""
        self._tail = b""  # the beginning of a letter

    def add(self, text: bytes) -> None:
        data = self._tail + text
        letters = whole_letters(data)
        at = self.stop - self.start - len(self._tail)
        self.fault = self.fault or utf8_fault(data[:letters], at)
        self._tail = data[letters:]
        self.stop += len(text)

    def finish(self) -> LongDocument:
        at = self.stop - self.start - len(self._tail)
        return LongDocument(self.start, self.stop, self.fault or utf8_fault(self._tail, at))
