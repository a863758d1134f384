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
from tokenmill.inputs.readers.fields import ambiguous, check_column, column_path, field_of
from tokenmill.inputs.readers.parquet_metadata import (
    DAMAGED,
    column_paths,
    open_parquet,
    pages,
    row_counts,
    text_chunks,
)
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
            paths = column_paths(path, file.metadata)
        check_column(path, schema, text_column)
        if paths.count(text_column) > 1:
            raise ambiguous(path, text_column)
        return FileFacts(rows)

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        with open_parquet(source.path) as file:
            chunks = text_chunks(source.name, file.metadata, reading.text_column)
        sizes = [chunk.total_uncompressed_size for chunk in chunks]
        whole = sum(sizes)
        for number, (start, stop, first, last) in enumerate(cut_row_groups(sizes)):
            read = (last if last >= 0 else sum(sizes[start:stop])) - first
            share = read * source.size // max(1, whole)  # of the file, for the progress bar
            yield Segment(source.number, number, start, stop, share, first, last)

    def read(self, request: ReadRequest) -> Iterator[Batch]:
        import pyarrow

        source, segment, reading, _, alive, room = request
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
        footer = _footer(source.path, source.name, source.mtime_ns, reading.text_column)
        texts: list[int] = [chunk.total_uncompressed_size for chunk in footer.chunks]
        text = sum(texts[segment.start : segment.stop])
        size = source.size * text / max(1, sum(texts))
        if batch.fragment is not None:  # a piece of a long row, by its share of the text
            return size * min(1.0, batch.texts.size / max(1, text))
        rows = footer.starts[segment.stop] - footer.starts[segment.start]
        return size * min(1.0, batch.row_count / max(1, rows))

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        footer = _footer(source.path, source.name, source.mtime_ns, reading.text_column)
        group = int(np.searchsorted(footer.starts, bad.row, side="right")) - 1
        return f"row {bad.row} (row group {group})"


PARQUET = Parquet()


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
