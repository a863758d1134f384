"""The steps of which every change on disk is made: durable, with errors that explain.

Each call that changes the disk goes through `disk`, where tests make it fail (`failpoints`); in
production it is the os module itself. A file that moves to another folder is linked there first:
in whatever order the disk keeps the two changes, the file is not lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import xxhash

from tokenmill.errors import RefusedError, StorageError
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.failpoints import disk_of

# numpy arrays are buffers too, though their type does not say so
Buffer = bytes | memoryview | Any
A_NAME = 4096  # what a new name may cost: a block of its folder
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
CREATE = os.O_RDWR | os.O_CREAT
REWRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
TRIAL_BYTES = 64 << 20
TRIAL_FILES = 10

disk: Any = disk_of(os.environ)


@contextlib.contextmanager
def explained(what: str, path: Path | str, needed: int = A_NAME) -> Iterator[None]:
    """Any OSError as a StorageError that names the path, and the bytes when the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = free_bytes(path)
            reason += f" ({needed} bytes were needed"
            reason += f", {free} are free)" if free >= 0 else ")"
            hint = "free some space and run the same command again: it resumes"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "you may not write there: give another folder, or change its permissions"
        raise StorageError(f"{path}: cannot {what}: {reason}", hint=hint) from None


def nearest(path: str | os.PathLike[str]) -> Path:
    """The path, or the folder above it that exists."""
    full = Path(os.path.abspath(path))
    return next(one for one in (full, *full.parents) if one.exists())


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Free on the file system that a path is, or will be, on; -1 where it cannot be told."""
    if is_bucket(path):
        return -1
    try:
        return shutil.disk_usage(nearest(path)).free
    except OSError:
        return -1


def sync_directory(path: Path) -> None:
    """Make names in a folder durable."""
    with explained("sync the folder", path), opened(path, os.O_RDONLY) as fd:
        disk.fsync(fd)


def make_folder(path: Path) -> list[Path]:
    """A folder and those above it, where missing; returns the ones made."""
    missing = [p for p in (path, *path.parents) if not p.is_dir()][::-1]
    for folder in missing:
        with contextlib.suppress(FileExistsError):  # another process was faster
            disk.mkdir(folder)
    return missing


def make_private_folder(path: Path) -> bool:
    """A folder that only its owner can look into; whether it is one, and we are its owner."""
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        disk.mkdir(path, 0o700)
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def write_all(fd: int, buffer: Buffer, offset: int) -> int:
    """pwrite until everything is written: a write may be short, a full disk makes it so."""
    view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
    done = 0
    while done < len(view):
        written = disk.pwrite(fd, view[done:], offset + done)
        if written == 0:
            raise OSError(errno.EIO, "a write that writes nothing")
        done += written
    return done


def write_atomic(path: Path, content: bytes, temporary: Path | None = None) -> None:
    """A file that is there completely or not at all, even after a power cut."""
    temporary = temporary or path.with_name(f".{path.name}.tmp")
    with explained("write", path, len(content)):
        with opened(temporary, REWRITE) as fd:
            write_all(fd, content, 0)
            disk.fsync(fd)
        disk.replace(temporary, path)
        sync_directory(path.parent)


def content_digest(path: Path) -> str:
    """The digest of a file as it is now; compare with `GrowingFile.digest`."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def locked_file(folder: Path) -> tuple[Path, int]:
    """A new file under a name of its own, ours alone for as long as we live: the lock tells."""
    while True:
        path = folder / f".{os.urandom(8).hex()}.tmp"
        fd = disk.open(path, REWRITE | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # without locks nobody removes it either
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return path, fd
        disk.close(fd)  # swept in the moment before it was locked


def sweep_unlocked(folder: Path) -> None:
    """Remove what processes that are gone, here or on other machines, left half-written."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError), opened(path, os.O_RDWR) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_file(path)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    fd = disk.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        disk.close(fd)


def pieces(fd: int, offset: int, length: int) -> Iterator[bytes]:
    """A read may be short too; it ends where the file ends."""
    end = offset + length
    while offset < end and (piece := disk.pread(fd, end - offset, offset)):
        yield piece
        offset += len(piece)


def unlink(path: Path) -> bool:
    """Whether there was something to remove."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_tree(path: Path, patience: int = 100) -> None:
    """A file or a folder. Never through a link: what it points to is not ours."""
    if path.is_symlink() or not path.is_dir():
        unlink(path)
        return
    for entry in list(path.iterdir()):
        remove_tree(entry)
    try:
        disk.rmdir(path)
    except OSError as error:  # a worker of a coordinator that is gone still makes files in it
        if error.errno != errno.ENOTEMPTY or not patience:
            raise
        time.sleep(0.01)
        remove_tree(path, patience - 1)


def name_again(source: Path, target: Path) -> None:
    """A second name for a file; on a file system without hard links, another one."""
    try:
        disk.link(source, target)
    except FileExistsError:
        if not _same_file(source, target):
            raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        disk.replace(source, target)


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except FileNotFoundError:
        return False


def sync_data(fd: int) -> None:
    getattr(disk, "fdatasync", disk.fsync)(fd)  # macOS has only the other


def create_exclusively(path: Path, content: bytes) -> None:
    """Like `write_atomic`, but never over an existing file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    write_atomic(temporary, content)
    with explained("create", path, len(content)):
        try:
            name_again(temporary, path)
        except FileExistsError:
            raise RefusedError(f"{path}: exists already") from None
        finally:
            unlink(temporary)
        sync_directory(path.parent)


def publish(source: Path, target: Path) -> None:
    """Give a finished file its final name; its working name stays until the work folder goes."""
    with explained("rename to", target):
        make_folder(target.parent)
        try:
            name_again(source, target)
        except FileExistsError:
            raise RefusedError(
                f"{target}: exists, and tokenmill did not make it", hint="move it, then run again"
            ) from None


def is_published(source: Path, target: Path) -> bool:
    """On a file system without hard links the working name is gone when the other one is there."""
    return _same_file(source, target) if source.exists() else target.exists()


def withdraw(source: Path, target: Path) -> None:
    """Take a final name away again."""
    with explained("rename back", target):
        if source.exists():
            unlink(target)
        else:
            disk.replace(target, source)


def remove_folder(path: Path) -> None:
    with contextlib.suppress(OSError):
        remove_tree(path)


def remove_empty_folder(path: Path) -> None:
    """If it is empty."""
    with contextlib.suppress(OSError):
        disk.rmdir(path)


def remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        unlink(path)


@contextlib.contextmanager
def as_file(content: bytes, suffix: str = "") -> Iterator[str]:
    """The path of a file with this content, for libraries that read from a path only. On Linux
    the file never reaches a disk."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("tokenmill", os.MFD_CLOEXEC), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(content)
        file.flush()
        yield str(file.name)


class TrialWrite(NamedTuple):
    bytes_per_second: float
    sync_ms: float  # of a small file, written, synced and named


def trial_write(folder: Path) -> TrialWrite:
    """How fast a folder takes what is written and synced; nothing of it stays."""
    path = folder / f".tokenmill-trial-{os.getpid()}"
    block = os.urandom(4 << 20)  # a file system that compresses shall not be faster for it
    try:
        with explained("write", path, TRIAL_BYTES), opened(path, REWRITE) as fd:
            begun = time.perf_counter()
            for offset in range(0, TRIAL_BYTES, len(block)):
                write_all(fd, block, offset)
            disk.fsync(fd)
            seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(TRIAL_FILES):
            write_atomic(path, b"small")
        small = (time.perf_counter() - begun) / TRIAL_FILES
    finally:
        remove_file(path)
        remove_file(path.with_name(f".{path.name}.tmp"))
    return TrialWrite(TRIAL_BYTES / max(seconds, 1e-6), small * 1000)


def nameless_file(folder: Path) -> IO[bytes]:
    """A scratch file of this process: it ends with its last use, whatever happens."""
    with explained("make a scratch file in", folder):
        return tempfile.TemporaryFile(dir=folder if folder.is_dir() else None)
