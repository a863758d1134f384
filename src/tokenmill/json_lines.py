"""JSON lines to batches: most lines in blocks, a very long one by itself and never whole.

A line longer than LONG_LINE_BYTES is read twice: once to know what it is (json_condensed.py), and
once more, by a second reader of the file that never goes back, for its text.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import msgspec
import numpy as np

from tokenmill.batch import Alive, Aside, BadRow, Batch, nobody_watches, set_aside
from tokenmill.config import Reading
from tokenmill.errors import SourceError
from tokenmill.fields import row_fault, text_decoder
from tokenmill.json_condensed import HEAD_BYTES, PART_BYTES, Condensed, LongString, decode_string
from tokenmill.memory import NO_LIMIT, READ_FACTOR, Room
from tokenmill.plan import BATCH_BYTES, Segment
from tokenmill.sources import BOM, Source
from tokenmill.streams import open_stream
from tokenmill.text_batches import (
    KEPT_BYTES,
    LONG_BYTES,
    bad_batch,
    empty_batch,
    fragments_of,
    sizes_of_fragments,
)
from tokenmill.texts import Texts, from_bytes, longest_word

LONG_LINE_BYTES = LONG_BYTES
STRUCTURE_FACTOR = 6  # of a long line, what is not inside long strings: held, and decoded
Parts = Callable[[], Iterator[bytes]]  # of one text, from its beginning
FAULTS = (msgspec.DecodeError, UnicodeError, RecursionError)


def read_lines(
    source: Source,
    segment: Segment,
    reading: Reading,
    aside: Aside,
    alive: Alive,
    room: Room = NO_LIMIT,
) -> Iterator[Batch]:
    """The documents of the lines that start in a segment; long ones in pieces if `may_cut`."""
    lines = _Lines(source, segment, reading, aside, alive, room)
    try:
        yield from lines.batches()
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        since = "of this file" if segment.start == 0 else f"from byte {segment.start} on"
        raise SourceError(
            f"{source.name}: cannot be read after row {lines.row} (line {lines.line + 1}) "
            f"{since}: {error}",
            hint="the file is damaged or cut short: fetch it again and compare its size",
        ) from None


class _Lines:
    def __init__(
        self,
        source: Source,
        segment: Segment,
        reading: Reading,
        aside: Aside,
        alive: Alive,
        room: Room,
    ) -> None:
        self.source, self.segment, self.reading = source, segment, reading
        self.aside, self.alive, self.room = aside, alive, room
        self.decode = text_decoder(reading.text_column)
        self.again = _Again(source, alive)
        self.row = self.line = 0

    def batches(self) -> Iterator[Batch]:
        source, column = self.source, self.reading.text_column
        stop = -1 if source.compression else self.segment.stop
        with open_stream(source.path, source.compression) as stream, self.again:
            for found, offset in line_blocks(stream, self.segment.start, stop, self.alive):
                if isinstance(found, LongLine):
                    yield from self._long(found, offset)
                    continue
                batch = parse_block(found, offset, self.row, self.line, self.decode, column)
                if self.aside:
                    line_at = functools.partial(_line_at, found, offset, self.line)
                    batch = set_aside(batch, self.aside, line_at)
                self.row += batch.row_count
                self.line += batch.line_count
                yield batch

    # --- one long line -----------------------------------------------------------------------

    def _long(self, line: LongLine, offset: int) -> Iterator[Batch]:
        begin = offset
        self.room.leave()
        if offset == 0 and line.beginning.startswith(BOM):
            begin, line.beginning = len(BOM), line.beginning[len(BOM) :]
        # A name that is kept whole is decoded as ever.
        head = max(HEAD_BYTES, 8 * len(self.reading.text_column.encode()))
        condensed = Condensed(self._limit_structure, head=head)
        for piece in line:
            condensed.add(piece)
            self.alive()
        condensed.end()
        rows = 1
        try:
            text = self.decode(bytes(condensed.kept))
        except FAULTS as error:
            if condensed.blank:  # not a row
                rows = 0
                yield empty_batch(self.row)._replace(line_count=1)
            else:
                reason = condensed.fault(error, self.reading.text_column)
                raw = self.again.pieces(begin, begin + condensed.length)
                bad = self._bad_row(reason, raw, fatal=False)
                yield bad_batch(bad)._replace(line_count=1)
        else:
            string = condensed.marked(text)
            del condensed
            yield from self._documents(text, string, begin, offset)
        self.row += rows
        self.line += 1

    def _where(self) -> str:
        since = f" from byte {self.segment.start} on" if self.segment.start else ""
        return f"{self.source.name}: row {self.row} (line {self.line + 1}){since}"

    def _limit_structure(self, kept: int) -> None:
        if kept * STRUCTURE_FACTOR > self.room.most(1):
            # How much more of it there is only reading on would tell; the file is the most.
            most = self.source.size if not self.source.compression else 2 * kept
            self.room.take(
                STRUCTURE_FACTOR * most,
                self._where(),
                f"a line with more than {kept:,} bytes beside its long strings",
            )

    def _limit_uncut(self, size: int, parts: Parts, uncut: int) -> None:
        """Refuse what would be held because there is no place to cut it."""
        if READ_FACTOR * uncut + self.room.whole_need(uncut) > self.room.most(1):
            self._take_room(size, parts, f"of which {uncut:,} have no place to be cut")

    def _take_room(self, size: int, parts: Parts, why: str) -> None:
        need = READ_FACTOR * size + self.room.whole_need(size, longest_word(parts()))
        what = f"a document of {size:,} bytes, {why}"
        self.room.take(need, self._where(), what, held=READ_FACTOR * size)

    def _documents(
        self, text: bytes, string: LongString | None, begin: int, offset: int
    ) -> Iterator[Batch]:
        """The line's text: given, or a long string that begins so many bytes behind `begin`."""
        size = len(text) if string is None else string.text_bytes

        def parts() -> Iterator[bytes]:
            if string is None:
                return iter([text])
            raw = self.again.pieces(begin + string.start, begin + string.stop)
            return decode_string(raw)

        cut = self.reading.may_cut and size > LONG_BYTES
        lines = 1
        if self.row in self.aside:
            sizes = sizes_of_fragments(parts()) if cut else [size]
            batch = bad_batch(self._bad_row(self.aside[self.row], parts(), fatal=True))
            for length in sizes:
                yield batch._replace(stands_for=length, line_count=lines)
                batch, lines = empty_batch(self.row + 1), 0
        elif cut:
            limit = functools.partial(self._limit_uncut, size, parts)
            for batch in fragments_of(parts(), self.row, offset, limit):
                yield batch._replace(line_count=lines)
                lines = 0
        else:
            if size > LONG_BYTES:
                self._take_room(size, parts, "which may not be cut for encoding")
            texts = Texts(_joined(parts(), size), np.array([0, size], np.int64))
            row, place = np.array([self.row], np.int64), np.array([offset], np.int64)
            yield Batch(texts, row, place, [], self.row, 1, 1)

    def _bad_row(self, reason: str, content: Iterator[bytes], *, fatal: bool) -> BadRow:
        """Its beginning, and length and hash where that is not all."""
        digest, length, kept = hashlib.sha256(), 0, b""
        for piece in content:
            digest.update(piece)
            length += len(piece)
            kept += piece[: KEPT_BYTES - len(kept)]
            self.alive()
        bad = BadRow(self.row, self.line, reason, kept, fatal=fatal)
        if length == len(kept):
            return bad
        return bad._replace(length=length, sha256=digest.hexdigest())


