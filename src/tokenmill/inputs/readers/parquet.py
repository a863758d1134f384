"""Parquet files: checked by their footer, cut at row groups, read page by page."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import numpy as np

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.batch import BadRow, Batch, SignOfLife
from tokenmill.inputs.kind import FileFacts, InputKind, ReadRequest
from tokenmill.inputs.readers.columns import MAX_BATCH_ROWS, dictionary_slices, text_batches
from tokenmill.inputs.readers.fields import check_column, column_path, field_of
from tokenmill.inputs.readers.fragments import empty_batch
from tokenmill.inputs.readers.parquet_metadata import (
    DAMAGED,
    column_index,
    encrypted,
    leaf_batches,
    look_at,
    open_parquet,
    pages,
    row_counts,
    text_chunks,
)
from tokenmill.inputs.rows.arrow_rows import Paths, paths_of, rule_batches
from tokenmill.inputs.rows.row_rule import columns_read, rule_of
from tokenmill.inputs.rows.where import Statistics
from tokenmill.inputs.segments import BATCH_BYTES, Segment, cut_row_groups
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.memory import PARQUET_FACTOR, MemoryShare

DICTIONARY_BYTES = 2 << 20  # writers give a dictionary up at about 1 MB
DELTA_ROW_BYTES = 4 << 10  # of a row that may hold the text of the rows before it once more


class Parquet(InputKind):
    name = "parquet"
    title = "parquet"
    extensions = (".parquet",)
    # FineWeb-Edu's 10BT sample has 28.52 GB for 45.97 GB of text and 9.97 G tokens.
    typical = (1.61, 0.35)
    may_be_compressed = False
    numbers_rows = True
    parts = "row groups"

    def check_head(self, path: str, size: int, head: bytes, file: IO[bytes]) -> None:
        if head[:4] == b"PARE":
            raise encrypted(path)
        file.seek(max(0, size - 4))
        if head[:4] != b"PAR1" or file.read(4) != b"PAR1":
            raise InputError(
                f"{path}: not a parquet file, or cut short (PAR1 missing at "
                f"{'the start' if head[:4] != b'PAR1' else 'the end'})",
                hint="download it again and compare its size",
            )

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            rows = sum(row_counts(path, file.metadata))
            column_index(path, file.metadata, schema, check_column(path, schema, text_column))
        return FileFacts(rows)

    def check_columns(
        self, path: str, mtime_ns: int, compression: str, names: tuple[str, ...]
    ) -> FileFacts:
        with open_parquet(path) as file:
            rows = sum(row_counts(path, file.metadata))
            _columns_of(path, file, names)
        return FileFacts(rows)

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        with open_parquet(source.path) as file:
            if rule_of(reading) is None:
                path = column_path(file.schema_arrow, reading.text_column)
                column = column_index(source.name, file.metadata, file.schema_arrow, path)
                chunks = text_chunks(source.name, file.metadata, reading.text_column, column)
                sizes = [chunk.total_uncompressed_size for chunk in chunks]
            else:
                sizes = _sizes_of(source.name, file, columns_read(reading))
        whole = sum(sizes)
        for number, (start, stop, first, last) in enumerate(cut_row_groups(sizes)):
            read = (last if last >= 0 else sum(sizes[start:stop])) - first
            share = read * source.size // max(1, whole)  # of the file, for the progress bar
            yield Segment(source.number, number, start, stop, share, first, last)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        import pyarrow

        source, segment, reading, _, alive, room = request
        if rule_of(reading) is not None:
            yield from _read_by_rule(request)
            return
        text_column = reading.text_column
        metadata, path, starts, chunks, delta, column = _footer(
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
                        columns = _dictionaries(as_dictionary, group, column, path)
                    else:
                        average = DELTA_ROW_BYTES if small else size // max(1, rows)
                        columns = _record_batches(plain, group, average, column, path)
                    columns = _all_of(columns, rows)
                    yield from _in_range(text_batches(columns, starts[group]), segment, alive)
                except (OSError, EOFError, pyarrow.ArrowException) as error:
                    raise SourceError(
                        f"{source.name}: row group {group} "
                        f"(rows {starts[group]} to {starts[group + 1] - 1}) "
                        f"cannot be read: {error}",
                        hint=DAMAGED,
                    ) from None

    def input_bytes(
        self, source: Source, segment: Segment, batch: Batch, reading: Reading
    ) -> float:
        if rule_of(reading) is not None:
            return source.size * min(1.0, batch.row_count / max(1, source.rows))
        footer = _footer(source.path, source.name, source.mtime_ns, reading.text_column)
        texts: list[int] = [chunk.total_uncompressed_size for chunk in footer.chunks]
        text = sum(texts[segment.start : segment.stop])
        size = source.size * text / max(1, sum(texts))
        if batch.fragment is not None:  # a piece of a long row, by its share of the text
            return size * min(1.0, batch.texts.size / max(1, text))
        rows = footer.starts[segment.stop] - footer.starts[segment.start]
        return size * min(1.0, batch.row_count / max(1, rows))

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        starts = _row_starts(source.path, source.name, source.mtime_ns)
        group = int(np.searchsorted(starts, bad.row, side="right")) - 1
        return f"row {bad.row} (row group {group})"


PARQUET = Parquet()


# --- rows by a filter or a template ----------------------------------------------------------


def _columns_of(where: str, file: Any, names: tuple[str, ...]) -> tuple[Paths, dict[str, int]]:
    """Of each column the path and the number among the leaves; refused where it is not one."""
    schema = file.schema_arrow
    paths = paths_of(where, schema, names)
    return paths, {
        name: column_index(where, file.metadata, schema, path) for name, path in paths.items()
    }


def _sizes_of(where: str, file: Any, names: tuple[str, ...]) -> list[int]:
    """Bytes of all columns that are read, of each row group."""
    _, columns = _columns_of(where, file, names)
    for name, column in columns.items():
        look_at(where, file.metadata, name, column)
    groups = range(file.metadata.num_row_groups)
    return [
        sum(
            max(0, file.metadata.row_group(group).column(column).total_uncompressed_size)
            for column in columns.values()
        )
        for group in groups
    ]


def _read_by_rule(request: ReadRequest) -> Iterator[Batch]:
    """As `read`, of several columns; a row group that statistics exclude is not read."""
    import pyarrow

    source, segment, reading, _, alive, room = request
    rule = rule_of(reading)
    assert rule is not None
    with open_parquet(source.path) as file:
        paths, columns = _columns_of(source.name, file, rule.columns)
        metadata = file.metadata
        starts = list(itertools.accumulate(row_counts(source.name, metadata), initial=0))
        for group in range(segment.start, segment.stop):
            first, rows = starts[group], starts[group + 1] - starts[group]
            known = functools.partial(_statistics, metadata, group, columns)
            room.leave()
            if rule.where is not None and not rule.where.may_hold(known):
                if segment.text_start == 0:
                    yield empty_batch(first)._replace(row_count=rows)
                continue
            chunks = [metadata.row_group(group).column(column) for column in columns.values()]
            sizes = [chunk.total_uncompressed_size for chunk in chunks]
            if sum(sizes) > room.most(PARQUET_FACTOR + room.whole_factor):
                largest = chunks[sizes.index(max(sizes))]
                _take_room(source, largest, group, first, reading, room)
            average = sum(sizes) // max(1, rows)
            step = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (average + 1)))
            try:
                records = leaf_batches(file, step, [group], sorted(columns.values()))
                batches = rule_batches(_all_rows(records, rows), rule, paths, first)
                yield from _in_range(batches, segment, alive)
            except (OSError, EOFError, pyarrow.ArrowException) as error:
                raise SourceError(
                    f"{source.name}: row group {group} (rows {first} to {first + rows - 1}) "
                    f"cannot be read: {error}",
                    hint=DAMAGED,
                ) from None


def _statistics(metadata: Any, group: int, columns: dict[str, int], name: str) -> Statistics:
    """What the footer says of a column's values; nothing where its type is another one there."""
    chunk = metadata.row_group(group).column(columns[name])
    column = metadata.schema.column(columns[name])
    rows = metadata.row_group(group).num_rows
    kind = column.physical_type
    whole = kind in ("INT32", "INT64") and column.logical_type.type in ("NONE", "INT")
    whole = whole and not column.converted_type.startswith("UINT")
    text = kind == "BYTE_ARRAY" and column.logical_type.type == "STRING"
    if chunk.physical_type != kind or not (whole or text or kind in ("FLOAT", "DOUBLE")):
        return Statistics()
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return Statistics()
    low, high = (found.min, found.max) if found.has_min_max else (None, None)
    return Statistics(low, high, found.null_count, rows)


