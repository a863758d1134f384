"""Streams of tokens in a store, as plain data: enough for any process to read them.

A description is sent to a worker once. It names files in a store, never paths.
"""

from __future__ import annotations

import bisect
import functools

import msgspec
import numpy as np

from tokenmill.errors import StorageError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Slices, stored_dtype
from tokenmill.settings import Layout, PlanSettings
from tokenmill.system.disk import Buffer, explained
from tokenmill.system.store import Store, read_range
from tokenmill.texts import I64
from tokenmill.tokens.shards import origins_in


class TokenFile(msgspec.Struct, frozen=True, array_like=True):
    name: str  # in the store
    first_token: int  # of its stream
    tokens: int


class StreamFiles(msgspec.Struct, frozen=True):
    """A stream, and where it is stored."""

    name: str
    settings: PlanSettings
    layout: Layout
    tokens: int
    documents: int
    files: tuple[TokenFile, ...]  # in order
    ends: str  # the table of where documents end
    runs: str  # the table of what they were made from
    sources: tuple[str, ...]  # names of the inputs
    framed: bool = False  # something is around every document in the files


class FileStream:
    """A stream that is read from its files (`reframe.StoredStream`)."""

    def __init__(self, store: Store, about: StreamFiles) -> None:
        self.store, self.about = store, about
        self.name, self.settings, self.layout = about.name, about.settings, about.layout
        self.tokens, self.documents = about.tokens, about.documents
        self.dtype = stored_dtype(about.layout)
        self._format = get_format(about.layout.format)
        self._header_bytes = self._format.header_bytes(about.layout)
        self._opened: tuple[int, Slices] | None = None

    def read(self, start: int, stop: int) -> Array:
        parts, files = [np.zeros(0, self.dtype)], self.about.files
        number = bisect.bisect_right(files, start, key=lambda file: file.first_token) - 1
        while start < stop:
            file = files[number]
            upto = min(stop, file.first_token + file.tokens)
            parts.append(self._read(number, start - file.first_token, upto - start))
            start, number = upto, number + 1
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _read(self, number: int, at: int, count: int) -> Array:
        file = self.about.files[number]
        if not self.about.framed:
            size = self.dtype.itemsize
            content = self._bytes(file.name, self._header_bytes + at * size, count * size)
            return np.frombuffer(content, self.dtype)
        if self._opened is None or self._opened[0] != number:
            try:
                view = self.store.view(file.name)
                self._opened = number, self._format.open_tokens(self.layout, view, file.tokens)
            except (OSError, ValueError) as error:
                where = self.store.where(file.name)
                raise StorageError(f"{where}: cannot be read: {error}") from None
        return self._opened[1][at : at + count]

    def ends_of(self, first: int, stop: int) -> I64:
        if stop <= first:
            return np.zeros(0, np.int64)
        content = self._table_bytes(first * 8, (stop - first) * 8)
        return np.frombuffer(content, "<u8").astype(np.int64)

    def origins_of(self, first: int, stop: int) -> tuple[list[str], I64, I64]:
        return list(self.about.sources), *origins_in(self._runs, first, stop)

    def _table_bytes(self, at: int, length: int) -> Buffer:
        """Of the table of ends. In a bucket a search in it would be a request for each step."""
        if not self.store.ranged:
            return self._bytes(self.about.ends, at, length)
        return self._checked(self._ends[at : at + length], self.about.ends, length)

    @functools.cached_property
    def _ends(self) -> memoryview:
        with explained("read", self.store.where(self.about.ends)):
            return self.store.view(self.about.ends)

    @functools.cached_property
    def _runs(self) -> Array:
        return np.frombuffer(self.store.view(self.about.runs), "<u8").reshape(-1, 3)

    def _bytes(self, name: str, at: int, length: int) -> Buffer:
        return self._checked(read_range(self.store, name, at, length), name, length)

    def _checked(self, content: Buffer, name: str, length: int) -> Buffer:
        if memoryview(content).nbytes != length:
            raise StorageError(f"{self.store.where(name)}: shorter than it was")
        return content
