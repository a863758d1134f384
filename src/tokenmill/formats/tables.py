"""Documents as rows of Arrow record batches: what `hf` and `parquet` have in common."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tokenmill.formats import base
from tokenmill.settings import Layout
from tokenmill.texts import I64

MAX_DOCUMENT_TOKENS = 2**31 - 1  # of a list with 32-bit offsets


def ids_type(layout: Layout) -> Any:
    import pyarrow

    return pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(layout.dtype)))


def taken(sink: io.BytesIO) -> bytes:
    """What was written to a file in memory since the last time."""
    content = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return content


def list_of(tokens: base.Array, lengths: I64) -> Any:
    """One list for each document, over the same memory."""
    import pyarrow

    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))).astype(np.int32)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(tokens))


def values_of(column: Any) -> base.Array:
    """The tokens of all lists of a column, in order."""
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False))
