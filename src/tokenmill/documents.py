"""A segment of a source to batches of documents, with the bad rows set aside.

A batch is flat bytes and offsets (about 4 MB of text). A row that is null, not valid UTF-8, not
JSON or without the field is a bad row: it carries its reason and its bytes, and the caller stops
or quarantines. Nothing is repaired and nothing is lost: every row is in `texts` or in `bad`.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tokenmill.arrow_ipc import Served, decompressed_bytes, layout_of, open_batches
from tokenmill.arrow_large import windows
from tokenmill.batch import Alive, Aside, Batch, nobody_watches, set_aside
from tokenmill.columns import (
    MAX_BATCH_ROWS,
    batches_of,
    dictionary_slices,
    joined,
    slices,
)
from tokenmill.config import Reading
from tokenmill.errors import SourceError
from tokenmill.fields import column_path, field_of
from tokenmill.json_lines import read_lines
from tokenmill.memory import NO_LIMIT, PARQUET_FACTOR, READ_FACTOR, Room
from tokenmill.parquet_footer import DAMAGED, row_counts, text_chunks
from tokenmill.parquet_pages import pages
from tokenmill.plan import BATCH_BYTES, SEGMENT_BYTES, Segment, large_text
from tokenmill.sources import Source, arrow_schema, open_parquet
from tokenmill.text_batches import in_fragments
from tokenmill.text_files import read_text

DICTIONARY_BYTES = 2 << 20  # writers give a dictionary up at about 1 MB
DELTA_ROW_BYTES = 4 << 10  # of a row that may hold the text of the rows before it once more
LARGE_BATCH = 2 * SEGMENT_BYTES  # as in plan.cut_record_batches
SMALL_BATCH = SEGMENT_BYTES  # what a worker always has room for


def read_segment(
    source: Source,
    segment: Segment,
    reading: Reading,
    aside: Aside | None = None,
    alive: Alive = nobody_watches,
    room: Room = NO_LIMIT,
    *,
    whole: bool = False,
) -> Iterator[Batch]:
    """The documents of a segment, in order; those of the rows in `aside` among the bad rows.

    Long ones come in pieces where that is exact; with `whole`, only those of text files. What
    must be held whole and does not fit the room is refused.
    """
    if whole and source.kind != "text":
        reading = msgspec.structs.replace(reading, may_cut=False)
    batches = _with_aside(_read(source, segment, reading, aside or {}, alive, room), source, aside)
    if not reading.may_cut or source.kind == "text":
        return batches
    return (part for batch in batches for part in in_fragments(batch))


def _read(
    source: Source, segment: Segment, reading: Reading, aside: Aside, alive: Alive, room: Room
) -> Iterator[Batch]:
    if source.kind == "parquet":
        return _read_parquet(source, segment, reading, alive, room)
    if source.kind == "arrow":
        return _read_arrow(source, segment, reading, room)
    if source.kind == "text":
        return read_text(source, segment, reading, alive, room)
    return read_lines(source, segment, reading, aside, alive, room)


def _with_aside(batches: Iterator[Batch], source: Source, aside: Aside | None) -> Iterator[Batch]:
    if not aside or source.kind == "jsonl":  # whose reader also knows the lines
        return batches
    return (set_aside(batch, aside) for batch in batches)


# --- parquet ---------------------------------------------------------------------------------


def _read_parquet(
    source: Source, segment: Segment, reading: Reading, alive: Alive, room: Room
) -> Iterator[Batch]:
    import pyarrow

    text_column = reading.text_column
    metadata, path, starts, chunks, delta = _footer(
        source.path, source.name, source.mtime_ns, text_column
    )
    with (
        open_parquet(source.path, metadata) as plain,
        open_parquet(source.path, metadata, text_column) as as_dictionary,
    ):
        for group in range(segment.start, segment.stop):
            rows, chunk = starts[group + 1] - starts[group], chunks[group]
            size = chunk.total_uncompressed_size
            room.leave()
            if size > room.most(PARQUET_FACTOR + room.whole_factor):
                _take_room(source, chunk, group, starts[group], reading, room)
            try:
                small = size < DICTIONARY_BYTES + 4 * rows
                if small and group not in delta:
                    columns = _dictionaries(as_dictionary, group, text_column, path)
                else:
                    average = DELTA_ROW_BYTES if small else size // max(1, rows)
                    columns = _record_batches(plain, group, average, text_column, path)
                columns = _all_of(columns, rows)
                yield from _in_range(batches_of(columns, starts[group]), segment, alive)
            except (OSError, EOFError, pyarrow.ArrowException) as error:
                raise SourceError(
                    f"{source.name}: row group {group} "
                    f"(rows {starts[group]} to {starts[group + 1] - 1}) "
                    f"cannot be read: {error}",
                    hint=DAMAGED,
                ) from None


def _take_room(
    source: Source, chunk: Any, group: int, first_row: int, reading: Reading, room: Room
) -> None:
    """Room for the largest page of a row group: it is decompressed whole."""
    largest, at, row = None, 0, first_row
    for page in pages(source.path, chunk) or ():
        if largest is None or page.size > largest.size:
            largest, at = page, row
        row += 0 if page.dictionary else page.values
    if largest is None:
        return
    factor = PARQUET_FACTOR
    what = f"its page of rows {at} to {at + largest.values - 1}"
    if largest.dictionary:
        what = f"its dictionary of {largest.values} values"
    elif largest.values == 1:
        what = f"row {at}"
        factor += 0 if reading.may_cut else room.whole_factor  # it is encoded whole, too
    room.take(
        factor * largest.size,
        f"{source.name}: row group {group}",
        f"{what} is {largest.size:,} bytes, which can only be read whole",
        held=PARQUET_FACTOR * largest.size,
    )


class _Footer(NamedTuple):
    """What a parquet file's footer says, for reading its text."""

    metadata: Any
    path: tuple[str, ...]  # of the text
    starts: list[int]  # first row of each row group
    chunks: list[Any]  # of each row group's text
    delta: set[int]  # row groups that pyarrow cannot read as a dictionary


