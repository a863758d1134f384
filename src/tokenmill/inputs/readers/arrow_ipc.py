"""Where the record batches of an Arrow IPC file are: found by reading message headers alone.

A stream is a chain of messages: a length, metadata (a flatbuffer) and a body. The first is the
schema, then come dictionaries and record batches, then an end mark. The file form (magic ARROW1)
is the same stream from byte 8, with a footer that lists the batches once more. Nothing in the
file is believed before it is compared with the file's size; the bodies are not read here.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokenmill.errors import SourceError
from tokenmill.inputs.readers.decompress import read_exactly

FILE_MAGIC = b"ARROW1"
CONTINUATION = 0xFFFFFFFF
SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
MESSAGE_HEAD_BYTES = 4096  # one read sees most messages' metadata whole
MAX_METADATA = 64 << 20  # of a table of 10,000 columns it is 1 MB
MAX_PADDING = 72  # an end mark, and zeros up to the next 64 bytes
MAX_ROWS = 1 << 48  # a larger sum is not a count of rows
INCOMPLETE_HINT = "download or write the file again and compare its size"


class Block(NamedTuple):
    """One record batch: its message's bytes [start, stop) and its rows."""

    start: int
    stop: int
    rows: int


class StreamLayout(NamedTuple):
    """A stream's parts. `chained`: dictionaries change on the way, so it is read in order."""

    begin: int  # of the schema message
    prefix: int  # end of the schema and the dictionaries before the first batch
    blocks: tuple[Block, ...]
    starts: tuple[int, ...]  # first row of each block, and the count of all rows
    chained: bool
    big_endian: bool
    schema: bytes = b""  # its message, of a file that has none (Polars)
    dictionaries: tuple[tuple[int, int], ...] = ()  # of such a file: they may follow the batches

    @property
    def rows(self) -> int:
        return self.starts[-1]


class _BrokenError(ValueError):
    """What is wrong, and at which byte."""


