"""Documents as rows of Arrow record batches: what `hf` and `parquet` have in common."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tokenmill.formats.base import I64, Array

MAX_DOCUMENT_TOKENS = 2**31 - 1  # of a list with 32-bit offsets


class Collector(io.RawIOBase):
    """A file in memory whose content is taken away as it grows."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.parts.append(part)
        self.position += len(part)
        return len(part)

    def tell(self) -> int:
        return self.position

    def take(self) -> bytes:
        content, self.parts = b"".join(self.parts), []
        return content


def list_of(tokens: Array, lengths: I64) -> Any:
    """One list for each document, over the same memory."""
    import pyarrow

    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))).astype(np.int32)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(tokens))


def values_of(column: Any) -> Array:
    """The tokens of all lists of a column, in order."""
    found: Array = column.flatten().to_numpy(zero_copy_only=False)
    return found
