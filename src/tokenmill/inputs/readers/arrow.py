"""Arrow streams and files: cut at record batches; a large batch that can be is read in windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs import segments as cutting
from tokenmill.inputs.batch import BadRow, Batch
from tokenmill.inputs.kind import FileFacts, InputKind, ReadRequest
from tokenmill.inputs.readers.arrow_ipc import (
    BatchStream,
    arrow_schema,
    decompressed_bytes,
    layout_of,
    open_batches,
)
from tokenmill.inputs.readers.arrow_windows import PlainText, plain_text, windows
from tokenmill.inputs.readers.columns import joined, slices, text_batches
from tokenmill.inputs.readers.fields import check_column, column_path, field_of
from tokenmill.inputs.rows.arrow_rows import paths_of, rule_batches
from tokenmill.inputs.rows.row_rule import rule_of
from tokenmill.inputs.segments import SEGMENT_BYTES, Segment, cut_record_batches
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.memory import READ_FACTOR, MemoryShare

LARGE_BATCH = 2 * SEGMENT_BYTES  # as in cut_record_batches
SMALL_BATCH = SEGMENT_BYTES  # what a worker always has room for


class Arrow(InputKind):
    name = "arrow"
    title = "Arrow"
    extensions = (".arrow", ".arrows", ".feather", ".ipc")
    typical = (0.95, 0.21)
    may_be_compressed = False
    numbers_rows = True
    parts = "record batches"

    def check_head(self, path: str, size: int, head: bytes, file: IO[bytes]) -> None:
        if head.startswith(b"FEA1"):
            raise InputError(
                f"{path}: Feather version 1, which is not Arrow IPC",
                hint="write it again with pyarrow.feather.write_feather(..., version=2)",
            )

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        check_column(path, arrow_schema(path, mtime_ns), text_column)
        layout = layout_of(path, mtime_ns)
        return FileFacts(layout.rows, layout.chained)

    def check_columns(
        self, path: str, mtime_ns: int, compression: str, names: tuple[str, ...]
    ) -> FileFacts:
        paths_of(path, arrow_schema(path, mtime_ns), names)
        layout = layout_of(path, mtime_ns)
        return FileFacts(layout.rows, layout.chained)

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        layout = layout_of(source.path, source.mtime_ns)
        sizes = [block.stop - block.start for block in layout.blocks]
        if layout.chained:
            yield Segment(source.number, 0, 0, len(sizes), source.size)
            return
        texts = {}  # bytes of text, of the large batches that can be read in parts
        for number, size in enumerate(sizes):
            if size >= 2 * cutting.SEGMENT_BYTES and rule_of(reading) is None:
                text = large_text(source, number, reading.text_column)
                texts[number] = text.data[1] if text else 0
        spans = cut_record_batches(sizes, [block.rows for block in layout.blocks], texts)
        for number, (start, stop, first, last) in enumerate(spans):
            share = sum(sizes[start:stop])
            if first or last >= 0:
                rows = layout.blocks[start].rows
                share = share * ((last if last >= 0 else rows) - first) // rows
            yield Segment(source.number, number, start, stop, share, first, last)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        import pyarrow

        source, segment, reading, _, _, room = request
        text_column = reading.text_column
        layout = layout_of(source.path, source.mtime_ns)
        number = segment.start
        at = [number]  # the record batch being read
        faults = (OSError, ValueError, TypeError, MemoryError, EOFError, pyarrow.ArrowException)
        room.leave()
        rule = rule_of(reading)
        try:
            if rule is not None:
                schema = arrow_schema(source.path, source.mtime_ns)
                paths = paths_of(source.name, schema, rule.columns)
                fields = sorted({schema.names.index(path[0]) for path in paths.values()})
                records = _record_batches(source, segment, fields, at, room)
                yield from rule_batches(records, rule, paths, layout.starts[number])
                return
            size = layout.blocks[number].stop - layout.blocks[number].start
            text = None
            if size >= LARGE_BATCH and segment.stop == number + 1 and not layout.chained:
                text = large_text(source, number, text_column)
            if text is None:
                columns = _arrow_columns(source, segment, text_column, at, room)
                yield from text_batches(joined(columns), layout.starts[number])
            else:
                first = layout.starts[number]
                columns = _arrow_windows(request, text, first)
                yield from text_batches(columns, first + segment.text_start)
        except faults as error:
            first, after = layout.starts[at[0]], layout.starts[at[0] + 1]
            raise SourceError(
                f"{source.name}: record batch {at[0]} (rows {first} to {after - 1}) "
                f"cannot be read: {error}",
                hint="the file is damaged: download or write it again and compare its checksum",
            ) from None

    def input_bytes(
        self, source: Source, segment: Segment, batch: Batch, reading: Reading
    ) -> float:
        return source.size * min(1.0, batch.row_count / max(1, source.rows))

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        starts = layout_of(source.path, source.mtime_ns).starts
        batch = int(np.searchsorted(starts, bad.row, side="right")) - 1
        return f"row {bad.row} (record batch {batch})"


ARROW = Arrow()


def large_text(source: Source, number: int, text_column: str) -> PlainText | None:
    """Where the text of a large record batch is, if it can be read in parts."""
    schema = arrow_schema(source.path, source.mtime_ns)
    path = column_path(schema, text_column)
    if len(path) != 1:
        return None
    layout = layout_of(source.path, source.mtime_ns)
    return plain_text(source.path, layout, number, schema, path[0])


def _arrow_windows(request: ReadRequest, text: PlainText, first_row: int) -> Iterator[Any]:
    """The text of one large record batch, window by window."""
    source, segment, reading, _, _, room = request

    def take_room(row: int, size: int) -> None:
        factor = READ_FACTOR + (0 if reading.may_cut else room.whole_factor)
        where = f"{source.name}: record batch {segment.start}"
        what = f"row {first_row + row} is {size:,} bytes, which can only be read whole"
        room.take(factor * size, where, what, held=READ_FACTOR * size)

    stop = segment.text_stop if segment.text_stop >= 0 else text.rows
    return windows(source.path, text, segment.text_start, stop, take_room)


def _arrow_columns(
    source: Source, segment: Segment, text_column: str, at: list[int], room: MemoryShare
) -> Iterator[Any]:
    """The text of each record batch, checked; `at` tells which one is being read."""
    schema = arrow_schema(source.path, source.mtime_ns)
    path = column_path(schema, text_column)
    fields = [schema.names.index(path[0])]
    for records in _record_batches(source, segment, fields, at, room):
        column = records.column(0)
        column.validate()
        yield from slices(field_of(column, path))


def _record_batches(
    source: Source, segment: Segment, fields: list[int], at: list[int], room: MemoryShare
) -> Iterator[Any]:
    """Some columns of each record batch, as they are in the file."""
    layout = layout_of(source.path, source.mtime_ns)
    with (
        BatchStream(source.path, layout, segment.start, segment.stop) as stream,
        open_batches(stream, fields) as reader,
    ):
        for at[0] in range(segment.start, segment.stop):
            block = layout.blocks[at[0]]
            size = decompressed_bytes(stream.fileno(), block) + layout.prefix - layout.begin
            if size > SMALL_BATCH:
                room.take(
                    size,
                    f"{source.name}: record batch {at[0]}",
                    f"it is {size:,} bytes with its text decompressed, and can only be read whole",
                )
            records = next(reader, None)
            if records is None or records.num_rows != block.rows:
                raise EOFError("it has not the rows that its header counts")
            yield records
