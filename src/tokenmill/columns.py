"""Arrow columns to batches of documents: every text type, nulls and bad UTF-8 set aside.

Columns of an Arrow file come as they lie on disk: nothing checked them. So nothing here follows
an offset, an index or a view before Arrow's own validation has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.batch import BadRow, Batch
from tokenmill.plan import BATCH_BYTES
from tokenmill.texts import I64, Texts, from_bytes, utf8_fault

MAX_BATCH_ROWS = 1 << 16
MAX_DICTIONARY_BYTES = 1 << 30


def batches_of(columns: Iterator[Any], first_row: int) -> Iterator[Batch]:
    for column in columns:
        yield from _split(_arrow_batch(column, first_row))
        first_row += len(column)


def slices(column: Any) -> Iterator[Any]:
    """An unchecked column in slices of about BATCH_BYTES of text, as checked plain binary.

    Raises pyarrow.ArrowInvalid where the column is not what it should be.
    """
    from pyarrow import types

    column.validate()  # buffers are as long as they must be; follows no offset yet
    if types.is_dictionary(column.type):
        yield from dictionary_slices(column, MAX_BATCH_ROWS)
    elif types.is_string_view(column.type) or types.is_binary_view(column.type):
        yield from _view_slices(column)
    elif len(column):
        raw = _checked(column)
        offsets = _offsets(raw)
        for start, stop in _cuts(offsets[1:] - offsets[0], MAX_BATCH_ROWS):
            yield raw.slice(start, stop - start)


def joined(columns: Iterator[Any]) -> Iterator[Any]:
    """Small checked columns put together up to BATCH_BYTES: some writers put a row in each."""
    import pyarrow

    waiting: list[Any] = []
    size = rows = 0
    for column in columns:
        if waiting and (size + column.nbytes > BATCH_BYTES or rows + len(column) > MAX_BATCH_ROWS):
            yield pyarrow.concat_arrays(waiting) if len(waiting) > 1 else waiting[0]
            waiting, size, rows = [], 0, 0
        waiting.append(column)
        size, rows = size + column.nbytes, rows + len(column)
    if waiting:
        yield pyarrow.concat_arrays(waiting) if len(waiting) > 1 else waiting[0]


def dictionary_slices(column: Any, rows: int) -> Iterator[Any]:
    """A dictionary column in slices of BATCH_BYTES once decoded.

    Its rows may all stand in the dictionary once and decode to a thousand times its size.
    """
    import pyarrow

    values = _plain_values(column.dictionary)
    sizes = _lengths(values)
    places = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    column = pyarrow.DictionaryArray.from_arrays(column.indices, values)  # checks the indices
    ends = np.cumsum(sizes[places]) if len(sizes) else np.zeros(len(column), np.int64)
    for start, stop in _cuts(ends, rows):
        yield column.slice(start, stop - start).dictionary_decode()


def _plain_values(values: Any) -> Any:
    """A dictionary's values as checked binary; of views, a copy."""
    import pyarrow
    from pyarrow import types

    if not (types.is_string_view(values.type) or types.is_binary_view(values.type)):
        return _checked(values)
    views = _checked(values)
    total = int(_lengths(views).sum())
    if total > MAX_DICTIONARY_BYTES:
        raise pyarrow.ArrowInvalid(f"a dictionary of views that come to {total} bytes of text")
    return views.cast(pyarrow.large_binary())


def _view_slices(column: Any) -> Iterator[Any]:
    """A column of views as copies of BATCH_BYTES: views may share their text, copies do not."""
    import pyarrow

    views = _checked(column)
    for start, stop in _cuts(np.cumsum(_lengths(views)), MAX_BATCH_ROWS):
        yield views.slice(start, stop - start).cast(pyarrow.large_binary())


def _checked(column: Any) -> Any:
    """The column as bytes, its offsets or views in bounds; whether they are UTF-8 comes later."""
    import pyarrow
    from pyarrow import types

    column.validate()
    if types.is_string_view(column.type) or types.is_binary_view(column.type):
        kind = pyarrow.binary_view()
    else:
        kind = pyarrow.large_binary() if _is_large(column) else pyarrow.binary()
    raw = column.view(kind)
    raw.validate(full=True)
    return raw


def _lengths(raw: Any) -> I64:
    """Bytes of each value of a checked column, 0 for nulls."""
    from pyarrow import types

    if len(raw) == 0:
        return np.zeros(0, np.int64)
    if types.is_binary_view(raw.type):
        views = np.frombuffer(raw.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[raw.offset : raw.offset + len(raw), 0].astype(np.int64)
    else:
        lengths = np.diff(_offsets(raw))
    if raw.null_count:
        lengths = np.where(raw.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return lengths


def _offsets(raw: Any) -> I64:
    width = 8 if _is_large(raw) else 4
    return np.frombuffer(
        raw.buffers()[1],
        np.int64 if width == 8 else np.int32,
        count=len(raw) + 1,
        offset=raw.offset * width,
    ).astype(np.int64, copy=False)


def _is_large(column: Any) -> bool:
    from pyarrow import types

    return bool(types.is_large_string(column.type) or types.is_large_binary(column.type))


def _cuts(ends: I64, rows: int) -> Iterator[tuple[int, int]]:
    """Runs of rows worth BATCH_BYTES, at least one row each and at most `rows`."""
    start = done = 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, done + BATCH_BYTES, side="right"))
        stop = min(len(ends), start + rows, max(start + 1, stop))
        yield start, stop
        start, done = stop, int(ends[stop - 1])


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
    large = _is_large(column)
    as_text = column.view(pyarrow.large_string() if large else pyarrow.string())
    try:
        as_text.validate(full=True)  # offsets in bounds and every value UTF-8, at 13 GB/s
    except pyarrow.ArrowInvalid:
        return _texts_one_by_one(column)
    if column.null_count:
        return _texts_one_by_one(column)
    offsets = _offsets(column) if len(column) else np.zeros(1, np.int64)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    return Texts(data, offsets), []


def _texts_one_by_one(column: Any) -> tuple[Texts, list[BadRow]]:
    """The slow way, for a batch in which something is wrong: which rows, and why."""
    raw = _checked(column)  # wrong offsets would kill the process below
    good: list[bytes] = []
    bad: list[BadRow] = []
    for row, value in enumerate(raw):
        content = value.as_py()
        reason = "null, where text should be" if content is None else utf8_fault(content)
        if reason:
            bad.append(BadRow(row, -1, reason, content or b""))
        else:
            good.append(content)
    return from_bytes(good), bad


def _split(batch: Batch) -> Iterator[Batch]:
    """Cut a batch whose rows are longer than average; documents stay whole."""
    if batch.texts.size <= 2 * BATCH_BYTES or batch.bad:
        yield batch
        return
    for start, stop in batch.texts.runs(BATCH_BYTES):
        yield Batch(
            batch.texts.slice(start, stop),
            batch.rows[start:stop],
            batch.positions[start:stop],
            [],
            int(batch.rows[start]),
            stop - start,
            0,
        )
