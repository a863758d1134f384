"""What a parquet footer says, asked so that a damaged one is an error of ours.

A footer has no checksum. pyarrow ends the whole process (an exception of C++ that nothing
catches) when it is asked for a column chunk whose size statistics do not fit the schema; one
flipped bit is enough. Where it reads, the same fault is an error. So it is made to look at every
chunk as if to read it, from a file of which no byte can be read, before any is asked for.
"""

from __future__ import annotations

import io
import os
from contextlib import AbstractContextManager
from typing import Any

from tokenmill.errors import SourceError, faults_become, first_line

DAMAGED = "the file is damaged: download it again and compare its checksum"


def row_counts(where: str, metadata: Any) -> list[int]:
    """Rows of each row group; an error when they are not the rows of the file."""
    counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise SourceError(
            f"{where}: its row groups hold {sum(counts)} rows, its footer counts "
            f"{metadata.num_rows}",
            hint=DAMAGED,
        )
    return counts


def column_paths(where: str, metadata: Any) -> list[str]:
    """The names of all columns, nested ones with their path."""
    with _faults(where):
        return [metadata.schema.column(i).path for i in range(metadata.num_columns)]


def _faults(where: str) -> AbstractContextManager[None]:
    return faults_become(
        lambda fault: SourceError(
            f"{where}: the parquet footer cannot be read: {first_line(fault)}", hint=DAMAGED
        )
    )


def text_sizes(where: str, metadata: Any, text_column: str) -> list[int]:
    """Uncompressed bytes of the text column in each row group."""
    chunks = text_chunks(where, metadata, text_column)
    return [chunk.total_uncompressed_size for chunk in chunks]


def text_chunks(
    where: str, metadata: Any, text_column: str, *, looked_at: bool = False
) -> list[Any]:
    """The text column's chunk of each row group.

    `looked_at`: by whoever cut the file into segments. A worker need not look again, and would
    hold more memory from then on (pyarrow starts threads for it).
    """
    groups = list(range(metadata.num_row_groups))
    if not looked_at and _fault(metadata, text_column, groups):
        for group in groups:
            fault = _fault(metadata, text_column, [group])
            if fault:
                raise SourceError(
                    f"{where}: row group {group}: what the footer says of column "
                    f"{text_column!r} cannot be: {fault}",
                    hint=DAMAGED,
                )
    column = column_paths(where, metadata).index(text_column)
    with _faults(where):
        chunks = [metadata.row_group(i).column(column) for i in groups]
    for group, chunk in enumerate(chunks):
        # Asked for statistics of another type than the column's, pyarrow ends the process too.
        if chunk.total_uncompressed_size < 0 or chunk.physical_type != "BYTE_ARRAY":
            raise SourceError(
                f"{where}: row group {group}: its footer says that the text is "
                f"{chunk.total_uncompressed_size} bytes of {chunk.physical_type}",
                hint=DAMAGED,
            )
    return chunks


class _ReachedError(Exception):
    """Nothing was wrong up to the first byte that had to be read."""


def _fault(metadata: Any, text_column: str, groups: list[int]) -> str:
    """What Arrow has against reading these chunks, before it reads any of them; or ''."""
    from pyarrow import parquet

    if not groups:
        return ""
    try:
        # pre_buffer: it then asks for the places of all chunks at once
        with parquet.ParquetFile(_NoBytes(), metadata=metadata, pre_buffer=True) as file:
            next(
                file.iter_batches(1, row_groups=groups, columns=[text_column], use_threads=False),
                None,
            )
    except _ReachedError:
        return ""
    except Exception as error:
        return first_line(error)
    return ""


class _NoBytes(io.RawIOBase):
    """A file that is long enough for every chunk, and cannot be read."""

    SIZE = 1 << 62

    def __init__(self) -> None:
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.SIZE}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        raise _ReachedError
