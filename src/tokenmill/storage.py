"""What is on disk of a job, and how it grows: in steps that survive a crash.

    DIR/                       the output folder
    DIR/.tokenmill/            the work folder, there only while a job is unfinished
        lock                   one coordinator per output (flock; holds its process id)
        plan.json              created exclusively: what this output is bound to
        journal                units whose bytes are durable, self-checking records
        files/                 token files and indexes as they grow, under stable names
        spill/                 units that had to wait for their place
        cuts/                  how each fetched input is cut, so that it is needed no more
        downloads/             inputs that are not kept (--no-keep-downloads)
        commit.json            the manifest and the names that are about to be given
        removing.json          the manifest of a dataset that --overwrite is about to remove

Every change that must survive is write, fsync, rename, fsync of the directory. Tokens go by
pwrite to their place, are synced in bulk, and only then named in the journal. Nothing but this
module and `steps` writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from tokenmill import steps
from tokenmill.errors import RefusedError, StorageError
from tokenmill.steps import (
    CREATE,
    REWRITE,
    Buffer,
    explained,
    locked_file,
    make_folder,
    name_again,
    opened,
    pieces,
    remove_file,
    remove_folder,
    remove_tree,
    sync_data,
    sync_directory,
    unlink,
    write_all,
    write_atomic,
)

WORK = ".tokenmill"
FILES = "files"
SPILL = "spill"
LOCK = "lock"


class Workspace:
    """Paths and atomic steps of one output folder. Cheap to make; workers make their own."""

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.output = Path(output)
        self.work = self.output / WORK
        self.files = self.work / FILES
        self.spill = self.work / SPILL
        self.cuts = self.work / "cuts"
        self.downloads = self.work / "downloads"
        self.plan = self.work / "plan.json"
        self.journal = self.work / "journal"
        self.commit = self.work / "commit.json"
        self.removing = self.work / "removing.json"
        self.manifest = self.output / "manifest.json"
        self.run_record = self.output / "run.json"

    def create(self) -> None:
        """What is in the work folder; under the lock only, since its last holder may be at
        removing it."""
        with explained("create the folder", self.work):
            make_folder(self.files)
            make_folder(self.spill)
            sync_directory(self.work)

    def foreign_files(self) -> list[str]:
        """Visible files in the output folder; of ours none are there before the commit."""
        if not self.output.exists():
            return []
        if not self.output.is_dir():
            raise RefusedError(f"{self.output}: exists and is not a directory")
        return sorted(p.name for p in self.output.iterdir() if not p.name.startswith("."))

    def bytes_begun(self) -> int:
        """Of files that an earlier run wrote here; a job that resumes needs so much less."""
        with contextlib.suppress(OSError):
            return sum(path.stat().st_size for path in self.files.iterdir())
        return 0

    def put(self, path: Path, content: bytes) -> None:
        """A small file of the dataset; what a crash leaves of it goes with the work folder."""
        write_atomic(path, content, self.work / f".{path.name}.tmp")

    def put_run_record(self, record: dict[str, Any]) -> None:
        """run.json: what the manifest must not hold, since it differs from run to run."""
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = msgspec.json.encode({"version": 1, "finished": finished, **record})
        self.put(self.run_record, msgspec.json.format(content, indent=1) + b"\n")

    def put_cut(self, number: int, content: bytes) -> None:
        """How a fetched source is cut."""
        with explained("create the folder", self.cuts):
            make_folder(self.cuts)
        write_atomic(self.cuts / str(number), content)

    def get_cut(self, number: int) -> bytes | None:
        try:
            return (self.cuts / str(number)).read_bytes()
        except OSError:
            return None

    def clear_spill(self) -> None:
        remove_folder(self.spill)
        with explained("create the folder", self.spill):
            make_folder(self.spill)

    def clear_work(self) -> None:
        """Start anew under the lock that is held: everything but the lock goes.

        The decision to publish first: without its plan it would be taken for the next one's.
        """
        with explained("remove", self.work):
            for path in (self.commit, self.journal, self.plan):
                if unlink(path):
                    sync_directory(self.work)
            for folder in (self.files, self.cuts, self.downloads):
                remove_tree(folder)
        self.create()

    def forget_commit(self) -> None:
        with explained("remove", self.commit):
            unlink(self.commit)
            sync_directory(self.work)

    def remove_work(self) -> None:
        """Forget the work folder; the plan goes first, so that half a removal is no job.

        The lock goes last: whoever comes from then on may make a work folder of its own, and that
        is not ours to remove.
        """
        with explained("remove", self.work):
            for path in (self.plan, self.journal):
                unlink(path)
            for path in [p for p in self.work.iterdir() if p.name != LOCK]:
                remove_tree(path)
            unlink(self.work / LOCK)
            try:
                steps.disk.rmdir(self.work)
            except OSError as error:  # the next one is here already, or was
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
            sync_directory(self.output)

    def folders_of(self, names: Iterable[str]) -> list[Path]:
        """The folders that hold these files, and those above up to the output; deepest first."""
        found = {self.output}
        for name in names:
            found |= {self.output / parent for parent in Path(name).parents}
        return sorted(found, key=lambda folder: len(folder.parts), reverse=True)

    def begin_removal(self) -> None:
        """The manifest goes first, into the work folder: what it names can still be found."""
        with explained("move", self.manifest):
            name_again(self.manifest, self.removing)
            sync_directory(self.work)
            unlink(self.manifest)
            sync_directory(self.output)

    def finish_removal(self, names: list[str]) -> None:
        """Remove the files that a dataset or a commit named, and no others."""
        with explained("remove", self.output):
            for name in names:
                unlink(self.output / name)
            for folder in self.folders_of(names)[:-1]:
                if folder.exists():
                    sync_directory(folder)
                with contextlib.suppress(OSError):
                    steps.disk.rmdir(folder)
            sync_directory(self.output)
            unlink(self.removing)


class Lock:
    """One coordinator per output. The kernel drops it with the process, however that ends."""

    def __init__(self, workspace: Workspace) -> None:
        path, output = workspace.work / LOCK, workspace.output
        made: list[Path] = []
        while True:
            with explained("open", path):
                made += make_folder(workspace.work)
                try:
                    self._fd = steps.disk.open(path, CREATE | os.O_CLOEXEC, 0o644)
                except FileNotFoundError:
                    continue  # the work folder went meanwhile: make another
            self._take(path, workspace)
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_ino == path.stat().st_ino:
                    break
            self.release()  # its holder finished and removed it meanwhile: lock the new one
        _locks.add(self._fd)
        with explained("write", path, 32):
            steps.disk.ftruncate(self._fd, 0)
            write_all(self._fd, str(os.getpid()).encode(), 0)
        workspace.create()
        for folder in dict.fromkeys((output, *(new.parent for new in made))):
            sync_directory(folder)

    def _take(self, path: Path, workspace: Workspace) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
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


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tokenmill"


def read_from_cache(name: str) -> bytes | None:
    try:
        return (cache_folder() / name).read_bytes()
    except OSError:
        return None


def keep_in_cache(name: str, content: bytes) -> None:
    _keep_at(cache_folder() / name, content)


def _keep_at(path: Path, content: bytes) -> None:
    """Threads of a process, and machines that share a home, may write the same file at once."""
    with explained("create", path.parent):
        make_folder(path.parent)
    writer = f"{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}"
    write_atomic(path, content, path.with_name(f".{path.name}.{writer}.tmp"))


def _last_resort() -> Path:
    """Where there is no home that can be written, as on many a cluster."""
    return Path(tempfile.gettempdir()) / f"tokenmill-{os.getuid()}"


def find_kept(name: str, folder: str = "") -> Path | None:
    """A file of the cache; `folder` is where it was once put, by a process of another cache."""
    places = [Path(folder)] if folder else []
    places += [cache_folder(), _last_resort()]
    return next((place / name for place in places if (place / name).is_file()), None)


def keep_anywhere(name: str, content: bytes) -> Path:
    """In the cache, or where that cannot be written in the temporary folder. Others may write
    there too: whoever reads it back compares its SHA-256."""
    try:
        keep_in_cache(name, content)
    except StorageError:
        path = _last_resort() / name
        _keep_at(path, content)
        return path
    return cache_folder() / name


class GrowingFile:
    """A file written piece by piece and named, by its content if need be, when it is complete."""

    closed = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._length = 0
        self._digest = xxhash.xxh3_128()
        with explained("write to", folder):
            make_folder(folder)
            self._temporary, self._fd = locked_file(folder)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())

    @property
    def length(self) -> int:
        return self._length

    def write(self, buffer: Buffer) -> int:
        with explained("write", self._temporary, len(buffer)):
            written = write_all(self._fd, buffer, self._length)
        self._digest.update(buffer)
        self._length += written
        return written

    def flush(self) -> None:
        pass

    def finish(self, name: str, mtime_ns: int) -> Path:
        target = self.folder / name
        with explained("write", target):
            os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            steps.disk.fsync(self._fd)
            steps.disk.replace(self._temporary, target)
            sync_directory(self.folder)
        return target

    def close(self) -> None:
        """For writers that close what they write to: the file stays open until it is left."""

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(self, *_: object) -> None:
        steps.disk.close(self._fd)
        remove_file(self._temporary)


# --- files that grow -------------------------------------------------------------------------


class OutputFiles:
    """Open files that pieces are written to, by name in the work folder."""

    MAX_OPEN = 32

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.files
        self._fds: dict[str, int] = {}
        # Held, and not looked up anew: a worker whose coordinator is gone must not find the
        # files of another plan under the same names (--overwrite makes the folder anew).
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
            steps.disk.ftruncate(self._fd, valid_length)  # a torn last record goes
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


def write_spill(path: Path, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Put a unit's arrays aside until its place is known. Needs no sync: a lost one is redone."""
    needed = sum(array.nbytes for array in arrays)
    with explained("write", path, needed), opened(path, REWRITE) as fd:
        offset = 0
        for array in arrays:
            offset += write_all(fd, np.ascontiguousarray(array), offset)


class TrialWrite(NamedTuple):
    bytes_per_second: float
    sync_ms: float  # of a small file, written, synced and named


TRIAL_BYTES = 64 << 20
TRIAL_FILES = 10


def trial_write(folder: Path) -> TrialWrite:
    """How fast a folder takes what is written and synced; nothing of it stays."""
    path = folder / f".tokenmill-trial-{os.getpid()}"
    block = os.urandom(4 << 20)  # a file system that compresses shall not be faster for it
    try:
        with explained("write", path, TRIAL_BYTES), opened(path, REWRITE) as fd:
            begun = time.perf_counter()
            for offset in range(0, TRIAL_BYTES, len(block)):
                write_all(fd, block, offset)
            steps.disk.fsync(fd)
            seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(TRIAL_FILES):
            write_atomic(path, b"small")
        small = (time.perf_counter() - begun) / TRIAL_FILES
    finally:
        remove_file(path)
        remove_file(path.with_name(f".{path.name}.tmp"))
    return TrialWrite(TRIAL_BYTES / max(seconds, 1e-6), small * 1000)