@functools.lru_cache(maxsize=2)
def _footer(path: str, name: str, mtime_ns: int, text_column: str) -> _Footer:
    """Kept: a file is read in many segments."""
    with open_parquet(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    chunks = text_chunks(name, metadata, text_column, looked_at=True)
    counts = row_counts(name, metadata)
    starts = list(itertools.accumulate(counts, initial=0))
    delta = {i for i, chunk in enumerate(chunks) if "DELTA" in " ".join(chunk.encodings)}
    return _Footer(metadata, column_path(schema, text_column), starts, chunks, delta)


def _all_of(columns: Iterator[Any], rows: int) -> Iterator[Any]:
    """The columns of a row group, which must have as many rows as its footer counts."""
    found = 0

    def counted(column: Any) -> Any:
        nonlocal found
        found += len(column)
        return column

    yield from map(counted, columns)  # nothing in here holds a column while it is worked on
    if found != rows:
        raise EOFError(f"it has {found} rows, the footer counts {rows}")


def _record_batches(
    file: Any, group: int, average: int, text_column: str, path: tuple[str, ...]
) -> Iterator[Any]:
    for records in file.iter_batches(
        batch_size=max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (average + 1))),
        row_groups=[group],
        columns=[text_column],
        use_threads=False,
    ):
        yield field_of(records.column(0), path)


def _dictionaries(file: Any, group: int, text_column: str, path: tuple[str, ...]) -> Iterator[Any]:
    """A row group small enough to be one dictionary, decoded in slices."""
    table = file.read_row_group(group, columns=[text_column], use_threads=False)
    for chunk in table.column(0).chunks:
        column = field_of(chunk, path)
        if hasattr(column, "dictionary"):
            yield from dictionary_slices(column, len(column))
        else:
            yield column


