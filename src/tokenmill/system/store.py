"""Where datasets are: a store holds files by name, and every reader of a dataset asks one.

A name is a path below the root of the store, with "/" between its parts. A folder on a disk is a
store, and so could be a bucket.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from tokenmill.errors import StorageError
from tokenmill.system import disk as steps
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.disk import (
    CREATE,
    Buffer,
    create_exclusively,
    explained,
    is_published,
    make_folder,
    opened,
    pieces,
    publish,
    remove_tree,
    sync_data,
    sync_directory,
    unlink,
    withdraw,
    write_all,
    write_atomic,
)
from tokenmill.system.lock import FileLock

CHUNK = 1 << 20
FOR_READING = os.O_RDONLY | os.O_NONBLOCK  # a pipe in place of a file would be waited for


class NotAFileError(OSError):
    """Something else than a file has this name: a folder, or a pipe."""


class Store(Protocol):
    """The least that every store can do. A read that fails raises an OSError; a write that fails,
    a StorageError that explains it. So does a store that cannot be reached: its files may be
    whole."""

    ranged: bool = False  # a `view` costs a copy of the whole file, a `read` only what it reads

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

    def write_whole(self, name: str, content: bytes) -> None:
        """A file that is there completely or not at all, even after a power cut."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Like `write_whole`, but never over an existing file: a RefusedError."""
        ...

    def remove(self, name: str) -> bool:
        """Whether there was something to remove."""
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


class PlacedStore(Store, Protocol):
    """What a folder of a file system can do in addition, and a bucket cannot: files that grow."""

    def write_at(self, name: str, offset: int, buffer: Buffer) -> None:
        """Into a file that need not be there yet. Durable only after `sync` and `sync_names`."""
        ...

    def truncate(self, name: str, size: int) -> None: ...

    def append(self, name: str, length: int, content: bytes) -> None:
        """Durable, behind the first `length` bytes, which stay what they are if this fails."""
        ...

    def sync(self, name: str) -> None:
        """The bytes of a file are durable when this returns."""
        ...

    def sync_names(self, folder: str) -> None:
        """The names in a folder are durable when this returns."""
        ...

    def publish(self, working: str, name: str) -> None:
        """Give a finished file its final name, never over an existing file: a RefusedError."""
        ...

    def is_published(self, working: str, name: str) -> bool: ...

    def withdraw(self, working: str, name: str) -> None:
        """Take a final name away again."""
        ...

    def lock(self, name: str) -> FileLock:
        """A RefusedError if another process holds it. It ends with this process at the latest.
        The folder that it is in is there, and durable, once this returns."""
        ...

    def make_folder(self, folder: str) -> None:
        """And those above it, where missing. A bucket has no folders."""
        ...

    def remove_folder(self, folder: str) -> bool:
        """Only if it is empty; whether it is gone."""
        ...

    def remove_tree(self, name: str) -> None:
        """A file, or a folder with all that is in it."""
        ...

    def within(self, folder: str) -> PlacedStore:
        """A store of its own for a folder of this one: it keeps its own files open."""
        ...

    def close(self) -> None: ...