def _joined(parts: Iterator[bytes], size: int) -> Any:
    """All parts in one array: never two copies of all of them."""
    data = np.empty(size, np.uint8)
    at = 0
    for part in parts:
        data[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return data


class _Again:
    """A second reader of the file, opened on first need; from line to line it goes forward."""

    def __init__(self, source: Source, alive: Alive) -> None:
        self.source, self.alive = source, alive
        self.stream: IO[bytes] | None = None
        self.position = 0

    def __enter__(self) -> _Again:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.close()

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        source = self.source
        if self.stream is None or (start < self.position and source.compression):
            if self.stream is not None:
                self.stream.close()
            self.stream, self.position = open_stream(source.path, source.compression), 0
        if not source.compression:
            self.stream.seek(start)
            self.position = start
        while self.position < stop:
            wanted = (start if self.position < start else stop) - self.position
            piece = self.stream.read(min(wanted, PART_BYTES))
            if not piece:
                raise EOFError("it is shorter than it was")
            self.position += len(piece)
            if self.position > start:
                yield piece
            self.alive()


# --- blocks of lines -------------------------------------------------------------------------


class LongLine:
    """A line whose end is not in sight: to be read once, in pieces, without its line end."""

    def __init__(self, beginning: bytes, stream: IO[bytes]) -> None:
        self.beginning = beginning
        self.stream = stream
        self.length = len(beginning)  # in the file so far, with the line end

    def __iter__(self) -> Iterator[bytes]:
        yield self.beginning
        self.beginning = b""
        while piece := self.stream.readline(PART_BYTES):
            self.length += len(piece)
            if piece.endswith(b"\n"):
                yield piece[:-1]
                return
            yield piece


def line_blocks(
    stream: IO[bytes], start: int, stop: int, alive: Alive = nobody_watches
) -> Iterator[tuple[bytes | LongLine, int]]:
    """Blocks of whole lines, with their offset: the lines that start in [start, stop).

    `stop` -1 means to the end. A line that starts in a range is read to its end, wherever that
    is, so that every line belongs to exactly one range. A long one is the caller's to read,
    before the next block is asked for.
    """
    position = start
    if start:
        stream.seek(start - 1)
        position = start - 1
        while True:  # to the first line that starts here
            piece = stream.readline(BATCH_BYTES)
            position += len(piece)
            if not piece or 0 <= stop <= position:
                return
            if piece.endswith(b"\n"):
                break
            alive()
    while stop < 0 or position < stop:
        # No further than the range: the lines behind it are a neighbour's.
        block = stream.read(BATCH_BYTES if stop < 0 else min(BATCH_BYTES, stop - position))
        if not block:
            return
        if not block.endswith(b"\n"):
            last = block.rfind(b"\n") + 1
            rest, ended = _to_line_end(stream, LONG_LINE_BYTES - (len(block) - last), alive)
            if not ended:
                if last:
                    yield block[:last], position
                long = LongLine(block[last:] + rest, stream)
                position += last
                del block, rest
                yield long, position
                position += long.length
                continue
            block += rest
        yield block, position
        position += len(block)


def _to_line_end(stream: IO[bytes], limit: int, alive: Alive) -> tuple[bytes, bool]:
    """The rest of the line that the stream stands in; False: more than `limit`, not all of it."""
    pieces = []
    while piece := stream.readline(BATCH_BYTES):
        pieces.append(piece)
        limit -= len(piece)
        if piece.endswith(b"\n"):
            break
        if limit < 0:
            return b"".join(pieces), False
        alive()
    return b"".join(pieces), True


def _line_at(block: bytes, offset: int, first_line: int, position: int) -> int:
    """The number of the line that begins at a position of the file."""
    return first_line + block.count(b"\n", 0, position - offset)


def parse_block(
    block: bytes, offset: int, first_row: int, first_line: int, decode: Any, text_column: str
) -> Batch:
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10).tolist()
    if not ends or ends[-1] != len(block) - 1:
        ends.append(len(block))
    view = memoryview(block)
    good: list[bytes] = []
    rows: list[int] = []
    positions: list[int] = []
    bad: list[BadRow] = []
    row, begin = first_row, 0
    for number, end in enumerate(ends):
        start = begin + len(BOM) if offset + begin == 0 and block.startswith(BOM) else begin
        try:
            good.append(decode(view[start:end]))
            rows.append(row)
            positions.append(offset + begin)
            row += 1
        except FAULTS as error:
            content = block[start:end]
            if content.strip():  # a blank line is not a row
                reason = row_fault(error, content, text_column)
                bad.append(BadRow(row, first_line + number, reason, content))
                row += 1
        begin = end + 1
    return Batch(
        from_bytes(good),
        np.array(rows, np.int64),
        np.array(positions, np.int64),
        bad,
        first_row,
        row - first_row,
        len(ends),
    )


def lines_before(source: Source, start: int) -> tuple[int, int]:
    """Rows and lines of a plain file before a byte offset: for error messages only."""
    rows = lines = 0
    blank, ended = True, True  # the line so far
    with open(source.path, "rb", buffering=1 << 20) as file:
        while file.tell() < start or not ended:
            piece = file.readline(PART_BYTES)
            if not piece:
                break
            blank = blank and not piece.strip().removeprefix(BOM)
            ended = piece.endswith(b"\n")
            if ended:
                rows, lines, blank = rows + (not blank), lines + 1, True
    return rows, lines
