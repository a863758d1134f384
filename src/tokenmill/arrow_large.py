"""A record batch too large to be read at once: its text column, window by window of rows.

pyarrow reads a record batch whole, all columns of it, and some writers put a whole table into
one. Where the text is a plain column and not compressed, its buffers' places stand in the
message's metadata; the offsets of some rows, then their bytes, are read by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tokenmill.arrow_ipc import Layout, message_buffers

WINDOW_ROWS = 1 << 16


class PlainText(NamedTuple):
    """Where a plain text column lies in its file: absolute byte ranges, checked against it."""

    rows: int
    large: bool  # offsets of 64 bits
    validity: tuple[int, int] | None  # start and length; None where no row is null
    offsets: tuple[int, int]
    data: tuple[int, int]


def plain_text(
    path: str, layout: Layout, number: int, schema: Any, column: str
) -> PlainText | None:
    """The column's place in a record batch, if it can be read in windows; else None."""
    from pyarrow import types

    kind = schema.field(column).type
    large = bool(types.is_large_string(kind) or types.is_large_binary(kind))
    if not (large or types.is_string(kind) or types.is_binary(kind)) or layout.big_endian:
        return None
    index = schema.names.index(column)
    counts = [_parts(field.type) for field in schema]
    message = message_buffers(path, layout.blocks[number])
    if message is None or None in counts:
        return None
    nodes, buffers = message
    known = [count for count in counts if count is not None]
    if len(nodes) != sum(n for n, _ in known) or len(buffers) != sum(b for _, b in known):
        return None
    rows, nulls = nodes[sum(n for n, _ in known[:index])]
    first = sum(b for _, b in known[:index])
    validity, offsets, data = buffers[first : first + 3]
    block = layout.blocks[number]
    enough = (rows + 1) * (8 if large else 4) <= offsets[1] and (
        nulls == 0 or (rows + 7) // 8 <= validity[1]
    )
    if rows != block.rows or rows == 0 or not enough:
        return None  # damaged, it seems: let Arrow say how
    return PlainText(rows, large, validity if nulls else None, offsets, data)


def _parts(kind: Any) -> tuple[int, int] | None:
    """How many nodes and buffers a type takes in a message; None where that is not certain."""
    from pyarrow import types

    if types.is_null(kind):
        return 1, 0
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return 1, 3
    if types.is_string(kind) or types.is_binary(kind):
        return 1, 3
    if types.is_dictionary(kind) or types.is_primitive(kind) or types.is_decimal(kind):
        return 1, 2
    if types.is_boolean(kind) or types.is_fixed_size_binary(kind):
        return 1, 2
    if types.is_struct(kind):
        inner, own = [_parts(field.type) for field in kind], 1
    elif types.is_map(kind):
        inner, own = [(1, 1), _parts(kind.key_type), _parts(kind.item_type)], 2
    elif types.is_fixed_size_list(kind):
        inner, own = [_parts(kind.value_type)], 1
    elif types.is_list(kind) or types.is_large_list(kind):
        inner, own = [_parts(kind.value_type)], 2
    else:
        return None
    known = [part for part in inner if part is not None]
    if len(known) != len(inner):
        return None
    return 1 + sum(n for n, _ in known), own + sum(b for _, b in known)


def windows(
    path: str,
    text: PlainText,
    start: int,
    stop: int,
    size: int,
    limit: Callable[[int, int], None] = lambda row, size: None,
) -> Iterator[Any]:
    """The column's rows [start, stop) as binary arrays of about `size` bytes, one row at least.

    `limit` is told the row and the bytes of one that is longer, before it is read.
    """
    import pyarrow

    kind = pyarrow.large_binary()
    width, form = (8, "<i8") if text.large else (4, "<i4")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        row = start
        while row < stop:
            count = min(WINDOW_ROWS, stop - row)
            raw = _pread(fd, text.offsets[0] + row * width, (count + 1) * width)
            offsets = np.frombuffer(raw, form).astype(np.int64)
            if offsets[0] < 0 or offsets[-1] > text.data[1] or (np.diff(offsets) < 0).any():
                raise ValueError(f"offsets out of bounds in rows {row} to {row + count - 1}")
            fit = int(np.searchsorted(offsets, offsets[0] + size, side="right")) - 1
            count = max(1, min(count, fit))
            offsets = offsets[: count + 1]
            if int(offsets[-1] - offsets[0]) > size:
                limit(row, int(offsets[-1] - offsets[0]))
            data = _pread(fd, text.data[0] + int(offsets[0]), int(offsets[-1] - offsets[0]))
            validity = None
            if text.validity is not None:
                first, bits = row // 8, row % 8
                packed = _pread(fd, text.validity[0] + first, (bits + count + 7) // 8)
                flags = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
                flags = np.packbits(flags[bits : bits + count], bitorder="little")
                validity = pyarrow.py_buffer(flags.tobytes())
            yield pyarrow.Array.from_buffers(
                kind,
                count,
                [validity, pyarrow.py_buffer(offsets - offsets[0]), pyarrow.py_buffer(data)],
            )
            row += count
    finally:
        os.close(fd)


def _pread(fd: int, at: int, length: int) -> bytes:
    pieces = []
    while length > 0:
        piece = os.pread(fd, length, at)
        if not piece:
            raise OSError(f"the file ends at byte {at}")
        pieces.append(piece)
        at, length = at + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
