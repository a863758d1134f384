"""A segment of a source to batches of documents, with the bad rows set aside.

A batch is flat bytes and offsets (about 4 MB of text). A row that is null, not valid UTF-8, not
JSON or without the field is a bad row: it carries its reason and its bytes, and the caller stops
or quarantines. Nothing is repaired and nothing is lost: every row is in `texts` or in `bad`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

from tokenmill.errors import SourceError
from tokenmill.plan import BATCH_BYTES, Segment, text_sizes
from tokenmill.sources import BOM, Source, open_parquet, open_stream
from tokenmill.texts import I64, Texts, from_bytes

MAX_BATCH_ROWS = 1 << 16
DICTIONARY_BYTES = 2 << 20  # writers give a dictionary up at about 1 MB


class BadRow(NamedTuple):
    row: int  # counted like the rows of its batch
    line: int  # counted from the segment's first line; -1 where there are no lines
    reason: str
    content: bytes
    length: int = -1  # of the content before it was cut for keeping; -1: it was not
    sha256: str = ""
    fatal: bool = False  # good text, but encoding it kills or hangs a worker

    def cut(self, limit: int) -> BadRow:
        """What is kept of a long one: its beginning, its length and its hash."""
        if len(self.content) <= limit:
            return self
        digest = hashlib.sha256(self.content).hexdigest()
        return self._replace(content=self.content[:limit], length=len(self.content), sha256=digest)


class Batch(NamedTuple):
    """Documents of consecutive rows, counted from the source's first (parquet) or the segment's.

    In a line file only reading tells which row a segment begins with.
    """

    texts: Texts
    rows: I64
    positions: I64  # the row in the source, or the byte offset of its line: stable for hashing
    bad: list[BadRow]
    first_row: int
    row_count: int  # good and bad
    line_count: int

    @property
    def size(self) -> int:
        return self.texts.size + sum(len(bad.content) for bad in self.bad)

    def document(self, index: int) -> Batch:
        """One document as a batch of its own."""
        one = slice(index, index + 1)
        rows = self.rows[one]
        texts = self.texts.slice(index, index + 1)
        return Batch(texts, rows, self.positions[one], [], int(rows[0]), 1, 0)


Aside = Mapping[int, str]  # rows, counted like those of the batches, to the reason
Alive = Callable[[], None]  # called now and then while nothing is yielded


def _nobody_watches() -> None:
    pass


def read_segment(
    source: Source,
    segment: Segment,
    text_column: str,
    aside: Aside | None = None,
    alive: Alive = _nobody_watches,
) -> Iterator[Batch]:
    """The documents of a segment, in order; those of the rows in `aside` among the bad rows."""
    if source.kind == "parquet":
        return _read_parquet(source, segment, text_column, aside or {}, alive)
    return _read_lines(source, segment, text_column, aside or {}, alive)


def _set_aside(batch: Batch, aside: Aside, line_at: Callable[[int], int]) -> Batch:
    """The batch with some documents among its bad rows.

    Their content is the text, not the line it stood in: so the batch keeps its size, and the
    source is cut into the same units.
    """
    if not any(0 <= row - batch.first_row < batch.row_count for row in aside):
        return batch
    rows = batch.rows.tolist()
    out = [index for index, row in enumerate(rows) if row in aside]
    bad = [
        BadRow(
            rows[index],
            line_at(int(batch.positions[index])),
            aside[rows[index]],
            batch.texts.document(index),
            fatal=True,
        )
        for index in out
    ]
    keep = np.ones(len(rows), bool)
    keep[out] = False
    return batch._replace(
        texts=from_bytes(batch.texts.document(int(index)) for index in np.flatnonzero(keep)),
        rows=batch.rows[keep],
        positions=batch.positions[keep],
        bad=sorted(batch.bad + bad, key=lambda one: one.row),
    )


# --- parquet ---------------------------------------------------------------------------------


def _read_parquet(
    source: Source, segment: Segment, text_column: str, aside: Aside, alive: Alive
) -> Iterator[Batch]:
    import pyarrow

    metadata, starts, sizes = _footer(source.path, source.mtime_ns, text_column)
    with (
        open_parquet(source.path, metadata) as plain,
        open_parquet(source.path, metadata, text_column) as as_dictionary,
    ):
        for group in range(segment.start, segment.stop):
            size, rows = sizes[group], starts[group + 1] - starts[group]
            try:
                if size < DICTIONARY_BYTES + 4 * rows:
                    columns = _dictionary_slices(as_dictionary, group, text_column)
                else:
                    columns = _record_batches(plain, group, size // max(1, rows), text_column)
                for batch in _in_range(_batches(columns, starts[group]), segment, alive):
                    yield _set_aside(batch, aside, lambda _: -1) if aside else batch
            except (OSError, pyarrow.ArrowException) as error:
                raise SourceError(
                    f"{source.name}: row group {group} "
                    f"(rows {starts[group]} to {starts[group + 1] - 1}) "
                    f"cannot be read: {error}",
                    hint="the file is damaged: download it again and compare its checksum",
                ) from None


@functools.lru_cache(maxsize=2)
def _footer(path: str, mtime_ns: int, text_column: str) -> tuple[Any, list[int], list[int]]:
    """Metadata, first rows and text sizes of row groups, kept: a file is read in many segments."""
    with open_parquet(path) as file:
        metadata = file.metadata
    counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    starts = list(itertools.accumulate(counts, initial=0))
    return metadata, starts, text_sizes(metadata, text_column)


def _batches(columns: Iterator[Any], first_row: int) -> Iterator[Batch]:
    for column in columns:
        yield from _split(_arrow_batch(column, first_row))
        first_row += len(column)


def _record_batches(file: Any, group: int, average: int, text_column: str) -> Iterator[Any]:
    for records in file.iter_batches(
        batch_size=max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (average + 1))),
        row_groups=[group],
        columns=[text_column],
        use_threads=False,
    ):
        yield records.column(0)


def _dictionary_slices(file: Any, group: int, text_column: str) -> Iterator[Any]:
    """A row group small enough to be one dictionary, in slices of BATCH_BYTES once decoded.

    Its rows may all stand in the dictionary once and decode to a thousand times its size.
    """
    from pyarrow import compute

    table = file.read_row_group(group, columns=[text_column], use_threads=False)
    for chunk in table.column(0).chunks:
        if not hasattr(chunk, "dictionary"):
            yield chunk
            continue
        sizes = compute.binary_length(chunk.dictionary).to_numpy(zero_copy_only=False)
        places = chunk.indices.fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(sizes[places]) if len(sizes) else np.zeros(len(chunk), np.int64)
        start = done = 0
        while start < len(chunk):
            stop = int(np.searchsorted(ends, done + BATCH_BYTES, side="right"))
            stop = min(len(chunk), max(start + 1, stop))
            yield chunk.slice(start, stop - start)
            start, done = stop, int(ends[stop - 1])


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


def _arrow_batch(column: Any, first_row: int) -> Batch:
    texts, bad = texts_of_arrow(column)
    rows = np.arange(first_row, first_row + len(column), dtype=np.int64)
    if bad:
        keep = np.ones(len(column), bool)
        keep[[b.row for b in bad]] = False
        rows = rows[keep]
        bad = [b._replace(row=b.row + first_row) for b in bad]
    return Batch(texts, rows, rows, bad, first_row, len(column), 0)


def texts_of_arrow(column: Any) -> tuple[Texts, list[BadRow]]:
    """An Arrow column as flat bytes without a copy of the text; nulls and bad UTF-8 aside."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_string_view(column.type) or types.is_binary_view(column.type):
        column = column.cast(pyarrow.large_binary())
    large = types.is_large_string(column.type) or types.is_large_binary(column.type)
    as_text = column.view(pyarrow.large_string() if large else pyarrow.string())
    try:
        as_text.validate(full=True)  # offsets in bounds and every value UTF-8, at 13 GB/s
    except pyarrow.ArrowInvalid:
        return _texts_one_by_one(column)
    if column.null_count:
        return _texts_one_by_one(column)
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(
        offsets_buffer,
        np.int64 if large else np.int32,
        count=len(column) + 1,
        offset=column.offset * (8 if large else 4),
    ).astype(np.int64, copy=False)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return Texts(data, offsets), []


