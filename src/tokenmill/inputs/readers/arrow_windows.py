"""A record batch too large to be read at once: its text column, window by window of rows.

pyarrow reads a record batch whole, all columns of it, and some writers put a whole table into
one. Where the text is a plain column and not compressed, the message's metadata says where its
buffers are. The offsets of some rows, then their bytes, are read by themselves. A memory map would
be shorter and faster, but a file that is cut short while it is read would end the process
(docs/log.md, 2026-11-17).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tokenmill.inputs.readers.arrow_ipc import StreamLayout, message_buffers
from tokenmill.inputs.readers.decompress import read_exactly
from tokenmill.inputs.segments import BATCH_BYTES
from tokenmill.texts import is_large, is_view

WINDOW_ROWS = 1 << 16


class PlainText(NamedTuple):
    """Where a plain text column is in its file: byte ranges, checked against the file."""

    rows: int
    large: bool  # offsets of 64 bits
    validity: tuple[int, int] | None  # start and length; None where no row is null
    offsets: tuple[int, int]
    data: tuple[int, int]


def plain_text(
    path: str, layout: StreamLayout, number: int, schema: Any, column: str
) -> PlainText | None:
    """The column's place in a record batch, if it can be read in windows; else None."""
    from pyarrow import types

    kind = schema.field(column).type
    large = is_large(kind)
    if not (large or types.is_string(kind) or types.is_binary(kind)) or layout.big_endian:
        return None
    block = layout.blocks[number]
    try:
        parts = [_parts(field.type) for field in schema]
        with open(path, "rb", buffering=0) as file:
            nodes, buffers, compressed = message_buffers(file.fileno(), block)
    except ValueError:
        return None
    if compressed or (len(nodes), len(buffers)) != _sum(parts):
        return None
    node, first = _sum(parts[: schema.names.index(column)])
    rows, nulls = nodes[node]
    validity, offsets, data = buffers[first : first + 3]
    enough = (rows + 1) * (8 if large else 4) <= offsets[1] and (
        nulls == 0 or (rows + 7) // 8 <= validity[1]
    )
    if rows != block.rows or rows == 0 or not 0 <= nulls <= rows or not enough:
        return None  # damaged, it seems: let Arrow say how
    return PlainText(rows, large, validity if nulls else None, offsets, data)


def _parts(kind: Any) -> tuple[int, int]:
    """How many nodes and buffers a type takes in a message; ValueError where not certain."""
    import pyarrow
    from pyarrow import types

    if types.is_null(kind):
        return 1, 0
    if (
        is_view(kind)
        or types.is_union(kind)
        or types.is_run_end_encoded(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
        or isinstance(kind, pyarrow.BaseExtensionType)
    ):
        raise ValueError(f"the buffers of {kind} are not counted")
    nodes, buffers = _sum([_parts(kind.field(i).type) for i in range(kind.num_fields)])
    return 1 + nodes, kind.num_buffers + buffers


def _sum(parts: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(nodes for nodes, _ in parts), sum(buffers for _, buffers in parts)


def windows(
    path: str, text: PlainText, start: int, stop: int, take_room: Callable[[int, int], None]
) -> Iterator[Any]:
    """The column's rows [start, stop) as binary arrays of about BATCH_BYTES, one row at least.

    `take_room` is told the row and the bytes of one that is longer, before it is read.
    """
    import pyarrow

    width, form = (8, "<i8") if text.large else (4, "<i4")
    with open(path, "rb", buffering=0) as file:
        fd, row = file.fileno(), start
        while row < stop:
            count = min(WINDOW_ROWS, stop - row)
            at = text.offsets[0] + row * width
            raw = read_exactly(fd, at, at + (count + 1) * width)
            offsets = np.frombuffer(raw, form).astype(np.int64)
            if offsets[0] < 0 or offsets[-1] > text.data[1] or (np.diff(offsets) < 0).any():
                raise ValueError(f"offsets out of bounds in rows {row} to {row + count - 1}")
            fit = int(np.searchsorted(offsets, offsets[0] + BATCH_BYTES, side="right")) - 1
            count = max(1, min(count, fit))
            offsets = offsets[: count + 1]
            begin, end = int(offsets[0]), int(offsets[-1])
            if end - begin > BATCH_BYTES:
                take_room(row, end - begin)
            data = read_exactly(fd, text.data[0] + begin, text.data[0] + end)
            flags = None
            if text.validity is not None:
                at, bits = text.validity[0] + row // 8, row % 8
                packed = read_exactly(fd, at, at + (bits + count + 7) // 8)
                flags = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
                flags = np.packbits(flags[bits : bits + count], bitorder="little")
            buffers = [flags, offsets - begin, data]
            yield pyarrow.Array.from_buffers(
                pyarrow.large_binary(),
                count,
                [None if buffer is None else pyarrow.py_buffer(buffer) for buffer in buffers],
            )
            row += count
