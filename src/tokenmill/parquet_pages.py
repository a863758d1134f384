"""How large the pages of a parquet column are: from their headers alone, nothing is decompressed.

pyarrow reads a column chunk page by page, and a page is decompressed whole: a value of 300 MB
stands in a page of 300 MB. The footer tells the size of all pages together only, so the headers
are read one after the other (Thrift's compact protocol; each says how far the next one is).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

HEADER_BYTES = 4096  # one read sees most headers; with long statistics they are longer
MAX_HEADER_BYTES = 16 << 20
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
DICTIONARY_PAGE = 2
V1, DICTIONARY, V2 = 5, 7, 8  # fields of a page header: what is said of each kind of page


class Page(NamedTuple):
    size: int  # decompressed
    stored: int
    values: int  # rows, as a text column has one value in each
    dictionary: bool


def pages(path: str, chunk: Any) -> list[Page] | None:
    """The pages of a column chunk (pyarrow's ColumnChunkMetaData); None where a header is broken,
    of which pyarrow will have more to say."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return list(_pages(fd, start, start + chunk.total_compressed_size))
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(fd)


def _pages(fd: int, at: int, stop: int) -> Iterator[Page]:
    while at < stop:
        header, length = _header(fd, at)
        size, stored = header[2], header[3]
        if size < 0 or stored < 0:
            raise ValueError("a size below zero")
        kind = next((header[n] for n in (V1, V2, DICTIONARY) if n in header), {1: 0})
        yield Page(size, stored, kind[1], header[1] == DICTIONARY_PAGE)
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
    """Values of Thrift's compact protocol. Strings are passed over: no one asks for them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
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
        skip = {BYTE: 1, DOUBLE: 8}.get(kind)
        if kind == BINARY:
            skip = self.unsigned()
        if skip is None:  # no list stands in a page header
            raise ValueError(f"a field of kind {kind}")
        self.at += skip
        if self.at > len(self.data):
            raise IndexError("beyond what was read")
        return None