def _texts_one_by_one(column: Any) -> tuple[Texts, list[BadRow]]:
    """The slow way, for a batch in which something is wrong: which rows, and why."""
    import pyarrow
    from pyarrow import types

    large = types.is_large_string(column.type) or types.is_large_binary(column.type)
    raw = column.view(pyarrow.large_binary() if large else pyarrow.binary())
    raw.validate(full=True)  # wrong offsets would kill the process below
    good: list[bytes] = []
    bad: list[BadRow] = []
    for row, value in enumerate(raw):
        content = value.as_py()
        reason = "null, where text should be" if content is None else _utf8_fault(content)
        if reason:
            bad.append(BadRow(row, -1, reason, content or b""))
        else:
            good.append(content)
    return from_bytes(good), bad


def _utf8_fault(content: bytes) -> str:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not valid UTF-8 at byte {error.start} ({error.reason})"
    return ""


def _split(batch: Batch) -> Iterator[Batch]:
    """Cut a batch whose rows are longer than average; documents stay whole."""
    if batch.texts.size <= 2 * BATCH_BYTES or batch.bad:
        yield batch
        return
    offsets, start = batch.texts.offsets, 0
    while start < batch.texts.documents:
        limit = int(offsets[start]) + BATCH_BYTES
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield Batch(
            batch.texts.slice(start, stop),
            batch.rows[start:stop],
            batch.positions[start:stop],
            [],
            int(batch.rows[start]),
            stop - start,
            0,
        )
        start = stop


