"""The only module that writes to disk, in steps that survive a crash.

    DIR/                       the output folder
    DIR/.tokenmill/            the work folder, there only while a job is unfinished
        lock                   one coordinator per output (flock; holds its process id)
        plan.json              created exclusively: what this output is bound to
        journal                units whose bytes are durable, self-checking records
        files/                 token files and indexes as they grow, under stable names
        spill/                 units that had to wait for their place
        commit.json            the manifest and the names to give: "all durable, roll forward"
        removing.json          the manifest of a dataset that --overwrite is about to remove

Every change that must survive is write, fsync, rename, fsync of the directory. Tokens go by
pwrite to their place, are synced in bulk, and only then named in the journal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.errors import RefusedError, StorageError

WORK = ".tokenmill"
FILES = "files"
SPILL = "spill"
LOCK = "lock"
# numpy arrays are buffers too, though their type does not say so
Buffer = bytes | memoryview | Any


@contextlib.contextmanager
def _explained(what: str, path: Path | str, needed: int = 0) -> Iterator[None]:
    """Any OSError as a StorageError that names the path, and the bytes when the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full and needed:
            reason += f" ({needed} bytes were needed)"
        raise StorageError(
            f"{path}: cannot {what}: {reason}",
            hint="free some space and run the same command again: it resumes" if full else "",
        ) from None


class Workspace:
    """Paths and atomic steps of one output folder. Cheap to make; workers make their own."""

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.output = Path(output)
        self.work = self.output / WORK
        self.files = self.work / FILES
        self.spill = self.work / SPILL
        self.plan = self.work / "plan.json"
        self.journal = self.work / "journal"
        self.commit = self.work / "commit.json"
        self.removing = self.work / "removing.json"
        self.manifest = self.output / "manifest.json"

    def create(self) -> None:
        """What is in the work folder; under the lock only, since its last holder may be at
        removing it."""
        with _explained("create the folder", self.work):
            self.files.mkdir(parents=True, exist_ok=True)
            self.spill.mkdir(exist_ok=True)
            sync_directory(self.work)

    def foreign_files(self) -> list[str]:
        """Visible files in the output folder; of ours none are there before the commit."""
        if not self.output.exists():
            return []
        if not self.output.is_dir():
            raise RefusedError(f"{self.output}: exists and is not a directory")
        return sorted(p.name for p in self.output.iterdir() if not p.name.startswith("."))

    def clear_spill(self) -> None:
        shutil.rmtree(self.spill, ignore_errors=True)
        with _explained("create the folder", self.spill):
            self.spill.mkdir(parents=True, exist_ok=True)

    def clear_work(self) -> None:
        """Start anew under the lock that is held: everything but the lock goes."""
        with _explained("remove", self.work):
            for path in (self.plan, self.journal, self.commit):
                path.unlink(missing_ok=True)
            sync_directory(self.work)
            _remove_tree(self.files)
        self.create()

    def remove_work(self) -> None:
        """Forget the work folder; the plan goes first, so that half a removal is no job.

        The lock goes last: whoever comes from then on may make a work folder of its own, and that
        is not ours to remove.
        """
        with _explained("remove", self.work):
            for path in (self.plan, self.journal):
                path.unlink(missing_ok=True)
            held = self.work.iterdir() if self.work.exists() else ()
            for path in [p for p in held if p.name != LOCK]:
                _remove_tree(path) if path.is_dir() else path.unlink(missing_ok=True)
            (self.work / LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.work.rmdir()
            sync_directory(self.output)

    def begin_removal(self) -> None:
        """The manifest goes first, into the work folder: what it names can still be found."""
        with _explained("move", self.manifest):
            os.replace(self.manifest, self.removing)
            sync_directory(self.work)
            sync_directory(self.output)

    def finish_removal(self, names: list[str]) -> None:
        """Remove the files that a dataset or a commit named, and no others."""
        with _explained("remove", self.output):
            for name in names:
                (self.output / name).unlink(missing_ok=True)
            for folder in {(self.output / name).parent for name in names} - {self.output}:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            sync_directory(self.output)
            self.removing.unlink(missing_ok=True)


class Lock:
    """One coordinator per output. The kernel drops it with the process, however that ends."""

    def __init__(self, workspace: Workspace) -> None:
        path, output = workspace.work / LOCK, workspace.output
        missing = [p for p in (output, *output.parents) if not p.exists()]
        while True:
            with _explained("open", path):
                output.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    workspace.work.mkdir()
                try:
                    self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                except FileNotFoundError:
                    continue  # the work folder went meanwhile: make another
            self._take(path, workspace)
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_ino == path.stat().st_ino:
                    break
            os.close(self._fd)  # its holder finished and removed it meanwhile: lock the new one
        _locks.add(self._fd)
        with _explained("write", path, 32):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        workspace.create()
        for folder in (output, *(made.parent for made in missing)):
            sync_directory(folder)

    def _take(self, path: Path, workspace: Workspace) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            os.close(self._fd)
            raise RefusedError(
                f"{workspace.output}: another tokenmill is at work here (process {holder})",
                hint="wait for it, or stop it; then run the same command again",
            ) from None
        except OSError as error:
            os.close(self._fd)
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
        os.close(self._fd)


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


def _remove_tree(path: Path) -> None:
    """Also where a worker of a coordinator that is gone still makes files in it."""
    for _ in range(100):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.01)
    shutil.rmtree(path)