def _in_range(batches: Iterator[Batch], segment: Segment, alive: Alive) -> Iterator[Batch]:
    """The batches that begin in the segment's range of text: of most segments, all."""
    position = 0
    for batch in batches:
        if 0 <= segment.text_stop <= position:
            return
        if position >= segment.text_start:
            yield batch
        else:
            alive()
        position += batch.size


# --- Arrow -----------------------------------------------------------------------------------


def _read_arrow(source: Source, segment: Segment, reading: Reading, room: Room) -> Iterator[Batch]:
    import pyarrow

    text_column = reading.text_column
    layout = layout_of(source.path, source.mtime_ns)
    number = segment.start
    at = [number]  # the record batch being read
    faults = (OSError, ValueError, TypeError, MemoryError, EOFError, pyarrow.ArrowException)
    room.leave()
    try:
        size = layout.blocks[number].stop - layout.blocks[number].start
        alone = segment.stop == number + 1 and not layout.chained
        text = large_text(source, number, text_column) if alone and size >= LARGE_BATCH else None
        if text is None:
            columns = _arrow_columns(source, segment, text_column, at, room)
            yield from batches_of(joined(columns), layout.starts[number])
        else:
            stop = segment.text_stop if segment.text_stop >= 0 else text.rows
            first = layout.starts[number]
            where = f"{source.name}: record batch {number}"
            limit = functools.partial(_take_value_room, where, first, reading, room)
            columns = windows(source.path, text, segment.text_start, stop, BATCH_BYTES, limit)
            yield from batches_of(columns, first + segment.text_start)
    except faults as error:
        first, after = layout.starts[at[0]], layout.starts[at[0] + 1]
        raise SourceError(
            f"{source.name}: record batch {at[0]} (rows {first} to {after - 1}) "
            f"cannot be read: {error}",
            hint="the file is damaged: fetch or write it again and compare its checksum",
        ) from None


def _take_value_room(
    where: str, first: int, reading: Reading, room: Room, row: int, size: int
) -> None:
    """Room for one large value, read by itself."""
    factor = READ_FACTOR + (0 if reading.may_cut else room.whole_factor)
    what = f"row {first + row} is {size:,} bytes, which can only be read whole"
    room.take(factor * size, where, what, held=READ_FACTOR * size)


def _arrow_columns(
    source: Source, segment: Segment, text_column: str, at: list[int], room: Room
) -> Iterator[Any]:
    """The text of each record batch, checked; `at` tells which one is being read."""
    layout = layout_of(source.path, source.mtime_ns)
    schema = arrow_schema(source.path, source.mtime_ns)
    path = column_path(schema, text_column)
    with (
        Served(source.path, layout, segment.start, segment.stop) as served,
        open_batches(served, schema.names.index(path[0])) as reader,
    ):
        for at[0] in range(segment.start, segment.stop):
            block = layout.blocks[at[0]]
            size = decompressed_bytes(served.fileno(), block) + layout.prefix - layout.begin
            if size > SMALL_BATCH:
                room.take(
                    size,
                    f"{source.name}: record batch {at[0]}",
                    f"it is {size:,} bytes with its text decompressed, and can only be read whole",
                )
            records = next(reader, None)
            if records is None or records.num_rows != block.rows:
                raise EOFError("it has not the rows that its header counts")
            column = records.column(0)
            column.validate()
            yield from slices(field_of(column, path))


def refuse_changed(source: Source) -> None:
    """A file that is not what it was when planned: its rows would be neither old nor new."""
    if source.remote is not None:
        return  # its content was compared when it came, its copy whenever a worker read it
    try:
        stat = os.stat(source.path)
    except OSError as error:
        raise SourceError(f"{source.name}: cannot be read any more: {error.strerror}") from None
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.mtime_ns):
        raise SourceError(
            f"{source.name}: changed while it was being read (its size or its time)",
            hint="start again with the file as it should be",
        )