# --- JSON lines ------------------------------------------------------------------------------


def _read_lines(
    source: Source, segment: Segment, text_column: str, aside: Aside, alive: Alive
) -> Iterator[Batch]:
    decode = _line_decoder(text_column)
    row = line = 0
    try:
        with open_stream(source.path, source.compression) as stream:
            stop = -1 if source.compression else segment.stop
            for block, offset in line_blocks(stream, segment.start, stop, alive):
                batch = _parse_block(block, offset, row, line, decode, text_column)
                if aside:
                    line_at = functools.partial(_line_at, block, offset, line)
                    batch = _set_aside(batch, aside, line_at)
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
    stream: IO[bytes], start: int, stop: int, alive: Alive = _nobody_watches
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


def _line_decoder(text_column: str) -> Any:
    """Decodes one line to an object with `text`, skipping all other fields unbuilt."""
    row_type = msgspec.defstruct("Row", [("text", str)], rename={"text": text_column})
    return msgspec.json.Decoder(row_type).decode


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
            good.append(decode(view[start:end]).text.encode())
            rows.append(row)
            positions.append(offset + begin)
            row += 1
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            content = block[start:end]
            if content.strip():  # a blank line is not a row
                reason = _line_fault(error, text_column)
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


def _line_fault(error: Exception, text_column: str) -> str:
    text = str(error)
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, UnicodeError):
        return f"not valid UTF-8: {text}"
    if isinstance(error, msgspec.ValidationError):
        if "missing required field" in text:
            return f"no field {text_column!r}"
        if "at `$." in text:
            kind = text.partition("got `")[2].partition("`")[0]
            return f"field {text_column!r} is {kind or 'not text'}, where text should be"
        return f"not a JSON object: {text}"
    return f"not valid JSON: {text}"


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
