"""JSON lines to batches, in blocks of whole lines.

A line is decoded in one piece. A line longer than LONG_LINE_BYTES is refused where a worker's share
of the memory does not hold it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import IO

import numpy as np

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.batch import BadRow, Batch, SignOfLife, nobody_watches, set_aside
from tokenmill.inputs.kind import FileFacts, InputKind, ReadRequest
from tokenmill.inputs.readers.decompress import DAMAGED_HINT, READ_FAULTS, open_stream
from tokenmill.inputs.readers.fields import (
    DECODE_ERRORS,
    check_fields,
    decoded,
    row_decoder,
    row_fault,
)
from tokenmill.inputs.readers.fragments import KEPT_BYTES, LONG_BYTES
from tokenmill.inputs.rows.json_arrays import JSON_ARRAY
from tokenmill.inputs.segments import BATCH_BYTES, Segment
from tokenmill.inputs.source import BOM, Source
from tokenmill.settings import Reading
from tokenmill.system.memory import LINE_FACTOR, READ_FACTOR
from tokenmill.texts import from_bytes

LONG_LINE_BYTES = LONG_BYTES
PART_BYTES = 1 << 20
PEEK_BYTES = 256 << 10


class JsonLines(InputKind):
    name = "jsonl"
    title = "JSON lines"
    extensions = (".jsonl", ".ndjson", ".json")
    typical = (0.95, 0.21)  # at 4.6 bytes per token
    quarantines_fatal = True

    def settled(self, path: str, compression: str) -> InputKind:
        lines = [line for line in _first_lines(path, compression) if line.strip()]
        return JSON_ARRAY if _is_array(lines) else self

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        return self.check_columns(path, mtime_ns, compression, (text_column,))

    def check_columns(
        self, path: str, mtime_ns: int, compression: str, names: tuple[str, ...]
    ) -> FileFacts:
        """Look at the first lines: is it JSON lines, and has any of them the field?"""
        lines = _first_lines(path, compression)
        if _is_array([line for line in lines if line.strip()]):
            raise InputError(
                f"{path}: one JSON array, not JSON lines", hint="read it with --as json"
            )
        check_fields(path, map(decoded, lines[:100]), names)
        return FileFacts()

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        """The documents of the lines that start in a segment."""
        lines = _Lines(request)
        try:
            yield from lines.batches()
        except READ_FAULTS as error:
            start = request.segment.start
            since = f"from byte {start} on" if start else "of this file"
            raise SourceError(
                f"{request.source.name}: cannot be read after row {lines.row} "
                f"(line {lines.line + 1}) {since}: {error}",
                hint=DAMAGED_HINT,
            ) from None

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        rows, lines = lines_before(source, segment.start) if segment.start else (0, 0)
        return f"row {bad.row + rows} (line {bad.line + lines + 1})"


JSONL = JsonLines()


class _Lines:
    def __init__(self, request: ReadRequest) -> None:
        self.source, self.segment, self.reading, self.aside, self.alive, self.room = request
        self.decode = row_decoder(self.reading)
        self.row = self.line = 0

    def batches(self) -> Iterator[Batch]:
        source = self.source
        stop = -1 if source.compression else self.segment.stop
        self.room.leave()
        with open_stream(source.path, source.compression) as stream:
            blocks = line_blocks(stream, self.segment.start, stop, self.alive, self._hold)
            for block, offset, long in blocks:
                batch = self._parse(block, offset)
                if long:
                    batch = batch._replace(bad=[bad.cut(KEPT_BYTES) for bad in batch.bad])
                if self.aside:
                    line_at = functools.partial(_line_at, block, offset, self.line)
                    batch = set_aside(batch, self.aside, line_at)
                del block
                self.row += batch.row_count
                self.line += batch.line_count
                yield batch
                self.room.leave()

    def _parse(self, block: bytes, offset: int) -> Batch:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10).tolist()
        if not ends or ends[-1] != len(block) - 1:
            ends.append(len(block))
        view = memoryview(block)
        good: list[bytes] = []
        rows: list[int] = []
        positions: list[int] = []
        bad: list[BadRow] = []
        row, begin = self.row, 0
        for number, end in enumerate(ends):
            start = begin + len(BOM) if offset + begin == 0 and block.startswith(BOM) else begin
            try:
                text = self.decode(view[start:end])
                if text is not None:
                    good.append(text)
                    rows.append(row)
                    positions.append(offset + begin)
                row += 1
            except DECODE_ERRORS as error:
                content = block[start:end]
                if content.strip():  # a blank line is not a row
                    reason = row_fault(error, content, self.reading.text_column)
                    bad.append(BadRow(row, self.line + number, reason, content))
                    row += 1
            begin = end + 1
        return Batch(
            from_bytes(good),
            np.array(rows, np.int64),
            np.array(positions, np.int64),
            bad,
            self.row,
            row - self.row,
            len(ends),
        )

    def _hold(self, line: Iterable[bytes]) -> bytes:
        """A long line in one piece; refused where the memory does not hold what it takes."""
        most, size = self.room.most(LINE_FACTOR), 0
        pieces: list[bytes] = []
        for piece in line:
            size += len(piece.removesuffix(b"\n"))
            pieces.append(piece)
            if size > most:
                pieces.clear()  # only its length is still of interest
            self.alive()
        since = f" from byte {self.segment.start} on" if self.segment.start else ""
        self.room.take(
            LINE_FACTOR * size,
            f"{self.source.name}: row {self.row} (line {self.line + 1}){since}",
            f"its line is {size:,} bytes, which can only be decoded whole",
            held=READ_FACTOR * size,
        )
        return b"".join(pieces)


# --- blocks of lines -------------------------------------------------------------------------


def line_blocks(
    stream: IO[bytes],
    start: int,
    stop: int,
    alive: SignOfLife = nobody_watches,
    hold: Callable[[Iterable[bytes]], bytes] = b"".join,
) -> Iterator[tuple[bytes, int, bool]]:
    """Blocks of whole lines, with their offset: the lines that start in [start, stop).

    `stop` -1 means to the end. A line that starts in a range is read to its end, wherever that
    is, so that every line belongs to exactly one range. A line whose end is not in sight is a
    block of its own (the third value says so); `hold` puts its pieces together, or refuses to.
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
                    yield block[:last], position, False
                position += last
                line = _long_line(block[last:] + rest, stream)
                del block, rest  # a long line may need all the memory there is
                block = hold(line)
                yield block, position, True
                position += len(block)
                continue
            block += rest
        yield block, position, False
        position += len(block)


def _long_line(beginning: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    yield beginning
    del beginning
    while piece := stream.readline(PART_BYTES):
        yield piece
        if piece.endswith(b"\n"):
            return


def _to_line_end(stream: IO[bytes], limit: int, alive: SignOfLife) -> tuple[bytes, bool]:
    """The rest of the line at which the stream is; False: more than `limit`, not all of it."""
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


# --- the first lines ---------------------------------------------------------------------------


def _first_lines(path: str, compression: str) -> list[bytes]:
    try:
        with open_stream(path, compression) as stream:
            head: bytes = stream.read(PEEK_BYTES)
    except READ_FAULTS as error:
        raise InputError(f"{path}: cannot be decompressed: {error}", hint=DAMAGED_HINT) from None
    head = head.removeprefix(BOM)
    lines = head.split(b"\n")
    if len(head) >= PEEK_BYTES - len(BOM) and len(lines) > 1:
        lines.pop()  # cut off in the middle
    return lines


def _is_array(lines: list[bytes]) -> bool:
    """Whether the file is one JSON array; a line that is one among others is but a bad row."""
    if not lines or lines[0].lstrip()[:1] != b"[":
        return False
    return len(lines) == 1 or not isinstance(decoded(lines[0]), list)
