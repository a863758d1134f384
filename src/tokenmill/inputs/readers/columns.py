"""Arrow columns to batches of documents: every text type, nulls and bad UTF-8 quarantined.

Columns of an Arrow file come as they are on disk: nothing has checked them. So nothing here follows
an offset, an index or a view before Arrow's own validation has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.inputs.batch import Batch
from tokenmill.inputs.segments import BATCH_BYTES
from tokenmill.texts import (
    I64,
    arrow_offsets,
    checked_bytes,
    from_arrow,
    is_view,
    null_rows,
    numbers_of,
    offsets_of,
    runs,
)

MAX_BATCH_ROWS = 1 << 16
MAX_DICTIONARY_BYTES = 1 << 30


def text_batches(columns: Iterator[Any], first_row: int) -> Iterator[Batch]:
    for column in columns:
        yield from _split(_arrow_batch(column, first_row))
        first_row += len(column)


def slices(column: Any) -> Iterator[Any]:
    """An unchecked column in slices of about BATCH_BYTES of text, as checked plain binary.

    Raises pyarrow.ArrowInvalid where the column is not what it should be.
    """
    import pyarrow
    from pyarrow import types

    column.validate()  # buffers are as long as they must be; follows no offset yet
    if types.is_dictionary(column.type):
        yield from dictionary_slices(column, MAX_BATCH_ROWS)
    elif len(column):
        raw = checked_bytes(column)
        view = is_view(raw.type)
        offsets = offsets_of(_lengths(raw)) if view else arrow_offsets(raw)
        for start, stop in runs(offsets, BATCH_BYTES, MAX_BATCH_ROWS):
            part = raw.slice(start, stop - start)
            # Views may share their text, so that a copy of a few of them may be large.
            yield part.cast(pyarrow.large_binary()) if view else part


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

    All rows may be one entry of the dictionary, and decode to a thousand times its size.
    """
    import pyarrow

    values = _plain_values(column.dictionary)
    sizes = _lengths(values)
    places = np.where(null_rows(column.indices), 0, numbers_of(column.indices))
    column = pyarrow.DictionaryArray.from_arrays(column.indices, values)  # checks the indices
    lengths = sizes[places] if len(sizes) else np.zeros(len(column), np.int64)
    for start, stop in runs(offsets_of(lengths), BATCH_BYTES, rows):
        yield column.slice(start, stop - start).dictionary_decode()


def _plain_values(values: Any) -> Any:
    """A dictionary's values as checked binary; of views, a copy."""
    import pyarrow

    raw = checked_bytes(values)
    if not is_view(raw.type):
        return raw
    total = int(_lengths(raw).sum())
    if total > MAX_DICTIONARY_BYTES:
        raise pyarrow.ArrowInvalid(f"a dictionary of views that come to {total} bytes of text")
    return raw.cast(pyarrow.large_binary())


def _lengths(raw: Any) -> I64:
    """Bytes of each value of a checked column, 0 for nulls."""
    if len(raw) == 0:
        return np.zeros(0, np.int64)
    if is_view(raw.type):
        views = np.frombuffer(raw.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[raw.offset : raw.offset + len(raw), 0].astype(np.int64)
    else:
        lengths = np.diff(arrow_offsets(raw))
    if raw.null_count:
        lengths = np.where(null_rows(raw), 0, lengths)
    return lengths


def _arrow_batch(column: Any, first_row: int) -> Batch:
    texts, nulls = from_arrow(column)
    rows = np.arange(first_row, first_row + len(column), dtype=np.int64)
    faults = texts.faults()
    faults.update(dict.fromkeys(np.flatnonzero(nulls).tolist(), "null, where text should be"))
    return Batch(texts, rows, rows, [], first_row, len(column), 0).without(faults)


def _split(batch: Batch) -> Iterator[Batch]:
    """Cut a batch whose rows are longer than average; documents stay whole."""
    if batch.texts.size <= 2 * BATCH_BYTES or batch.bad:
        yield batch
        return
    for start, stop in runs(batch.texts.offsets, BATCH_BYTES):
        yield batch.between(batch.first_row + start, batch.first_row + stop)
