"""Files of a job as they are written: tokens in their places, and logs that only grow at their end.

Tokens are written with pwrite, synced in bulk, and only then named in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import xxhash

from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import PieceRecord
from tokenmill.system.disk import Buffer
from tokenmill.system.store import PlacedFolder, PlacedStore, Store, has_file


class JobFiles(Store, Protocol):
    """What workers write to, and what files are made in: a folder, or objects."""

    def write_at(self, name: str, offset: int, buffer: Buffer) -> None:
        """A piece of a unit."""
        ...

    def unit_written(self, unit: UnitId, pieces: Sequence[PieceRecord]) -> None:
        """All pieces of a unit have been given, these last."""
        ...

    def write_file(self, name: str, pieces: Iterable[Buffer], size: int = 0) -> None:
        """A file of these pieces, and nothing behind them. `size`: about how long it gets."""
        ...

    def remove_all(self, names: Iterable[str]) -> None:
        """These files, as far as they are there."""
        ...

    def truncate(self, name: str, size: int) -> None:
        """Cut off what an earlier job left behind a file."""
        ...

    def watch(self, name: str) -> None:
        """Another process of this host has written to a file: `sync` will tell of its errors."""
        ...

    def sync(self, name: str) -> None: ...

    def sync_names(self, folder: str) -> None: ...

    def close(self) -> None: ...


class GrowingLog(Protocol):
    """A log that is opened where its valid records end."""

    def append(self, content: bytes) -> None:
        """Durable when this returns."""
        ...

    def close(self) -> None: ...


class OutputFiles(PlacedFolder):
    """The files of a job as they grow, by their name in the work folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.hold()

    def unit_written(self, unit: UnitId, pieces: Sequence[PieceRecord]) -> None:
        """Its pieces are in their places already."""

    def write_file(self, name: str, pieces: Iterable[Buffer], size: int = 0) -> None:
        """Nothing is cut off before the end. A worker that was taken for dead, and goes on after
        another has made the same file, only writes the same bytes to the same place."""
        at = 0
        for piece in pieces:
            self.write_at(name, at, piece)
            at += memoryview(piece).nbytes
        self.truncate(name, at)

    def remove_all(self, names: Iterable[str]) -> None:
        for name in names:
            if has_file(self, name):
                self.remove(name)


class AppendLog:
    """The journal's file: opened at its valid length, appended to, synced."""

    def __init__(self, store: PlacedStore, name: str, valid_length: int, header: bytes) -> None:
        """`store`: for this log alone, which closes it."""
        self._store, self._name = store, name
        self._store.truncate(self._name, valid_length)  # removes a torn last record
        self._length = valid_length
        if valid_length == 0:
            self.append(header)
            self._store.sync_names("")

    def append(self, content: bytes) -> None:
        self._store.append(self._name, self._length, content)
        self._length += len(content)

    def close(self) -> None:
        self._store.close()


def is_intact(store: Store, name: str, offset: int, length: int, digest: int) -> bool:
    """Whether a piece of a file is still what it was when it was written."""
    try:
        content = store.read(name, offset, length)
    except OSError:
        return False
    return len(content) == length and xxhash.xxh3_64_intdigest(content) == digest