def sync_directory(path: Path) -> None:
    """Make names in a folder durable."""
    with _explained("sync the folder", path):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_all(fd: int, buffer: Buffer, offset: int) -> int:
    """pwrite until everything is written: a write may be short, a full disk makes it so."""
    view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
    return done


def write_atomic(path: Path, content: bytes) -> None:
    """A file that is there completely or not at all, even after a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    with _explained("write", path, len(content)):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, content, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        sync_directory(path.parent)


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tokenmill"


def keep_in_cache(name: str, content: bytes) -> None:
    path = cache_folder() / name
    with _explained("create", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


class GrowingFile:
    """A file written piece by piece and named, by its content if need be, when it is complete."""

    closed = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._temporary = folder / f".{os.getpid()}.tmp"
        self._length = 0
        self._digest = xxhash.xxh3_128()
        with _explained("write", self._temporary):
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(self._temporary, flags, 0o600)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())

    def write(self, buffer: Buffer) -> int:
        with _explained("write", self._temporary, len(buffer)):
            written = write_all(self._fd, buffer, self._length)
        self._digest.update(buffer)
        self._length += written
        return written

    def flush(self) -> None:
        pass

    def finish(self, name: str, mtime_ns: int) -> Path:
        target = self.folder / name
        with _explained("write", target):
            os.fsync(self._fd)
            os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            os.replace(self._temporary, target)
            sync_directory(self.folder)
        return target

    def close(self) -> None:
        """For writers that close what they write to: the file stays open until it is left."""

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        remove_file(self._temporary)


def create_exclusively(path: Path, content: bytes) -> None:
    """Like `write_atomic`, but never over an existing file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_atomic(temporary, content)
    with _explained("create", path):
        try:
            os.link(temporary, path)
        except FileExistsError:
            temporary.unlink()
            raise RefusedError(f"{path}: exists already") from None
        except OSError:  # a file system without hard links: the lock keeps others out
            os.replace(temporary, path)
        temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def publish(source: Path, target: Path) -> None:
    """Give a finished file its final name; done already is fine (a commit rolled forward)."""
    with _explained("rename to", target):
        if source.exists():
            if target.exists():
                raise RefusedError(
                    f"{target}: is in the way and not ours", hint="move it, then run again"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)


class OutputFiles:
    """Open files that pieces are written to, by name in the work folder."""

    MAX_OPEN = 32

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.files
        self._fds: dict[str, int] = {}
        # Held, and not looked up anew: a worker whose coordinator is gone must not find the
        # files of another plan under the same names (--overwrite makes the folder anew).
        self._folder_fd = -1
        with contextlib.suppress(FileNotFoundError):
            self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)

    def _fd(self, name: str) -> int:
        fd = self._fds.pop(name, None)
        if fd is None:
            if len(self._fds) >= self.MAX_OPEN:
                os.close(self._fds.pop(next(iter(self._fds))))
            with _explained("open", self.folder / name):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                fd = os.open(name, flags, 0o644, dir_fd=self._folder_fd)
        self._fds[name] = fd
        return fd

    def write(self, name: str, offset: int, buffer: Buffer) -> None:
        with _explained("write", self.folder / name, memoryview(buffer).nbytes):
            write_all(self._fd(name), buffer, offset)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with _explained("read", self.folder / name):
            return os.pread(self._fd(name), length, offset)

    def sync(self, name: str) -> None:
        with _explained("sync", self.folder / name):
            os.fdatasync(self._fd(name)) if hasattr(os, "fdatasync") else os.fsync(self._fd(name))

    def size(self, name: str) -> int:
        return os.fstat(self._fd(name)).st_size

    def truncate(self, name: str, size: int) -> None:
        with _explained("truncate", self.folder / name):
            os.ftruncate(self._fd(name), size)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1


def read_piece(path: Path, offset: int, length: int) -> bytes:
    """Bytes of a file, through a descriptor of its own: safe from any thread."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, length, offset)
    finally:
        os.close(fd)


class AppendLog:
    """The journal's file: opened at its valid length, appended to, synced."""

    def __init__(self, path: Path, valid_length: int, header: bytes) -> None:
        self.path = path
        with _explained("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._fd, valid_length)  # a torn last record goes
            self._length = valid_length
            if valid_length == 0:
                self.append(header)
                sync_directory(path.parent)

    def append(self, content: bytes) -> None:
        with _explained("append to", self.path, len(content)):
            try:
                write_all(self._fd, content, self._length)
                os.fsync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._length)
                raise
        self._length += len(content)

    def close(self) -> None:
        os.close(self._fd)


def write_spill(path: Path, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Put a unit's arrays aside until its place is known. Needs no sync: a lost one is redone."""
    with _explained("write", path, sum(array.nbytes for array in arrays)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            offset = 0
            for array in arrays:
                offset += write_all(fd, np.ascontiguousarray(array), offset)
        finally:
            os.close(fd)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