class ObjectStore(Store, Protocol):
    """What a bucket can do in addition. Its files are written whole and never changed; nothing is
    renamed, locked or appended to."""

    address: str  # by which another process opens it; "": no other can

    def write_parts(self, name: str, parts: Iterable[Buffer], size: int = 0) -> None:
        """A file of any size, over an existing one. It is there once all parts are, not before.
        `size`: about how long it gets, where that is known."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """All files whose name begins so, in the order of their names."""
        ...

    def remove_all(self, names: Iterable[str]) -> None:
        """In any order."""
        for name in names:
            self.remove(name)

    def check_conditions(self) -> None:
        """Refuses a store in which `create` is not to be trusted."""
        return

    def abort_uploads(self) -> None:
        """Forget files of which a process that has died wrote some parts. Only while nobody
        writes."""
        return


class FolderStore(Store):
    """A folder of a file system."""

    def __init__(self, path: str | os.PathLike[str], scratch: Path | None = None) -> None:
        self.path = Path(path)
        self.scratch = scratch  # for files that are not whole yet; None: beside their final name

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

    def write_whole(self, name: str, content: bytes) -> None:
        path = self.path / name
        write_atomic(path, content, self.scratch and self.scratch / f".{path.name}.tmp")

    def create(self, name: str, content: bytes) -> None:
        create_exclusively(self.path / name, content)

    def remove(self, name: str) -> bool:
        with explained("remove", self.path / name):
            return unlink(self.path / name)

    def list(self, folder: str) -> Iterator[str]:
        return iter(sorted(os.listdir(self.path / folder)))


class PlacedFolder(FolderStore, PlacedStore):
    """A folder whose files grow. The files that are written to stay open, some at a time."""

    MAX_OPEN = 32

    def __init__(self, path: str | os.PathLike[str], scratch: Path | None = None) -> None:
        super().__init__(path, scratch)
        self._fds: dict[str, int] = {}
        self._folder_fd: int | None = None

    def hold(self) -> None:
        """Keep the folder itself open: --overwrite makes a new folder of the same name, and a
        worker that outlives its coordinator must not write to files of another plan there."""
        with explained("open", self.path), contextlib.suppress(FileNotFoundError):
            self._folder_fd = -1  # and never the folder that is made later
            self._folder_fd = steps.disk.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _fd(self, name: str) -> int:
        fd = self._fds.pop(name, None)
        if fd is None:
            if len(self._fds) >= self.MAX_OPEN:
                steps.disk.close(self._fds.pop(next(iter(self._fds))))
            with explained("open", self.path / name):
                held = self._folder_fd
                place = self.path / name if held is None else name
                flags = CREATE | os.O_CLOEXEC
                fd = steps.disk.open(place, flags, 0o644, dir_fd=held)
        self._fds[name] = fd
        return fd

    def write_at(self, name: str, offset: int, buffer: Buffer) -> None:
        with explained("write", self.path / name, memoryview(buffer).nbytes):
            write_all(self._fd(name), buffer, offset)

    def truncate(self, name: str, size: int) -> None:
        with explained("truncate", self.path / name):
            steps.disk.ftruncate(self._fd(name), size)

    def append(self, name: str, length: int, content: bytes) -> None:
        with explained("append to", self.path / name, len(content)):
            fd = self._fd(name)
            try:
                write_all(fd, content, length)
                steps.disk.fsync(fd)
            except OSError:
                with contextlib.suppress(OSError):
                    steps.disk.ftruncate(fd, length)
                raise

    def watch(self, name: str) -> None:
        """Linux tells an error of writing once to everyone who had the file open, and never to
        those who open it later."""
        self._fd(name)

    def sync(self, name: str) -> None:
        fd = self._fd(name)
        with explained("sync", self.path / name, os.fstat(fd).st_size):
            sync_data(fd)

    def sync_names(self, folder: str) -> None:
        sync_directory(self.path / folder)

    def publish(self, working: str, name: str) -> None:
        publish(self.path / working, self.path / name)

    def is_published(self, working: str, name: str) -> bool:
        return is_published(self.path / working, self.path / name)

    def withdraw(self, working: str, name: str) -> None:
        withdraw(self.path / working, self.path / name)

    def lock(self, name: str) -> FileLock:
        lock = FileLock(self.path / name, self.path)
        for folder in dict.fromkeys((self.path, *(new.parent for new in lock.made))):
            sync_directory(folder)
        return lock

    def make_folder(self, folder: str) -> None:
        with explained("create the folder", self.path / folder):
            make_folder(self.path / folder)

    def remove_folder(self, folder: str) -> bool:
        with explained("remove", self.path / folder):
            try:
                steps.disk.rmdir(self.path / folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
                return error.errno == errno.ENOENT
        return True

    def remove_tree(self, name: str) -> None:
        with explained("remove", self.path / name):
            remove_tree(self.path / name)

    def remove(self, name: str) -> bool:
        if name in self._fds:  # or its bytes would stay on the disk
            steps.disk.close(self._fds.pop(name))
        return super().remove(name)

    def within(self, folder: str) -> PlacedFolder:
        return PlacedFolder(self.path / folder)

    def close(self) -> None:
        for fd in self._fds.values():
            steps.disk.close(fd)
        self._fds.clear()
        if self._folder_fd is not None:
            if self._folder_fd >= 0:
                steps.disk.close(self._folder_fd)
            self._folder_fd = -1


# What a function that reads a dataset takes.
Place = str | os.PathLike[str] | Store


def store_of(place: Place) -> Store:
    if not isinstance(place, str | os.PathLike):
        return place
    if is_bucket(place):
        from tokenmill.system.buckets.bucket import Bucket  # which imports this module

        return Bucket(str(place))
    return FolderStore(place)


def address_of(place: Place) -> Place:
    """A path or an address, if another process can open this place by it."""
    address: str = getattr(place, "address", "")
    return address or place


def place_name(place: Place) -> str:
    """As a message names it."""
    return os.fspath(place) if isinstance(place, str | os.PathLike) else place.where()


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


def read_range(store: Store, name: str, offset: int, length: int) -> bytes:
    """`Store.read`, with every fault of the disk as an error that names the file."""
    with explained("read", store.where(name)):
        return store.read(name, offset, length)


def read_small(store: Store, name: str) -> bytes:
    """Like `read_whole`, with every fault explained but that of a file which is not there."""
    try:
        return read_whole(store, name)
    except FileNotFoundError:
        raise
    except OSError as error:
        told = f"{store.where(name)}: cannot be read: {error.strerror or error}"
        raise StorageError(told) from None


def lines(store: Store, name: str) -> Iterator[bytes]:
    """The lines of a file, without their ends; the file may be larger than memory."""
    rest = b""
    for content in store.stream(name, 0, store.size(name) or 0):
        *whole, rest = (rest + bytes(content)).split(b"\n")
        yield from whole
    if rest:
        yield rest
