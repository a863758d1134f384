"""A lock that the kernel drops with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from tokenmill.errors import RefusedError, StorageError
from tokenmill.system import disk as steps
from tokenmill.system.disk import CREATE, explained, make_folder, write_all


class FileLock:
    """A locked file, which holds the id of our process. Its folder is made if it is not there."""

    def __init__(self, path: Path, output: Path) -> None:
        self.made: list[Path] = []
        while True:
            with explained("open", path):
                self.made += make_folder(path.parent)
                try:
                    self._fd = steps.disk.open(path, CREATE | os.O_CLOEXEC, 0o644)
                except FileNotFoundError:
                    continue  # the folder went meanwhile: make another
            self._take(path, output)
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_ino == path.stat().st_ino:
                    break
            self.release()  # its holder finished and removed it meanwhile: lock the new one
        _locks.add(self._fd)
        with explained("write", path, 32):
            steps.disk.ftruncate(self._fd, 0)
            write_all(self._fd, str(os.getpid()).encode(), 0)

    def _take(self, path: Path, output: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            self.release()
            raise RefusedError(
                f"{output}: another tokenmill is working in this folder (process {holder})",
                hint="wait for it, or stop it; then run the same command again",
            ) from None
        except OSError as error:
            self.release()
            raise StorageError(
                f"{path}: cannot be locked: {error.strerror}",
                hint="this file system has no locks; write to another one and copy",
            ) from None

    def _holder(self) -> str:
        """Its process id; one that has just taken the lock is given a moment to write it."""
        for _ in range(100):
            told = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            if told.isdigit() and _is_running(int(told)):
                return told
            time.sleep(0.01)
        return told or "unknown"

    def release(self) -> None:
        _locks.discard(self._fd)
        steps.disk.close(self._fd)


def holder_of(path: Path) -> int:
    """The process that holds a lock; 0: none. Nothing is made, and nothing is waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        told = os.pread(fd, 32, 0).decode(errors="replace").strip()
        if not told.isdigit() or not _is_running(int(told)):
            return 0
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return 0
    except BlockingIOError:
        return int(told)
    except OSError:
        return 0
    finally:
        os.close(fd)


_locks: set[int] = set()


def _leave_locks_to_parent() -> None:
    """In a forked child: or it would go on holding its dead parent's lock."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks_to_parent)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's, or on another machine
        pass
    return True