@functools.lru_cache(maxsize=2)
def layout_of(path: str, mtime_ns: int) -> StreamLayout:
    """The file's record batches; kept, since a file is read in many segments."""
    del mtime_ns  # part of the key: a file that changed is scanned again
    try:
        with open(path, "rb", buffering=0) as file:
            return _scan(file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (_BrokenError, struct.error) as error:
        raise SourceError(
            f"{path}: not an Arrow stream or file, or cut short: {error}",
            hint=INCOMPLETE_HINT,
        ) from None


def _scan(fd: int, size: int) -> StreamLayout:
    begin, end, listed, schema = 0, size, None, b""
    if os.pread(fd, 8, 0).startswith(FILE_MAGIC):
        begin = 8
        end, first, listed = _footer(fd, size)
        schema = _bare_schema(fd, begin, first or end)
        begin = (first or end) if schema else begin
    at = begin
    prefix = at if schema else 0
    blocks: list[Block] = []
    dictionaries: list[tuple[int, int]] = []
    chained = ended = False
    while at < end:
        message = _message(fd, at, end)
        if message is None:
            ended = True
            break
        kind, rows, stop = message
        if at == begin and not schema:
            if kind != SCHEMA:
                raise _BrokenError("it does not begin with a schema")
        elif kind == RECORD_BATCH:
            blocks.append(Block(at, stop, rows))
        elif kind == DICTIONARY and schema:
            dictionaries.append((at, stop))  # a file's are for all batches, wherever they are
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
    metadata = schema[8:] if schema else _metadata(fd, begin, prefix)[0]
    big_endian = bool(_number("<H", metadata, _header(metadata), 0))
    bare = schema, tuple(dictionaries)
    return StreamLayout(begin, prefix, tuple(blocks), starts, chained, big_endian, *bare)


def _bare_schema(fd: int, begin: int, stop: int) -> bytes:
    """The schema's message, for a file that holds it without its length; empty for all others.

    Polars writes the bare metadata behind the magic: readers of files take the schema from the
    footer. With the length put in front it is what a stream begins with.
    """
    head = os.pread(fd, 8, begin)
    with contextlib.suppress(_BrokenError, struct.error):
        if _uint(head, 0) == CONTINUATION or (_message(fd, begin, stop) or (0,))[0] == SCHEMA:
            return b""
    if not 8 <= stop - begin <= MAX_METADATA:
        return b""
    content = os.pread(fd, stop - begin, begin)
    content += bytes(-len(content) % 8)
    try:
        is_schema = _number("<B", content, _uint(content, 0), 1) == SCHEMA
    except struct.error:
        is_schema = False
    return struct.pack("<II", CONTINUATION, len(content)) + content if is_schema else b""


def _check_end(fd: int, at: int, end: int, size: int, ended: bool, footer: bool) -> None:
    """The end mark must follow the last message, and nothing the end mark.

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
        table = _uint(metadata, 0)
        kind, body_length = _number("<B", metadata, table, 1), _number("<q", metadata, table, 3)
        rows = _number("<q", metadata, _header(metadata), 0) if kind == RECORD_BATCH else 0
    except struct.error:
        raise _BrokenError(f"the metadata at byte {at} is damaged") from None
    if not 0 <= body_length <= end - body or not 0 <= rows <= MAX_ROWS:
        raise _BrokenError(f"the message at byte {at} has an impossible length or count of rows")
    return kind, rows, body + body_length


def _metadata(fd: int, at: int, end: int) -> tuple[bytes, int]:
    """The metadata of the message at a byte, and where its body begins; empty at the end mark."""
    head = os.pread(fd, min(MESSAGE_HEAD_BYTES, end - at), at)
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


def message_buffers(fd: int, block: Block) -> tuple[Pairs, Pairs, bool]:
    """Nodes (rows, nulls) and buffers (absolute start, length) of a record batch, and whether the
    buffers are compressed; ValueError where anything does not fit the bytes of the batch."""
    metadata, body = _metadata(fd, block.start, block.stop)
    try:
        batch = _header(metadata)
        nodes = [(rows, nulls) for rows, nulls in _vector(metadata, batch, 1, "<qq")]
        buffers = [(at, length) for at, length in _vector(metadata, batch, 2, "<qq")]
        compressed = bool(_field(metadata, batch, 3))
    except struct.error:
        raise _BrokenError(f"the metadata at byte {block.start} is damaged") from None
    size = block.stop - body
    if any(not (0 <= at <= size and 0 <= length <= size - at) for at, length in buffers):
        raise _BrokenError(f"a buffer of the message at byte {block.start} lies outside of it")
    return nodes, [(body + at, length) for at, length in buffers], compressed


def decompressed_bytes(fd: int, block: Block) -> int:
    """What a record batch takes when it is read: its bytes, and the decompressed ones.

    Every compressed buffer begins with its length once decompressed. All columns are counted,
    though one is decompressed: which buffers are that one's is not known of every type.
    """
    total = block.stop - block.start
    if total < MESSAGE_HEAD_BYTES:  # it cannot become much
        return total
    try:
        _, buffers, compressed = message_buffers(fd, block)
        for at, length in buffers if compressed else ():
            if length >= 8:
                total += max(0, struct.unpack("<q", os.pread(fd, 8, at))[0])
    except (_BrokenError, struct.error):
        pass  # damaged: Arrow will say how
    return total


def _vector(data: bytes, table: int, number: int, form: str) -> Iterator[tuple[int, ...]]:
    """A flatbuffer vector of structs."""
    field = _field(data, table, number)
    if field:
        vector = field + _uint(data, field)
        size = struct.calcsize(form) * _uint(data, vector)
        if vector + 4 + size > len(data):
            raise struct.error("a vector longer than the message")
        yield from struct.iter_unpack(form, data[vector + 4 : vector + 4 + size])


def _header(metadata: bytes) -> int:
    """Where the table is that a Message flatbuffer has for its schema or its record batch."""
    field = _field(metadata, _uint(metadata, 0), 2)
    if not field:
        raise struct.error("no header")
    return field + _uint(metadata, field)


def _footer(fd: int, size: int) -> tuple[int, int, list[int]]:
    """Where the footer begins, where the first message that it lists does (0: it lists none), and
    the offsets of the record batches."""
    tail = os.pread(fd, 10, max(0, size - 10))
    if size < 18 or tail[4:] != FILE_MAGIC:
        raise _BrokenError("ARROW1 is missing at its end")
    length = _uint(tail, 0)
    start = size - 10 - length
    if not 0 < length <= MAX_METADATA or start < 8:
        raise _BrokenError("its footer's length cannot be")
    footer = os.pread(fd, length, start)
    try:
        table = _uint(footer, 0)
        dictionaries, batches = (
            [at for at, _, _ in _vector(footer, table, field, "<qqq")] for field in (2, 3)
        )
        return start, min((*dictionaries, *batches), default=0), batches
    except struct.error:
        raise _BrokenError("its footer is damaged") from None


def _field(data: bytes, table: int, number: int) -> int:
    """Where the field of a flatbuffer table is; 0 when it has its default."""
    vtable = table - _read("<i", data, table)
    if 4 + 2 * number >= _read("<H", data, vtable):
        return 0
    offset = _read("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _number(form: str, data: bytes, table: int, number: int) -> int:
    field = _field(data, table, number)
    return _read(form, data, field) if field else 0


def _uint(data: bytes, at: int) -> int:
    return _read("<I", data, at)


def _read(form: str, data: bytes, at: int) -> int:
    if at < 0:  # struct would count from the end
        raise struct.error("an offset below zero")
    value: int = struct.unpack_from(form, data, at)[0]
    return value


class BatchStream(io.RawIOBase):
    """The schema and the dictionaries, then some record batches, as one readable stream."""

    def __init__(self, path: str, layout: StreamLayout, start: int, stop: int) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._schema = layout.schema
        self._spans = list(layout.dictionaries) or [(layout.begin, layout.prefix)]
        if start < stop:
            self._spans.append((layout.blocks[start].start, layout.blocks[stop - 1].stop))

    def read(self, size: int = -1) -> bytes:
        taken = len(self._schema) if size < 0 else min(size, len(self._schema))
        content, self._schema = self._schema[:taken], self._schema[taken:]
        size -= taken if size > 0 else 0
        while self._spans and size:
            at, stop = self._spans.pop(0)
            reach = stop if size < 0 else min(stop, at + size)
            content += read_exactly(self._fd, at, reach)
            size -= reach - at if size > 0 else 0
            if reach < stop:
                self._spans.insert(0, (reach, stop))
        return content

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def open_batches(stream: BatchStream, columns: list[int] | None) -> Any:
    """A pyarrow reader of some top-level columns; None: of all of them, for the schema."""
    import pyarrow

    options = pyarrow.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    return pyarrow.ipc.open_stream(stream, options=options)


def arrow_schema(path: str, mtime_ns: int) -> Any:
    """The schema of an Arrow stream or file."""
    import pyarrow

    layout = layout_of(path, mtime_ns)
    try:
        with BatchStream(path, layout, 0, 0) as stream, open_batches(stream, None) as reader:
            return reader.schema
    except (OSError, ValueError, TypeError, MemoryError, pyarrow.ArrowException) as error:
        raise SourceError(
            f"{path}: the schema cannot be read: {error}",
            hint=INCOMPLETE_HINT,
        ) from None
