"""A segment of a source to batches of documents, with the bad rows set aside.

A batch is flat bytes and offsets (about 4 MB of text). A row that is null, not valid UTF-8, not
JSON or without the field is a bad row: it carries its reason and its bytes, and the caller stops
or quarantines. Nothing is repaired and nothing is lost: every row is in `texts` or in `bad`.
"""

from __future__ import annotations

import functools
import itertools
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

from tokenmill.arrow_ipc import Served, layout_of, open_batches
from tokenmill.arrow_large import windows
from tokenmill.batch import Alive, Aside, BadRow, Batch, nobody_watches, set_aside
from tokenmill.columns import (
    MAX_BATCH_ROWS,
    batches_of,
    dictionary_slices,
    joined,
    slices,
)
from tokenmill.config import Reading
from tokenmill.errors import SourceError
from tokenmill.fields import column_path, field_of, row_fault, text_decoder
from tokenmill.parquet_footer import DAMAGED, row_counts, text_chunks
from tokenmill.plan import BATCH_BYTES, SEGMENT_BYTES, Segment, large_text
from tokenmill.sources import BOM, Source, arrow_schema, open_parquet
from tokenmill.streams import open_stream
from tokenmill.text_batches import in_fragments
from tokenmill.text_files import read_text
from tokenmill.texts import from_bytes

DICTIONARY_BYTES = 2 << 20  # writers give a dictionary up at about 1 MB
DELTA_ROW_BYTES = 4 << 10  # of a row that may hold the text of the rows before it once more
LARGE_BATCH = 2 * SEGMENT_BYTES  # as in plan.cut_record_batches


def read_segment(
    source: Source,
    segment: Segment,
    reading: Reading,
    aside: Aside | None = None,
    alive: Alive = nobody_watches,
    *,
    whole: bool = False,
) -> Iterator[Batch]:
    """The documents of a segment, in order; those of the rows in `aside` among the bad rows.

    Long ones come in pieces where that is exact; with `whole`, only those of text files.
    """
    batches = _with_aside(_read(source, segment, reading, aside or {}, alive), source, aside)
    if whole or not reading.may_cut or source.kind == "text":
        return batches
    return (part for batch in batches for part in in_fragments(batch))


def _read(
    source: Source, segment: Segment, reading: Reading, aside: Aside, alive: Alive
) -> Iterator[Batch]:
    if source.kind == "parquet":
        return _read_parquet(source, segment, reading.text_column, alive)
    if source.kind == "arrow":
        return _read_arrow(source, segment, reading.text_column)
    if source.kind == "text":
        return read_text(source, segment, reading, alive)
    return _read_lines(source, segment, reading.text_column, aside, alive)


def _with_aside(batches: Iterator[Batch], source: Source, aside: Aside | None) -> Iterator[Batch]:
    if not aside or source.kind == "jsonl":  # whose reader also knows the lines
        return batches
    return (set_aside(batch, aside) for batch in batches)


# --- parquet ---------------------------------------------------------------------------------


def _read_parquet(
    source: Source, segment: Segment, text_column: str, alive: Alive
) -> Iterator[Batch]:
    import pyarrow

    metadata, path, starts, sizes, delta = _footer(
        source.path, source.name, source.mtime_ns, text_column
    )
    with (
        open_parquet(source.path, metadata) as plain,
        open_parquet(source.path, metadata, text_column) as as_dictionary,
    ):
        for group in range(segment.start, segment.stop):
            size, rows = sizes[group], starts[group + 1] - starts[group]
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


class _Footer(NamedTuple):
    """What a parquet file's footer says, for reading its text."""

    metadata: Any
    path: tuple[str, ...]  # of the text
    starts: list[int]  # first row of each row group
    sizes: list[int]  # of each row group's text
    delta: set[int]  # row groups that pyarrow cannot read as a dictionary