@functools.lru_cache(maxsize=2)
def _row_starts(path: str, name: str, mtime_ns: int) -> list[int]:
    """The first row of each row group."""
    with open_parquet(path) as file:
        return list(itertools.accumulate(row_counts(name, file.metadata), initial=0))


def _all_rows(records: Iterator[Any], rows: int) -> Iterator[Any]:
    found = 0
    for part in records:
        found += part.num_rows
        yield part
    if found != rows:
        raise EOFError(f"it has {found} rows, the footer counts {rows}")


def _take_room(
    source: Source, chunk: Any, group: int, first_row: int, reading: Reading, room: MemoryShare
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
    column: int  # of the text, among the leaves of the schema


@functools.lru_cache(maxsize=2)
def _footer(path: str, name: str, mtime_ns: int, text_column: str) -> _Footer:
    """Kept: a file is read in many segments."""
    with open_parquet(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
    where = column_path(schema, text_column)
    column = column_index(name, metadata, schema, where)
    chunks = text_chunks(name, metadata, text_column, column, looked_at=True)
    counts = row_counts(name, metadata)
    starts = list(itertools.accumulate(counts, initial=0))
    delta = {i for i, chunk in enumerate(chunks) if "DELTA" in " ".join(chunk.encodings)}
    return _Footer(metadata, where, starts, chunks, delta, column)


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
    file: Any, group: int, average: int, column: int, path: tuple[str, ...]
) -> Iterator[Any]:
    rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (average + 1)))
    for records in leaf_batches(file, rows, [group], [column]):
        yield field_of(records.column(0), path)


def _dictionaries(file: Any, group: int, column: int, path: tuple[str, ...]) -> Iterator[Any]:
    """A row group small enough to be one dictionary, decoded in slices."""
    table = file.reader.read_row_group(group, column_indices=[column], use_threads=False)
    for chunk in table.column(0).chunks:
        texts = field_of(chunk, path)
        if hasattr(texts, "dictionary"):
            yield from dictionary_slices(texts, len(texts))
        else:
            yield texts


def _in_range(batches: Iterator[Batch], segment: Segment, alive: SignOfLife) -> Iterator[Batch]:
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
