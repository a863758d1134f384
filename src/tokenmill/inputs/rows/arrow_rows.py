"""Rows of parquet and Arrow columns for a filter or a template: values of Python, row by row.

Text columns come as bytes, so that text which is not UTF-8 becomes a bad row and not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.inputs.batch import BadRow, Batch
from tokenmill.inputs.readers.columns import MAX_BATCH_ROWS, slices
from tokenmill.inputs.readers.fields import check_path, field_of, is_text_type
from tokenmill.inputs.rows.row_rule import RowRule
from tokenmill.inputs.rows.template import RowFaultError
from tokenmill.inputs.segments import BATCH_BYTES
from tokenmill.texts import from_bytes

Paths = dict[str, tuple[str, ...]]  # columns to the names that lead to them


def paths_of(where: str, schema: Any, names: tuple[str, ...]) -> Paths:
    """The place of each column; an error for one that is not there."""
    return {name: check_path(where, schema, name) for name in names}


def rule_batches(
    records: Iterator[Any], rule: RowRule, paths: Paths, first_row: int
) -> Iterator[Batch]:
    """Record batches to batches of documents, some rows at a time."""
    for part in records:
        average = part.nbytes // max(1, part.num_rows)
        step = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES // (average + 1)))
        for start in range(0, part.num_rows, step):
            yield _batch(part.slice(start, step), rule, paths, first_row + start)
        first_row += part.num_rows


def _batch(records: Any, rule: RowRule, paths: Paths, first_row: int) -> Batch:
    columns = {name: _values(records, path) for name, path in paths.items()}
    names = tuple(columns)
    texts: list[bytes] = []
    rows: list[int] = []
    bad: list[BadRow] = []
    for row, values in enumerate(zip(*columns.values(), strict=True), first_row):
        try:
            text = rule.text(dict(zip(names, values, strict=True)))
        except RowFaultError as error:
            bad.append(BadRow(row, -1, str(error), b""))
            continue
        if text is not None:
            texts.append(text)
            rows.append(row)
    numbers = np.array(rows, np.int64)
    made = from_bytes(texts)
    batch = Batch(made, numbers, numbers, bad, first_row, records.num_rows, 0)
    return batch.without(made.faults())


def _values(records: Any, path: tuple[str, ...]) -> list[Any]:
    """A column's values; nothing is followed that Arrow has not checked."""
    import pyarrow
    from pyarrow import types

    column = records.column(records.schema.names.index(path[0]))
    column.validate()
    column = field_of(column, path)
    if is_text_type(column.type):
        return [value for part in slices(column) for value in part.to_pylist()]
    column.validate(full=True)
    if types.is_timestamp(column.type):  # nanoseconds are not Python's
        column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
    values: list[Any] = column.to_pylist()
    return values
