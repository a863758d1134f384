"""Where the record batches of an Arrow IPC file lie: found by reading message headers alone.

A stream is a chain of messages: a length, metadata (a flatbuffer) and a body. The first is the
schema, then come dictionaries and record batches, then an end mark. The file form (magic ARROW1)
is the same stream from byte 8, with a footer that lists the batches once more. Nothing in the
file is believed before it is compared with the file's size; the bodies are not read here.
"""

from __future__ import annotations

import functools
import itertools
import os
import struct
from typing import Any, NamedTuple

from tokenmill.errors import SourceError

FILE_MAGIC = b"ARROW1"
CONTINUATION = 0xFFFFFFFF
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
HEAD_BYTES = 4096  # one read sees most messages' metadata whole
MAX_METADATA = 64 << 20  # of a table of 10,000 columns it is 1 MB
MAX_PADDING = 72  # an end mark, and zeros up to the next 64 bytes
MAX_ROWS = 1 << 48  # a sum beyond is no count of rows


class Block(NamedTuple):
    """One record batch: its message's bytes [start, stop) and its rows."""

    start: int
    stop: int
    rows: int


class Layout(NamedTuple):
    """A stream's parts. `chained`: dictionaries change on the way, so it is read in order."""

    begin: int  # of the schema message
    prefix: int  # end of the schema and the dictionaries before the first batch
    blocks: tuple[Block, ...]
    starts: tuple[int, ...]  # first row of each block, and the count of all rows
    chained: bool
    big_endian: bool

    @property
    def rows(self) -> int:
        return self.starts[-1]


class _BrokenError(Exception):
    """What is wrong, and at which byte."""


