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
pwrite to their place, are synced in bulk, and only then named in the journal. Whatever moves
from one folder to another is linked there first: no order in which a disk may keep the two
changes loses it. Each call that changes the disk goes through `disk`, where tests make it fail
(`failpoints`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.errors import RefusedError, StorageError
from tokenmill.failpoints import disk_of

WORK = ".tokenmill"
FILES = "files"
SPILL = "spill"
# numpy arrays are buffers too, though their type does not say so
Buffer = bytes | memoryview | Any
A_NAME = 4096  # what a new name may cost: a block of its folder
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

disk: Any = disk_of(os.environ)


@contextlib.contextmanager
def _explained(what: str, path: Path | str, needed: int = A_NAME) -> Iterator[None]:
    """Any OSError as a StorageError that names the path, and the bytes when the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full:
            reason += f" ({needed} bytes were needed{_free_bytes(path)})"
        raise StorageError(
            f"{path}: cannot {what}: {reason}",
            hint="free some space and run the same command again: it resumes" if full else "",
        ) from None


def _free_bytes(path: Path | str) -> str:
    with contextlib.suppress(OSError):
        found = os.statvfs(next(p for p in (Path(path), *Path(path).parents) if p.exists()))
        return f", {found.f_bavail * found.f_frsize} are free"
    return ""


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
        self.run_record = self.output / "run.json"

    def create(self) -> None:
        with _explained("create the folder", self.work):
            made = make_folder(self.files)
            made += make_folder(self.spill)
            for folder in dict.fromkeys((self.work, self.output, *(new.parent for new in made))):
                sync_directory(folder)

    def foreign_files(self) -> list[str]:
        """Visible files in the output folder; of ours none are there before the commit."""
        if not self.output.exists():
            return []
        if not self.output.is_dir():
            raise RefusedError(f"{self.output}: exists and is not a directory")
        return sorted(p.name for p in self.output.iterdir() if not p.name.startswith("."))

    def put(self, path: Path, content: bytes) -> None:
        """A small file of the dataset; what a crash leaves of it goes with the work folder."""
        write_atomic(path, content, self.work / f".{path.name}.tmp")

    def clear_spill(self) -> None:
        remove_folder(self.spill)
        with _explained("create the folder", self.spill):
            make_folder(self.spill)

    def clear_work(self) -> None:
        """Start anew under the lock that is held: everything but the lock goes.

        The decision to publish first: without its plan it would be taken for the next one's.
        """
        with _explained("remove", self.work):
            for path in (self.commit, self.journal, self.plan):
                if _unlink(path):
                    sync_directory(self.work)
            _remove_tree(self.files)
        self.create()

    def remove_work(self) -> None:
        """Forget the work folder; the plan goes first, so that half a removal is no job."""
        with _explained("remove", self.work):
            for path in (self.plan, self.journal):
                _unlink(path)
            _remove_tree(self.work)
            sync_directory(self.output)

    def begin_removal(self) -> None:
        """The manifest goes first, into the work folder: what it names can still be found."""
        with _explained("move", self.manifest):
            _name_again(self.manifest, self.removing)
            sync_directory(self.work)
            _unlink(self.manifest)
            sync_directory(self.output)

    def finish_removal(self, names: list[str]) -> None:
        """Remove the files that a dataset or a commit named, and no others."""
        with _explained("remove", self.output):
            for name in names:
                _unlink(self.output / name)
            for folder in {(self.output / name).parent for name in names} - {self.output}:
                if folder.exists():
                    sync_directory(folder)
                with contextlib.suppress(OSError):
                    disk.rmdir(folder)
            sync_directory(self.output)
            _unlink(self.removing)


class Lock:
    """One coordinator per output. The kernel drops it with the process, however that ends."""

    def __init__(self, workspace: Workspace) -> None:
        path = workspace.work / "lock"
        while True:
            workspace.create()
            with _explained("open", path):
                self._fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._take(path, workspace)
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_ino == path.stat().st_ino:
                    break
            self.release()  # its holder finished and removed it meanwhile: lock the new one
        with _explained("write", path, 32):
            disk.ftruncate(self._fd, 0)
            write_all(self._fd, str(os.getpid()).encode(), 0)

    def _take(self, path: Path, workspace: Workspace) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise RefusedError(
                f"{workspace.output}: another tokenmill is at work here (process {holder})",
                hint="wait for it, or stop it; then run the same command again",
            ) from None
        except OSError as error:
            self.release()
            raise StorageError(
                f"{path}: cannot be locked: {error.strerror}",
                hint="this file system has no locks; write to another one and copy",
            ) from None

    def release(self) -> None:
        disk.close(self._fd)


# --- steps that everything else is made of ---------------------------------------------------


def sync_directory(path: Path) -> None:
    """Make names in a folder durable."""
    with _explained("sync the folder", path), _opened(path, os.O_RDONLY) as fd:
        disk.fsync(fd)


def make_folder(path: Path) -> list[Path]:
    """A folder and those above it, where missing; returns the ones made."""
    missing = [p for p in (path, *path.parents) if not p.is_dir()][::-1]
    for folder in missing:
        with contextlib.suppress(FileExistsError):  # another process was faster
            disk.mkdir(folder)
    return missing


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
    with _explained("write", path, len(content)):
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            write_all(fd, content, 0)
            disk.fsync(fd)
        disk.replace(temporary, path)
        sync_directory(path.parent)


def read_file(path: Path) -> bytes:
    """All of a file; FileNotFoundError where there is none, every other fault explained."""
    try:
        with _opened(path, os.O_RDONLY) as fd:
            return b"".join(_pieces(fd, 0, os.fstat(fd).st_size))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from None


def read_piece(path: Path, offset: int, length: int) -> bytes:
    """Bytes of a file, through a descriptor of its own: safe from any thread."""
    with _opened(path, os.O_RDONLY) as fd:
        return b"".join(_pieces(fd, offset, length))


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = disk.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        disk.close(fd)


def _pieces(fd: int, offset: int, length: int) -> Iterator[bytes]:
    """A read may be short too; it ends where the file ends."""
    end = offset + length
    while offset < end and (piece := disk.pread(fd, end - offset, offset)):
        yield piece
        offset += len(piece)


def _unlink(path: Path) -> bool:
    """Whether there was something to remove."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _remove_tree(folder: Path) -> None:
    """Never through a link: what it points to is not ours."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(Path(entry.path))
        else:
            _unlink(Path(entry.path))
    disk.rmdir(folder)


def _name_again(source: Path, target: Path) -> None:
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


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tokenmill"


def keep_in_cache(name: str, content: bytes) -> None:
    path = cache_folder() / name
    with _explained("create", path.parent):
        make_folder(path.parent)
    write_atomic(path, content, path.with_name(f".{name}.{os.getpid()}.tmp"))


class GrowingFile:
    """A file written piece by piece and named, by its content if need be, when it is complete."""

    closed = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._temporary = folder / f".{os.getpid()}.tmp"
        self._length = 0
        self._digest = xxhash.xxh3_128()
        with _explained("write", self._temporary):
            make_folder(folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = disk.open(self._temporary, flags, 0o600)

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
            os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            disk.fsync(self._fd)
            disk.replace(self._temporary, target)
            sync_directory(self.folder)
        return target

    def close(self) -> None:
        """For writers that close what they write to: the file stays open until it is left."""

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(self, *_: object) -> None:
        disk.close(self._fd)
        remove_file(self._temporary)


def create_exclusively(path: Path, content: bytes) -> None:
    """Like `write_atomic`, but never over an existing file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    write_atomic(temporary, content)
    with _explained("create", path, len(content)):
        try:
            _name_again(temporary, path)
        except FileExistsError:
            raise RefusedError(f"{path}: exists already") from None
        finally:
            _unlink(temporary)
        sync_directory(path.parent)


def publish(source: Path, target: Path) -> None:
    """Give a finished file its final name; done already is fine (a commit rolled forward).

    The working name stays until the work folder goes.
    """
    with _explained("rename to", target):
        if not source.exists():  # a file system without hard links
            return
        make_folder(target.parent)
        try:
            _name_again(source, target)
        except FileExistsError:
            raise RefusedError(
                f"{target}: is in the way and not ours", hint="move it, then run again"
            ) from None


def is_published(source: Path, target: Path) -> bool:
    return not source.exists() or _same_file(source, target)


# --- files that grow -------------------------------------------------------------------------


class OutputFiles:
    """Open files that pieces are written to, by name in the work folder."""

    MAX_OPEN = 32

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.files
        self._fds: dict[str, int] = {}

    def _fd(self, name: str) -> int:
        fd = self._fds.pop(name, None)
        if fd is None:
            if len(self._fds) >= self.MAX_OPEN:
                disk.close(self._fds.pop(next(iter(self._fds))))
            with _explained("open", self.folder / name):
                fd = disk.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._fds[name] = fd
        return fd

    def write(self, name: str, offset: int, buffer: Buffer) -> None:
        with _explained("write", self.folder / name, memoryview(buffer).nbytes):
            write_all(self._fd(name), buffer, offset)

    def read(self, name: str, offset: int, length: int) -> bytes:
        with _explained("read", self.folder / name):
            return b"".join(_pieces(self._fd(name), offset, length))

    def sync(self, name: str) -> None:
        with _explained("sync", self.folder / name, self.size(name)):
            _sync_data(self._fd(name))

    def size(self, name: str) -> int:
        return os.fstat(self._fd(name)).st_size

    def truncate(self, name: str, size: int) -> None:
        with _explained("truncate", self.folder / name):
            disk.ftruncate(self._fd(name), size)

    def close(self) -> None:
        for fd in self._fds.values():
            disk.close(fd)
        self._fds.clear()


def _sync_data(fd: int) -> None:
    getattr(disk, "fdatasync", disk.fsync)(fd)  # macOS has only the other


class AppendLog:
    """The journal's file: opened at its valid length, appended to, synced."""

    def __init__(self, path: Path, valid_length: int, header: bytes) -> None:
        self.path = path
        with _explained("open", path):
            self._fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            disk.ftruncate(self._fd, valid_length)  # a torn last record goes
            self._length = valid_length
            if valid_length == 0:
                self.append(header)
                sync_directory(path.parent)

    def append(self, content: bytes) -> None:
        with _explained("append to", self.path, len(content)):
            try:
                write_all(self._fd, content, self._length)
                disk.fsync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):
                    disk.ftruncate(self._fd, self._length)
                raise
        self._length += len(content)

    def close(self) -> None:
        disk.close(self._fd)


def write_spill(path: Path, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Put a unit's arrays aside until its place is known. Needs no sync: a lost one is redone."""
    needed = sum(array.nbytes for array in arrays)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with _explained("write", path, needed), _opened(path, flags) as fd:
        offset = 0
        for array in arrays:
            offset += write_all(fd, np.ascontiguousarray(array), offset)


def remove_folder(path: Path) -> None:
    with contextlib.suppress(OSError):
        _remove_tree(path)


def remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        _unlink(path)
