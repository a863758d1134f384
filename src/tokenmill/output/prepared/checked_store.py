"""A finished dataset of which every byte is compared with its manifest before it is used.

The manifest's table of pieces has a digest for each few megabytes of every file. A piece is
compared when something of it is read for the first time, and never again by the same process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash

from tokenmill.errors import VerificationError
from tokenmill.output.editions import PIECES, UNITS
from tokenmill.output.manifest import FileEntry, Manifest, checksum_of_digests
from tokenmill.system.disk import Buffer
from tokenmill.system.store import Store, read_range, store_of
from tokenmill.texts import I64, Flags


class _Pieces(NamedTuple):
    """The pieces of one file."""

    ends: I64
    digests: list[int]
    compared: Flags


class CheckedStore(Store):
    """The files that a manifest names, to be read; what was changed since is an error.

    `consequence` and `advice`: what the error says about it.
    """

    def __init__(self, path: str, manifest: Manifest, consequence: str, advice: str) -> None:
        self._store = store_of(path)
        self.ranged = self._store.ranged
        self._last: tuple[str, int, bytes] = ("", 0, b"")  # of a bucket: the piece compared last
        self.consequence, self.advice = consequence, advice
        self._entries = {entry.path: entry for entry in manifest.files}
        self._firsts: dict[str, int] = {}
        first = 0
        for entry in manifest.files:
            if entry.path not in (PIECES, UNITS):
                self._firsts[entry.path] = first
                first += entry.pieces
        self._pieces = functools.lru_cache(maxsize=None)(self._read_pieces)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("opened anew in every process")

    def damaged(self, name: str, what: str) -> VerificationError:
        """The error for a file of the dataset; '': for its folder."""
        where = self.where(name) if name else self.where()
        return VerificationError(
            f"{where}: {what}, so {self.consequence}",
            hint=f"{self.advice}; `tokenmill verify` tells what is damaged",
        )

    def table(self, name: str) -> bytes:
        """A table of the index that is a single piece: its digest gives its checksum."""
        entry = self._entry(name)
        content = read_range(self._store, name, 0, entry.size)
        digest = xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")
        if checksum_of_digests(digest) != entry.checksum:
            raise self.damaged(name, "was changed (its checksum differs)")
        return content

    def where(self, name: str = "") -> str:
        return self._store.where(name)

    def size(self, name: str) -> int | None:
        return self._store.size(name)

    def list(self, folder: str) -> Iterator[str]:
        return self._store.list(folder)

    def write_whole(self, name: str, content: bytes) -> None:
        raise TypeError("a finished dataset is only read")

    def create(self, name: str, content: bytes) -> None:
        raise TypeError("a finished dataset is only read")

    def remove(self, name: str) -> bool:
        raise TypeError("a finished dataset is only read")

    def read(self, name: str, offset: int, length: int) -> bytes:
        self._compare(name, offset, offset + length)
        held, begin, content = self._last
        if held == name and begin <= offset and offset + length <= begin + len(content):
            return content[offset - begin : offset - begin + length]
        return self._store.read(name, offset, length)

    def stream(self, name: str, offset: int, length: int) -> Iterator[Buffer]:
        self._compare(name, offset, offset + length)
        return self._store.stream(name, offset, length)

    def view(self, name: str) -> memoryview:
        """A bucket's file is copied first, and the copy is compared: each byte is read once."""
        whole = self._store.view(name) if self.ranged else None
        self._compare(name, 0, self._entry(name).size, whole)
        return self._store.view(name) if whole is None else whole

    def _entry(self, name: str) -> FileEntry:
        if name not in self._entries:
            raise self.damaged(name, "is not in its manifest")
        return self._entries[name]

    @functools.cached_property
    def _table(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        return np.frombuffer(self.table(PIECES), "<u8").reshape(-1, 2)

    def _read_pieces(self, name: str) -> _Pieces:
        entry = self._entry(name)
        first = self._firsts[name]
        rows = self._table[first : first + entry.pieces]
        ends = np.cumsum(rows[:, 0]).astype(np.int64)
        digests = np.ascontiguousarray(rows[:, 1])
        size = int(ends[-1]) if len(ends) else 0
        if checksum_of_digests(digests.tobytes()) != entry.checksum or size != entry.size:
            raise self.damaged(name, "its pieces are not those of the manifest")
        return _Pieces(ends, digests.tolist(), np.zeros(len(ends), bool))

    def _compare(self, name: str, start: int, stop: int, whole: memoryview | None = None) -> None:
        """Compare the pieces of bytes [start, stop) that were not compared before."""
        if stop <= start:
            return
        pieces = self._pieces(name)
        first = int(np.searchsorted(pieces.ends, start, side="right"))
        last = int(np.searchsorted(pieces.ends, stop, side="left"))
        if last >= len(pieces.ends):
            raise self.damaged(name, "is shorter than its index says")
        for piece in range(first, last + 1):
            if pieces.compared[piece]:
                continue
            begin = int(pieces.ends[piece - 1]) if piece else 0
            end = int(pieces.ends[piece])
            found = (
                self._digest(name, begin, end - begin) if whole is None else _of(whole[begin:end])
            )
            if found != pieces.digests[piece]:
                raise self.damaged(name, f"was changed in bytes {begin} to {end - 1}")
            pieces.compared[piece] = True

    def _digest(self, name: str, offset: int, length: int) -> int:
        digest = xxhash.xxh3_64()
        try:
            if self.ranged:  # what is read next is most often in this piece
                self._last = (name, offset, self._store.read(name, offset, length))
                return _of(self._last[2])
            for content in self._store.stream(name, offset, length):
                digest.update(content)
        except OSError as error:
            raise self.damaged(name, f"cannot be read: {error.strerror or error}") from None
        value: int = digest.intdigest()
        return value


def _of(content: Buffer) -> int:
    value: int = xxhash.xxh3_64_intdigest(content)
    return value
