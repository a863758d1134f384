"""Files that grow: tokens in their places, and logs that only grow at their end.

Tokens are written with pwrite, synced in bulk, and only then named in the journal.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.output.workspace import Workspace
from tokenmill.system import disk as steps
from tokenmill.system.disk import (
    CREATE,
    REWRITE,
    Buffer,
    explained,
    opened,
    pieces,
    read_piece,
    sync_data,
    sync_directory,
    write_all,
)


class OutputFiles:
    """Open files that pieces are written to, by name in the work folder."""

    MAX_OPEN = 32

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.files
        self._fds: dict[str, int] = {}
        # The folder stays open: --overwrite makes a new folder of the same name, and a worker
        # that outlives its coordinator must not write to files of another plan there.
        self._folder_fd = -1
        with explained("open", self.folder), contextlib.suppress(FileNotFoundError):
            self._folder_fd = steps.disk.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)

    def _fd(self, name: str) -> int:
        fd = self._fds.pop(name, None)
        if fd is None:
            if len(self._fds) >= self.MAX_OPEN:
                steps.disk.close(self._fds.pop(next(iter(self._fds))))
            with explained("open", self.folder / name):
                flags = CREATE | os.O_CLOEXEC
                fd = steps.disk.open(name, flags, 0o644, dir_fd=self._folder_fd)
        self._fds[name] = fd
        return fd

    def write(self, name: str, offset: int, buffer: Buffer) -> None:
        with explained("write", self.folder / name, memoryview(buffer).nbytes):
            write_all(self._fd(name), buffer, offset)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with explained("read", self.folder / name):
            return b"".join(pieces(self._fd(name), offset, length))

    def sync(self, name: str) -> None:
        with explained("sync", self.folder / name, self.size(name)):
            sync_data(self._fd(name))

    def size(self, name: str) -> int:
        return os.fstat(self._fd(name)).st_size

    def truncate(self, name: str, size: int) -> None:
        with explained("truncate", self.folder / name):
            steps.disk.ftruncate(self._fd(name), size)

    def close(self) -> None:
        for fd in self._fds.values():
            steps.disk.close(fd)
        self._fds.clear()
        if self._folder_fd >= 0:
            steps.disk.close(self._folder_fd)
            self._folder_fd = -1


class AppendLog:
    """The journal's file: opened at its valid length, appended to, synced."""

    def __init__(self, path: Path, valid_length: int, header: bytes) -> None:
        self.path = path
        with explained("open", path):
            self._fd = steps.disk.open(path, CREATE | os.O_CLOEXEC, 0o644)
            steps.disk.ftruncate(self._fd, valid_length)  # removes a torn last record
            self._length = valid_length
            if valid_length == 0:
                self.append(header)
                sync_directory(path.parent)

    def append(self, content: bytes) -> None:
        with explained("append to", self.path, len(content)):
            try:
                write_all(self._fd, content, self._length)
                steps.disk.fsync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    steps.disk.ftruncate(self._fd, self._length)
                raise
        self._length += len(content)

    def close(self) -> None:
        steps.disk.close(self._fd)


def is_intact(path: Path, offset: int, length: int, digest: int) -> bool:
    """Whether a piece of a file is still what it was when it was written."""
    try:
        content = read_piece(path, offset, length)
    except OSError:
        return False
    return len(content) == length and xxhash.xxh3_64_intdigest(content) == digest


def write_spill(path: Path, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Keep a unit's arrays until its place is known. Needs no sync: a lost unit is done again."""
    needed = sum(array.nbytes for array in arrays)
    with explained("write", path, needed), opened(path, REWRITE) as fd:
        offset = 0
        for array in arrays:
            offset += write_all(fd, np.ascontiguousarray(array), offset)
