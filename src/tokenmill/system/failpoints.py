"""Faults on purpose: the calls by which storage changes the disk, failing at a chosen one.

In production `system.disk.disk` is the os module itself, so there is nothing here to pay for. With
TOKENMILL_FAILPOINT set it is a `FaultyDisk`, which knows every operation by kind and path:

    kill@17                       end the process before its 17th operation
    torn@3 write *                write half of the 3rd write, then end the process
    short@2 write *journal        the 2nd write to a journal takes half of its bytes
    eio@1 sync-folder *           the first sync of a folder fails with EIO
    worker:enospc@4+              a worker's disk is full from its 4th operation on

Kinds: open, create, read, write, truncate, sync, sync-folder, rename, link, unlink, mkdir, rmdir.
Operations are counted in each process. With TOKENMILL_FAILPOINT_FIRED=FILE a fault without "+"
happens once among all processes, and the file then says at which operation.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import os
import re
import signal
import stat
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

VARIABLE = "TOKENMILL_FAILPOINT"
FIRED = "TOKENMILL_FAILPOINT_FIRED"
PATTERN = re.compile(
    r"(?:(worker|coordinator):)?(kill|torn|short|eio|enospc)@(\d+)(\+?)(?: (\S+ .+))?"
)
# The operations that a full disk refuses.
NEEDS_SPACE = {"create", "write", "mkdir", "link", "rename", "sync", "sync-folder"}
T = TypeVar("T")

_role = "coordinator"


def enter(role: str) -> None:
    """What this process is from now on, for faults meant for workers or the coordinator."""
    global _role
    _role = role


class Operation(NamedTuple):
    kind: str
    path: str
    target: str = ""  # of a rename or link
    offset: int = 0
    size: int = 0  # to write, or to truncate to
    data: Any = b""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target or self.path}"


def _on_paths(kind: str, call: Callable[..., None]) -> Callable[..., None]:
    """A method of `WatchedDisk` for a call that takes a path, and perhaps a target."""

    def method(self: WatchedDisk, path: Any, *target: Any) -> None:
        operation = Operation(kind, os.fspath(path), "".join(map(os.fspath, target)))
        self.perform(operation, call, path, *target)

    return method


class WatchedDisk:
    """The calls of `os` that storage uses, each announced to `perform` before it is made."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def perform(self, operation: Operation, call: Callable[..., T], *args: Any) -> T:
        return call(*args)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path = os.path.join(self._paths.get(-1 if dir_fd is None else dir_fd, ""), path)
        kind = "open"
        if flags & os.O_CREAT and not os.path.exists(path):
            kind = "create"
        elif flags & os.O_TRUNC:
            kind = "truncate"
        within = functools.partial(os.open, dir_fd=dir_fd)
        name = path if dir_fd is None else os.path.basename(path)
        fd = self.perform(Operation(kind, path), within, name, flags, mode)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        os.close(fd)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        operation = Operation("write", self._paths.get(fd, ""), "", offset, len(data), data)
        return self.perform(operation, os.pwrite, fd, data, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        operation = Operation("read", self._paths.get(fd, ""), "", offset, size)
        return self.perform(operation, os.pread, fd, size, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        operation = Operation("truncate", self._paths.get(fd, ""), size=size)
        self.perform(operation, os.ftruncate, fd, size)

    def fsync(self, fd: int) -> None:
        kind = "sync-folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync"
        self.perform(Operation(kind, self._paths.get(fd, "")), os.fsync, fd)

    def fdatasync(self, fd: int) -> None:
        call = getattr(os, "fdatasync", os.fsync)
        self.perform(Operation("sync", self._paths.get(fd, "")), call, fd)

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        self.perform(Operation("mkdir", os.fspath(path)), os.mkdir, path, mode)

    replace = _on_paths("rename", os.replace)
    link = _on_paths("link", os.link)
    unlink = _on_paths("unlink", os.unlink)
    rmdir = _on_paths("rmdir", os.rmdir)


class FaultyDisk(WatchedDisk):
    """Does what the os does, until the operation that is to fail."""

    def __init__(self, fault: str, fired: str = "") -> None:
        super().__init__()
        match = PATTERN.fullmatch(fault)
        if match is None:
            raise ValueError(f"{VARIABLE}={fault!r}: see {__name__}")
        self.role, self.fault, number, lasting, self.match = match.groups()
        self.number, self.lasting, self.fired = int(number), bool(lasting), fired
        self._count, self._process = 0, os.getpid()

    def perform(self, operation: Operation, call: Callable[..., T], *args: Any) -> T:
        if not self._due(operation):
            return call(*args)
        if self.fault in ("short", "torn"):
            fd, data, offset = args
            result = call(fd, data[: max(1, len(data) // 2)], offset)
            if self.fault == "short":
                return result
        if self.fault in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        code = errno.ENOSPC if self.fault == "enospc" else errno.EIO
        raise OSError(code, os.strerror(code))

    def _due(self, operation: Operation) -> bool:
        if self.role not in (None, _role):
            return False
        if self.match and not fnmatch.fnmatchcase(operation.name, self.match):
            return False
        if self.fault in ("short", "torn") and operation.kind != "write":
            return False
        if self.fault == "enospc" and operation.kind not in NEEDS_SPACE:
            return False
        if self._process != os.getpid():  # a forked child counts its own
            self._count, self._process = 0, os.getpid()
        self._count += 1
        if self._count < self.number or (self._count > self.number and not self.lasting):
            return False
        return self._fire(operation)

    def _fire(self, operation: Operation) -> bool:
        """Whether this process is the first to get here, as far as that matters."""
        if not self.fired:
            return True
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with contextlib.suppress(FileExistsError):
            fd = os.open(self.fired, flags, 0o644)
            os.write(fd, f"{self._count} {operation.name}".encode())
            os.close(fd)
            return True
        return self.lasting


def disk_of(environment: Any) -> Any:
    """What storage calls: the os module, unless a fault is asked for."""
    fault = environment.get(VARIABLE, "")
    return FaultyDisk(fault, environment.get(FIRED, "")) if fault else os
