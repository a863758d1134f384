"""What parquet files say about themselves: the footer, and the headers of pages.

A damaged footer must be an error of ours, not the end of the process. A footer has no checksum.
pyarrow ends the whole process (an exception of C++ that nothing catches) when it is asked for a
column chunk whose size statistics do not fit the schema; one flipped bit is enough. Where pyarrow
reads, the same fault is an error. So pyarrow is made to look at every chunk as if to read it, from
a file of which no byte can be read, before any chunk is asked for.

A page is decompressed whole, and a value of 300 MB is in a page of 300 MB. The footer tells only
the size of all pages together. So the headers of pages are read one after the other (Thrift's
compact protocol; each says how far the next one is), and nothing is decompressed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from tokenmill.errors import InputError, SourceError, faults_become, first_line
from tokenmill.inputs.readers.fields import ambiguous

DAMAGED = "the file is damaged: download it again and compare its checksum"
SET_ASIDE = "; --on-bad-row quarantine quarantines what cannot be read"


def encrypted(where: str) -> InputError:
    return InputError(
        f"{where}: the parquet file is encrypted, and tokenmill has no key for it",
        hint="decrypt it first: read it with its keys and write it again",
    )


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


def column_index(where: str, metadata: Any, schema: Any, path: tuple[str, ...]) -> int:
    """The number of a column among the leaves of the schema.

    A column `a.b` and the field b of a struct a have the same path; then the leaves are counted.
    """
    name = ".".join(path)
    found = [i for i, one in enumerate(column_paths(where, metadata)) if one == name]
    if len(found) == 1:
        return found[0]
    leaf = 0
    for field in schema:
        if len(path) == 1 and field.name == name and leaf in found:
            return leaf
        leaf += _leaves(field.type)
    raise ambiguous(where, name)


def _leaves(kind: Any) -> int:
    from pyarrow import types

    if types.is_struct(kind):
        return sum(_leaves(field.type) for field in kind)
    if types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    return _leaves(kind.value_type) if types.is_nested(kind) and hasattr(kind, "value_type") else 1


def _faults(where: str) -> AbstractContextManager[None]:
    return faults_become(
        lambda fault: SourceError(
            f"{where}: the parquet footer cannot be read: {first_line(fault)}", hint=DAMAGED
        )
    )


def text_chunks(
    where: str, metadata: Any, text_column: str, column: int = -1, *, looked_at: bool = False
) -> list[Any]:
    """The text column's chunk of each row group.

    `looked_at`: the process that cut the file has looked. A worker need not look again, and would
    hold more memory from then on (pyarrow starts threads for it).
    """
    groups = list(range(metadata.num_row_groups))
    column = column_paths(where, metadata).index(text_column) if column < 0 else column
    if not looked_at:
        look_at(where, metadata, text_column, column)
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


def look_at(where: str, metadata: Any, name: str, column: int) -> None:
    """Refuse a file whose footer cannot be right about a column."""
    groups = list(range(metadata.num_row_groups))
    if _fault(metadata, column, groups):
        for group in groups:
            fault = _fault(metadata, column, [group])
            if "decrypt" in fault:
                raise encrypted(where)
            if fault:
                raise SourceError(
                    f"{where}: row group {group}: what the footer says of column "
                    f"{name!r} cannot be: {fault}",
                    hint=DAMAGED,
                )


class _ReachedError(Exception):
    """Nothing was wrong up to the first byte that had to be read."""


def _fault(metadata: Any, column: int, groups: list[int]) -> str:
    """What Arrow has against reading these chunks, before it reads any of them; or ''."""
    from pyarrow import parquet

    if not groups:
        return ""
    try:
        # pre_buffer: it then asks for the places of all chunks at once
        with parquet.ParquetFile(_NoBytes(), metadata=metadata, pre_buffer=True) as file:
            next(leaf_batches(file, 1, groups, [column]), None)
    except _ReachedError:
        return ""
    except Exception as error:
        return first_line(error)
    return ""


class _NoBytes(io.RawIOBase):
    """A file that is long enough for every chunk, and cannot be read.

    It is always at its end: pyarrow asks only how long the file is.
    """

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.tell()

    def tell(self) -> int:
        return 1 << 62

    def read(self, size: int = -1) -> bytes:
        raise _ReachedError


# Kinds of values in Thrift's compact protocol.
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, _, _, _, STRUCT = range(13)
V1, DICTIONARY, V2 = 5, 7, 8  # fields of a page header: what is said of each kind of page
HEADER_BYTES = 4096  # one read sees most headers; with long statistics they are longer
MAX_HEADER_BYTES = 16 << 20
DICTIONARY_PAGE = 2


class Page(NamedTuple):
    size: int  # decompressed
    values: int  # rows, as a text column has one value in each
    dictionary: bool


def pages(path: str, chunk: Any) -> list[Page] | None:
    """The pages of a column chunk (pyarrow's ColumnChunkMetaData); None where a header is broken,
    of which pyarrow will have more to say."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    try:
        with open(path, "rb", buffering=0) as file:
            return list(_pages(file.fileno(), start, start + chunk.total_compressed_size))
    except (IndexError, ValueError, KeyError, TypeError):
        return None


def _pages(fd: int, at: int, stop: int) -> Iterator[Page]:
    while at < stop:
        header, length = _header(fd, at)
        size, stored = header[2], header[3]
        if size < 0 or stored < 0:
            raise ValueError("a size below zero")
        kind = next((header[n] for n in (V1, V2, DICTIONARY) if n in header), {1: 0})
        yield Page(size, kind[1], header[1] == DICTIONARY_PAGE)
        at += length + stored


def _header(fd: int, at: int) -> tuple[dict[int, Any], int]:
    size = HEADER_BYTES
    while True:
        data = os.pread(fd, size, at)
        try:
            reader = _Reader(data)
            return reader.struct(), reader.at
        except IndexError:
            if len(data) < size or size >= MAX_HEADER_BYTES:
                raise
            size *= 16


class _Reader:
    """Values of Thrift's compact protocol. Strings are skipped: nothing here needs them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def unsigned(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number too long")

    def signed(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > 8:
            raise ValueError("nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self.byte()) != STOP:
            number = number + (head >> 4) if head >> 4 else self.signed()
            fields[number] = self.value(head & 0x0F, depth)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return self.signed()
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind not in (BYTE, DOUBLE, BINARY):  # a page header holds no list
            raise ValueError(f"a field of kind {kind}")
        skip = self.unsigned() if kind == BINARY else {BYTE: 1, DOUBLE: 8}[kind]
        self.at += skip
        if self.at > len(self.data):
            raise IndexError("beyond what was read")
        return None


READ_BUFFER = 1 << 20


def leaf_batches(file: Any, rows: int, groups: list[int], columns: list[int]) -> Iterator[Any]:
    """Record batches of some leaves of the schema: names may mean more than one."""
    batches: Iterator[Any] = file.reader.iter_batches(
        rows, row_groups=groups, column_indices=columns, use_threads=False
    )
    return batches


def open_parquet(path: str, metadata: Any = None, dictionary: str = "") -> Any:
    """A pyarrow ParquetFile that checks page checksums where there are any.

    The column named by `dictionary` is left as one where it is stored as one.
    """
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=[dictionary] if dictionary else None,
            page_checksum_verification=True,
            buffer_size=READ_BUFFER,  # else a column chunk is read whole before its first page
        )
    except Exception as error:  # a damaged footer may be anything, a name that is no text too
        raise SourceError(
            f"{path}: the parquet footer cannot be read: {error}",
            hint="download the file again and compare its size or checksum",
        ) from None