@functools.lru_cache(maxsize=2)
def layout_of(path: str, mtime_ns: int) -> Layout:
    """The file's record batches; kept, since a file is read in many segments."""
    del mtime_ns  # part of the key: a file that changed is scanned again
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _scan(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (_BrokenError, struct.error) as error:
        raise SourceError(
            f"{path}: not an Arrow stream or file, or cut short: {error}",
            hint="fetch or write the file again and compare its size",
        ) from None


def _scan(fd: int, size: int) -> Layout:
    begin, end, listed = 0, size, None
    if os.pread(fd, 8, 0).startswith(FILE_MAGIC):
        begin = 8
        end, listed = _footer(fd, size)
    at = begin
    prefix = 0
    blocks: list[Block] = []
    chained = ended = False
    while at < end:
        message = _message(fd, at, end)
        if message is None:
            ended = True
            break
        kind, rows, stop = message
        if at == begin:
            if kind != SCHEMA:
                raise _BrokenError("it does not begin with a schema")
        elif kind == RECORD_BATCH:
            blocks.append(Block(at, stop, rows))
        elif kind == DICTIONARY:
            chained = chained or bool(blocks)
        else:
            raise _BrokenError(f"the message at byte {at} is of an unknown kind ({kind})")
        at = stop
        if not blocks:
            prefix = at
    _check_end(fd, at, end, size, ended, listed is not None)
    if listed is not None and listed != [block.start for block in blocks]:
        raise _BrokenError("its footer lists other record batches than the file holds")
    starts = tuple(itertools.accumulate((block.rows for block in blocks), initial=0))
    if not prefix or starts[-1] > MAX_ROWS:
        raise _BrokenError("it has no schema" if not prefix else "its counts of rows cannot be")
    return Layout(begin, prefix, tuple(blocks), starts, chained, _is_big_endian(fd, begin, prefix))


def _is_big_endian(fd: int, begin: int, end: int) -> bool:
    metadata, _ = _metadata(fd, begin, end)
    header = _field(metadata, _uint(metadata, 0), 2)
    field = _field(metadata, header + _uint(metadata, header), 0)
    return bool(field and _read("<H", metadata, field))


def _check_end(fd: int, at: int, end: int, size: int, ended: bool, footer: bool) -> None:
    """Behind the last message stands the end mark, and behind it nothing.

    The mark is asked for although the standard lets a stream end without: a stream that was cut
    between two messages looks just like that, and rows would be lost in silence.
    """
    if footer:  # its list tells whether all is there; some writers align it
        if end - at > MAX_PADDING:
            raise _BrokenError(f"{end - at} bytes lie between its batches and its footer")
        return
    if not ended:
        raise _BrokenError(f"the end mark is missing at byte {size}")
    mark = 8 if os.pread(fd, 4, at) == b"\xff\xff\xff\xff" else 4
    if at + mark != end:
        raise _BrokenError(f"{end - at - mark} bytes follow the end mark at byte {at}")


def _message(fd: int, at: int, end: int) -> tuple[int, int, int] | None:
    """Kind, rows and end of the message at a byte; None for the end mark."""
    metadata, body = _metadata(fd, at, end)
    if not metadata:
        return None
    try:
        kind, rows, body_length = _header(metadata)
    except struct.error:
        raise _BrokenError(f"the metadata at byte {at} is damaged") from None
    if not 0 <= body_length <= end - body or not 0 <= rows <= MAX_ROWS:
        raise _BrokenError(f"the message at byte {at} has an impossible length or count of rows")
    return kind, rows, body + body_length


def _metadata(fd: int, at: int, end: int) -> tuple[bytes, int]:
    """The metadata of the message at a byte, and where its body begins; empty at the end mark."""
    head = os.pread(fd, min(HEAD_BYTES, end - at), at)
    length, skip = _uint(head, 0), 4
    if length == CONTINUATION:
        length, skip = _uint(head, 4), 8
    body = at + skip + length
    if length > MAX_METADATA or body > end:
        raise _BrokenError(f"the message at byte {at} would reach beyond the file ({length} bytes)")
    metadata = head[skip : skip + length]
    if len(metadata) < length:
        metadata = os.pread(fd, length, at + skip)
    return metadata, body


Pairs = list[tuple[int, int]]


def message_buffers(path: str, block: Block) -> tuple[Pairs, Pairs] | None:
    """Nodes (rows, nulls) and buffers (absolute start, length) of a record batch.

    None when it is compressed, or when anything in it does not fit its bytes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        nodes, buffers, compressed = _buffers(fd, block)
    except (_BrokenError, struct.error):
        return None
    finally:
        os.close(fd)
    if compressed or any(not 0 <= nulls <= rows for rows, nulls in nodes):
        return None
    return nodes, buffers


def _buffers(fd: int, block: Block) -> tuple[Pairs, Pairs, bool]:
    """Nodes, buffers and whether they are compressed; an error where one lies outside."""
    metadata, body = _metadata(fd, block.start, block.stop)
    header = _field(metadata, _uint(metadata, 0), 2)
    batch = header + _uint(metadata, header)
    nodes, buffers = _pairs(metadata, batch, 1), _pairs(metadata, batch, 2)
    size = block.stop - body
    if any(not (0 <= at <= size and 0 <= length <= size - at) for at, length in buffers):
        raise _BrokenError(f"a buffer of the message at byte {block.start} lies outside of it")
    compressed = bool(_field(metadata, batch, 3))
    return nodes, [(body + at, length) for at, length in buffers], compressed


def decompressed_bytes(fd: int, block: Block) -> int:
    """What a record batch takes when it is read: its bytes, and the decompressed ones.

    Every compressed buffer begins with its length once decompressed. All columns are counted,
    though one is decompressed: which buffers are that one's is not known of every type.
    """
    total = block.stop - block.start
    if total < HEAD_BYTES:  # it cannot become much
        return total
    try:
        _, buffers, compressed = _buffers(fd, block)
        for at, length in buffers if compressed else ():
            if length >= 8:
                total += max(0, struct.unpack("<q", os.pread(fd, 8, at))[0])
    except (_BrokenError, struct.error):
        pass  # damaged: Arrow will say how
    return total


def _pairs(metadata: bytes, table: int, number: int) -> Pairs:
    """A flatbuffer vector of structs of two 64-bit numbers."""
    field = _field(metadata, table, number)
    if not field:
        return []
    vector = field + _uint(metadata, field)
    count = _uint(metadata, vector)
    if count * 16 > len(metadata):
        raise struct.error("a vector longer than the message")
    values = struct.unpack_from(f"<{2 * count}q", metadata, vector + 4)
    return list(zip(values[::2], values[1::2], strict=True))


def _header(metadata: bytes) -> tuple[int, int, int]:
    """Kind, rows (of a record batch) and body length from a Message flatbuffer."""
    table = _uint(metadata, 0)
    kind_at = _field(metadata, table, 1)
    header_at = _field(metadata, table, 2)
    length_at = _field(metadata, table, 3)
    kind = _read("<B", metadata, kind_at) if kind_at else 0
    body = _read("<q", metadata, length_at) if length_at else 0
    rows = 0
    if kind == RECORD_BATCH:
        if not header_at:
            raise struct.error("no header")
        batch = header_at + _uint(metadata, header_at)
        rows_at = _field(metadata, batch, 0)
        rows = _read("<q", metadata, rows_at) if rows_at else 0
    return kind, rows, body


def _footer(fd: int, size: int) -> tuple[int, list[int]]:
    """Where the footer begins, and the offsets of the record batches it lists."""
    tail = os.pread(fd, 10, max(0, size - 10))
    if size < 18 or tail[4:] != FILE_MAGIC:
        raise _BrokenError("ARROW1 is missing at its end")
    length = _uint(tail, 0)
    start = size - 10 - length
    if not 0 < length <= MAX_METADATA or start < 8:
        raise _BrokenError("its footer's length cannot be")
    footer = os.pread(fd, length, start)
    try:
        field = _field(footer, _uint(footer, 0), 3)
        if not field:
            return start, []
        vector = field + _uint(footer, field)
        count = _uint(footer, vector)
        if count * 24 > length:
            raise struct.error("too many")
        return start, [_read("<q", footer, vector + 4 + 24 * i) for i in range(count)]
    except struct.error:
        raise _BrokenError("its footer is damaged") from None


def _field(data: bytes, table: int, number: int) -> int:
    """Where a flatbuffer table's field lies; 0 when it has its default."""
    vtable = table - _read("<i", data, table)
    if 4 + 2 * number >= _read("<H", data, vtable):
        return 0
    offset = _read("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _uint(data: bytes, at: int) -> int:
    return _read("<I", data, at)


def _read(form: str, data: bytes, at: int) -> int:
    if at < 0:  # struct would count from the end
        raise struct.error("an offset below zero")
    value: int = struct.unpack_from(form, data, at)[0]
    return value


class Served:
    """The schema and the dictionaries, then some record batches, as one readable stream."""

    closed = False

    def __init__(self, path: str, layout: Layout, start: int, stop: int) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
        self._spans = [[layout.begin, layout.prefix]]
        if start < stop:
            self._spans.append([layout.blocks[start].start, layout.blocks[stop - 1].stop])

    def read(self, size: int = -1) -> bytes:
        pieces = []
        while self._spans and size:
            span = self._spans[0]
            want = span[1] - span[0] if size < 0 else min(size, span[1] - span[0])
            self._file.seek(span[0])
            piece = self._file.read(want)
            if len(piece) == 0 and want:
                raise OSError(f"the file ends at byte {span[0]}")
            pieces.append(piece)
            span[0] += len(piece)
            size -= len(piece) if size > 0 else 0
            if span[0] == span[1]:
                self._spans.pop(0)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_batches(served: Served, column: int | None) -> Any:
    """A pyarrow reader over it, of one top-level column (None: of all, for the schema)."""
    import pyarrow

    options = pyarrow.ipc.IpcReadOptions(
        included_fields=None if column is None else [column], use_threads=False
    )
    return pyarrow.ipc.open_stream(served, options=options)
