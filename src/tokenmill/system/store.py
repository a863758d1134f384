"""Where datasets are: a store holds files by name, and every reader of a dataset asks one.

A name is a path below the root of the store, with "/" between its parts. A folder on a disk is a
store, and so could be a bucket.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from tokenmill.system.disk import Buffer, opened, pieces

CHUNK = 1 << 20
FOR_READING = os.O_RDONLY | os.O_NONBLOCK  # a pipe in place of a file would be waited for


class NotAFileError(OSError):
    """Something else than a file has this name: a folder, or a pipe."""


class Store(Protocol):
    """The least that every store can do. What fails raises an OSError."""

    def where(self, name: str = "") -> str:
        """The store, or a file in it, as a message names it."""
        ...

    def size(self, name: str) -> int | None:
        """None: nothing has this name. Raises NotAFileError if something else has it."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """A copy of these bytes; fewer where the file ends."""
        ...

    def list(self, folder: str) -> Iterator[str]:
        """The names that are directly in a folder, "" for the root, without the folder's."""
        ...

    def stream(self, name: str, offset: int, length: int) -> Iterator[Buffer]:
        """The same bytes for what reads them once, in turn: a buffer holds until the next."""
        end = offset + length
        while offset < end and (content := self.read(name, offset, min(CHUNK, end - offset))):
            yield content
            offset += len(content)

    def view(self, name: str) -> memoryview:
        """All bytes of a file for what reads here and there. Of a local file it is a memory map,
        and a fault of the disk ends the process: what must report faults uses `read`."""
        return memoryview(read_whole(self, name))


class FolderStore(Store):
    """A folder of a file system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderStore, (os.path.abspath(self.path),)

    def where(self, name: str = "") -> str:
        return str(self.path / name)

    def size(self, name: str) -> int | None:
        try:
            found = os.stat(self.path / name)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise NotAFileError(errno.EINVAL, "not a regular file", self.where(name))
        return found.st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        with opened(self.path / name, FOR_READING) as fd:
            return b"".join(pieces(fd, offset, length))

    def stream(self, name: str, offset: int, length: int) -> Iterator[Buffer]:
        """Into one buffer that stays in the processor's cache: a fifth less time than `read`."""
        buffer = memoryview(bytearray(min(length, CHUNK)))
        with opened(self.path / name, FOR_READING) as fd, io.FileIO(fd, closefd=False) as file:
            file.seek(offset)
            while length and (got := file.readinto(buffer[:length])):
                yield buffer[:got]
                length -= got

    def view(self, name: str) -> memoryview:
        with opened(self.path / name, FOR_READING) as fd:
            if not os.fstat(fd).st_size:  # cannot be mapped
                return memoryview(b"")
            if sys.version_info >= (3, 13):  # the map holds no descriptor
                return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ, trackfd=False))
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))

    def list(self, folder: str) -> Iterator[str]:
        return iter(sorted(os.listdir(self.path / folder)))


# What a function that reads a dataset takes.
Place = str | os.PathLike[str] | Store


def store_of(place: Place) -> Store:
    return FolderStore(place) if isinstance(place, str | os.PathLike) else place


def has_file(store: Store, name: str) -> bool:
    """Whether there is a file to read; not a folder, a pipe or a link to nowhere."""
    try:
        return store.size(name) is not None
    except OSError:
        return False


def read_whole(store: Store, name: str) -> bytes:
    """All of a small file; FileNotFoundError where there is none."""
    size = store.size(name)
    if size is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), store.where(name))
    return store.read(name, 0, size)


def lines(store: Store, name: str) -> Iterator[bytes]:
    """The lines of a file, without their ends; the file may be larger than memory."""
    rest = b""
    for content in store.stream(name, 0, store.size(name) or 0):
        *whole, rest = (rest + bytes(content)).split(b"\n")
        yield from whole
    if rest:
        yield rest
