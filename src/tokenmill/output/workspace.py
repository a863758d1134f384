"""What is on disk of a job, and how it grows: in steps that survive a crash.

    DIR/                       the output folder
    DIR/.tokenmill/            the work folder, there only while a job is unfinished
        lock                   one coordinator per output (flock; holds its process id)
        plan.json              created exclusively: what this output is bound to
        journal                units whose bytes are durable, self-checking records
        files/                 token files and indexes as they grow, under stable names
        spill/                 units that had to wait for their place
        cuts/                  how each downloaded input is cut: the file itself may go
        downloads/             inputs that are not kept (--no-keep-downloads)
        commit.json            the manifest and the names that are about to be given
        removing.json          the manifest of a dataset that --overwrite is about to remove

Every change that must survive is write, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import RefusedError, StorageError
from tokenmill.system import disk as steps
from tokenmill.system.disk import (
    CREATE,
    explained,
    make_folder,
    name_again,
    remove_folder,
    remove_tree,
    sync_directory,
    unlink,
    write_all,
    write_atomic,
)
from tokenmill.system.store import FolderStore

WORK = ".tokenmill"
LOCK = "lock"


class Workspace:
    """Paths and atomic steps of one output folder. Cheap to make; workers make their own."""

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.output = Path(output)
        self.store = FolderStore(output)
        self.work = self.output / WORK
        self.files = self.work / "files"
        self.spill = self.work / "spill"
        self.cuts = self.work / "cuts"
        self.downloads = self.work / "downloads"
        self.plan = self.work / "plan.json"
        self.journal = self.work / "journal"
        self.commit = self.work / "commit.json"
        self.removing = self.work / "removing.json"
        self.manifest = self.output / "manifest.json"
        self.run_record = self.output / "run.json"

    def create(self) -> None:
        """Call only while holding the lock: its last holder may still be deleting the folder."""
        with explained("create the folder", self.work):
            make_folder(self.files)
            make_folder(self.spill)
            sync_directory(self.work)

    def foreign_files(self) -> list[str]:
        """Visible files in the output folder; of ours none are there before the commit."""
        if not self.output.exists():
            return []
        if not self.output.is_dir():
            raise RefusedError(f"{self.output}: not a folder", hint="name another with -o")
        return sorted(p.name for p in self.output.iterdir() if not p.name.startswith("."))

    def bytes_begun(self) -> int:
        """Bytes that an earlier run wrote here; a resumed job needs that much less space."""
        with contextlib.suppress(OSError):
            return sum(path.stat().st_size for path in self.files.iterdir())
        return 0

    def put(self, path: Path, content: bytes) -> None:
        """A small file of the dataset; a crash leaves at most a file in the work folder."""
        write_atomic(path, content, self.work / f".{path.name}.tmp")

    def put_run_record(self, record: dict[str, Any]) -> None:
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = msgspec.json.encode({"version": 1, "finished": finished, **record})
        self.put(self.run_record, msgspec.json.format(content, indent=1) + b"\n")

    def put_cut(self, number: int, content: bytes) -> None:
        """How a downloaded source is cut."""
        with explained("create the folder", self.cuts):
            make_folder(self.cuts)
        write_atomic(self.cuts / str(number), content)

    def clear_spill(self) -> None:
        remove_folder(self.spill)
        with explained("create the folder", self.spill):
            make_folder(self.spill)

    def clear_work(self) -> None:
        """Start over under the lock that is held: everything but the lock goes.

        The decision to publish goes first: without its plan the next job would take it for its own.
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
        """Remove the work folder; the plan first, so that half a removal is not taken for a job.

        The lock is removed last: from then on another process may make a work folder of its own,
        which is not ours to remove.
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
        """Move the manifest to the work folder first: the files it names can still be found."""
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