@functools.lru_cache(maxsize=2)
def _footer(path: str, name: str, mtime_ns: int, text_column: str) -> _Footer:
    """Kept: a file is read in many segments."""
    with open_parquet(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    chunks = text_chunks(name, metadata, text_column)
    counts = row_counts(name, metadata)
    starts = list(itertools.accumulate(counts, initial=0))
    delta = {i for i, chunk in enumerate(chunks) if "DELTA" in " ".join(chunk.encodings)}
    sizes = [chunk.total_uncompressed_size for chunk in chunks]
    return _Footer(metadata, column_path(schema, text_column), starts, sizes, delta)


def _all_of(columns: Iterator[Any], rows: int) -> Iterator[Any]:
    """The columns of a row group, which must have as many rows as its footer counts."""
    found = 0
    for column in columns:
        found += len(column)
        yield column
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


def _read_arrow(source: Source, segment: Segment, text_column: str) -> Iterator[Batch]:
    import pyarrow

    layout = layout_of(source.path, source.mtime_ns)
    number = segment.start
    at = [number]  # the record batch being read
    faults = (OSError, ValueError, TypeError, MemoryError, EOFError, pyarrow.ArrowException)
    try:
        size = layout.blocks[number].stop - layout.blocks[number].start
        alone = segment.stop == number + 1 and not layout.chained
        text = large_text(source, number, text_column) if alone and size >= LARGE_BATCH else None
        if text is None:
            columns = _arrow_columns(source, segment, text_column, at)
            yield from batches_of(joined(columns), layout.starts[number])
        else:
            stop = segment.text_stop if segment.text_stop >= 0 else text.rows
            columns = windows(source.path, text, segment.text_start, stop, BATCH_BYTES)
            yield from batches_of(columns, layout.starts[number] + segment.text_start)
    except faults as error:
        first, after = layout.starts[at[0]], layout.starts[at[0] + 1]
        raise SourceError(
            f"{source.name}: record batch {at[0]} (rows {first} to {after - 1}) "
            f"cannot be read: {error}",
            hint="the file is damaged: fetch or write it again and compare its checksum",
        ) from None


def _arrow_columns(
    source: Source, segment: Segment, text_column: str, at: list[int]
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
            records = next(reader, None)
            if records is None or records.num_rows != layout.blocks[at[0]].rows:
                raise EOFError("it has not the rows that its header counts")
            column = records.column(0)
            column.validate()
            yield from slices(field_of(column, path))


# --- JSON lines ------------------------------------------------------------------------------


def _read_lines(
    source: Source, segment: Segment, text_column: str, aside: Aside, alive: Alive
) -> Iterator[Batch]:
    decode = text_decoder(text_column)
    row = line = 0
    try:
        with open_stream(source.path, source.compression) as stream:
            stop = -1 if source.compression else segment.stop
            for block, offset in line_blocks(stream, segment.start, stop, alive):
                batch = _parse_block(block, offset, row, line, decode, text_column)
                if aside:
                    line_at = functools.partial(_line_at, block, offset, line)
                    batch = set_aside(batch, aside, line_at)
                row += batch.row_count
                line += batch.line_count
                yield batch
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise SourceError(
            f"{source.name}: cannot be read after row {row} (line {line + 1}) "
            f"{'of this file' if segment.start == 0 else f'from byte {segment.start} on'}: {error}",
            hint="the file is damaged or cut short: fetch it again and compare its size",
        ) from None


def _line_at(block: bytes, offset: int, first_line: int, position: int) -> int:
    """The number of the line that begins at a position of the file."""
    return first_line + block.count(b"\n", 0, position - offset)


def line_blocks(
    stream: IO[bytes], start: int, stop: int, alive: Alive = nobody_watches
) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, with their offset: the lines that start in [start, stop).

    `stop` -1 means to the end. A line that starts in a range is read to its end, wherever that
    is, so that every line belongs to exactly one range.
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
            block += _to_line_end(stream, alive)
        yield block, position
        position += len(block)


def _to_line_end(stream: IO[bytes], alive: Alive) -> bytes:
    """The rest of the line that the stream stands in."""
    pieces = []
    while piece := stream.readline(BATCH_BYTES):
        pieces.append(piece)
        if piece.endswith(b"\n"):
            break
        alive()
    return b"".join(pieces)


def _parse_block(
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
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
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
    with open(source.path, "rb", buffering=1 << 20) as file:
        while file.tell() < start:
            line = file.readline()
            if not line:
                break
            lines += 1
            rows += bool(line.strip().removeprefix(BOM))
    return rows, lines


def refuse_changed(source: Source) -> None:
    """A file that is not what it was when planned: its rows would be neither old nor new."""
    try:
        stat = os.stat(source.path)
    except OSError as error:
        raise SourceError(f"{source.name}: cannot be read any more: {error.strerror}") from None
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.mtime_ns):
        raise SourceError(
            f"{source.name}: changed while it was being read (its size or its time)",
            hint="start again with the file as it should be",
        )
