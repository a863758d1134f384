"""What is on disk of a job, and how it grows: in steps that survive a crash.

    DIR/                       the output folder
    DIR/.tokenmill/            the work folder, there only while a job is unfinished
        lock                   one coordinator per output (flock; holds its process id)
        plan.json              created exclusively: what this output is bound to
        journal                units whose bytes are durable, self-checking records
        files/                 token files and indexes as they grow, under stable names
        spill/                 units that had to wait for their place (or in --scratch)
        cuts/                  how each downloaded input is cut: the file itself may go
        downloads/             inputs that are not kept (--no-keep-downloads)
        command.json           how the last run was started, for `status`
        stopped.json           why the last run stopped, for `status`
        commit.json            the manifest and the names that are about to be given
        removing.json          the manifest of a dataset that --overwrite is about to remove

Every change that must survive is write, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import abc
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any, Protocol

import msgspec

from tokenmill.errors import RefusedError, StorageError
from tokenmill.output.files import AppendLog, GrowingLog, JobFiles, OutputFiles, is_intact
from tokenmill.output.journal import Record, UnitRecord, read_log
from tokenmill.output.manifest import MANIFEST
from tokenmill.system.disk import explained
from tokenmill.system.lock import FileLock
from tokenmill.system.spill import SpillFolder, scratch_folder
from tokenmill.system.store import NotAFileError, PlacedFolder, PlacedStore, Store, read_whole

WORK = ".tokenmill"
LOCK = "lock"
JOURNAL = "journal"
RECORDS = "records"  # of units that are written before their places are known
FILES = f"{WORK}/files"
MADE_BY_PARTS = "files/made-by-parts"  # the log of files that parts of `finish` have made
CUTS = f"{WORK}/cuts"


class Lock(Protocol):
    def release(self) -> None: ...


class WorkArea(abc.ABC):
    """Names and steps of one job's output, in a folder (`Workspace`) or in a store of whole files
    (`objects.ObjectWorkspace`)."""

    plan = f"{WORK}/plan.json"
    commit = f"{WORK}/commit.json"
    removing = f"{WORK}/removing.json"
    command = f"{WORK}/command.json"
    stopped = f"{WORK}/stopped.json"
    manifest = MANIFEST
    run_record = "run.json"
    store: Store
    address: str  # by which a worker opens it
    local: Path  # a folder of this machine: where there must be space
    spill: SpillFolder
    downloads: Path
    # Whether token files grow in their place; else all files are made of units.
    has_places: bool
    takes_over = False  # whether to lock it is to stop another coordinator

    def where(self, name: str = "") -> str:
        """The output, or a file in it, as a message names it."""
        return self.store.where(name)

    def has(self, name: str) -> bool:
        """Whether something of this name is there, a file or not."""
        try:
            return self.store.size(name) is not None
        except NotAFileError:
            return True
        except NotADirectoryError:  # the output folder itself is a file
            return False

    @abc.abstractmethod
    def has_work(self) -> bool:
        """Whether anything of an unfinished job is there."""

    @abc.abstractmethod
    def lock(self) -> Lock:
        """One coordinator per output."""

    def foreign_files(self) -> list[str]:
        """Visible files in the output; of ours none are there before the commit."""
        try:
            return [name for name in self.store.list("") if not name.startswith(".")]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            what = f"{self.where()}: not a folder"
            raise RefusedError(what, hint="name another with -o") from None

    # --- what is written while the job is at work ----------------------------------------------

    @abc.abstractmethod
    def bind(self, plan: bytes) -> None:
        """Create plan.json, never over another."""

    @abc.abstractmethod
    def open_files(self) -> JobFiles: ...

    @abc.abstractmethod
    def read_log(
        self, name: str, fingerprint: str, decode: Callable[[bytes], Record]
    ) -> tuple[list[Record], int]:
        """The valid records of a log, and where the next one goes."""

    @abc.abstractmethod
    def open_log(self, name: str, position: int, header: bytes) -> GrowingLog:
        """`position`: where the next record goes."""

    @abc.abstractmethod
    def is_whole(self, record: UnitRecord) -> bool:
        """Whether all pieces of a unit are what they were when they were written."""

    def object_of(self, record: UnitRecord) -> str:
        """The object that holds a unit's pieces; "" where they are in files that grow."""
        return ""

    def put_run_record(self, record: dict[str, Any]) -> None:
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = msgspec.json.encode({"version": 1, "finished": finished, **record})
        self.store.write_whole(self.run_record, msgspec.json.format(content, indent=1) + b"\n")

    def put_command(self, command: str) -> None:
        """How this run was started, and where: what `status` says to type."""
        content = {"command": command, "folder": os.getcwd()}
        self.store.write_whole(self.command, msgspec.json.encode(content))

    def put_stopped(self, message: str, hint: str) -> None:
        """Why this run stopped. It is a note for people: where it cannot be written, none is."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = {"message": message, "hint": hint, "when": when}
        with contextlib.suppress(OSError, StorageError):
            self.store.write_whole(self.stopped, msgspec.json.encode(content))

    def forget_stopped(self) -> None:
        """A new run has begun: how the last one stopped says nothing any more."""
        if self.has(self.stopped):
            self.store.remove(self.stopped)

    @abc.abstractmethod
    def put_cut(self, number: int, content: bytes) -> None:
        """How a downloaded source is cut."""

    def cut(self, number: int) -> bytes | None:
        """What `put_cut` has written down, if it can be read."""
        with contextlib.suppress(OSError):
            return read_whole(self.store, f"{CUTS}/{number}")
        return None

    # --- the commit ----------------------------------------------------------------------------

    @abc.abstractmethod
    def name_of(self, working: str, path: str) -> str:
        """The name under which a file of the dataset is made."""

    @abc.abstractmethod
    def work_name(self, working: str) -> str:
        """The name under which a file is made that is no part of the dataset: it is gone when the
        job ends."""

    @property
    @abc.abstractmethod
    def made_in(self) -> str:
        """The folder, or the address, in which the names of made files are."""

    @abc.abstractmethod
    def announce(self, names: Iterable[str]) -> None:
        """Write down what is about to be made, so that it is known for ours after a crash."""

    @abc.abstractmethod
    def announced(self) -> list[str]:
        """What a commit that did not end may have made under its final name."""

    @abc.abstractmethod
    def grown_files(self, files: JobFiles, fingerprint: str) -> Store:
        """To read what workers wrote, as files: streams of tokens, and tables of documents."""

    @abc.abstractmethod
    def publish(self, names: dict[str, str], decision: bytes, manifest: bytes) -> None:
        """Make the dataset visible; the manifest comes last."""

    # --- removing ------------------------------------------------------------------------------

    @abc.abstractmethod
    def clear_work(self) -> None:
        """Start over: everything of an unfinished job goes, but not the lock."""

    @abc.abstractmethod
    def remove_work(self) -> None:
        """The dataset is there: everything else goes."""

    @abc.abstractmethod
    def begin_removal(self) -> None:
        """Move the manifest to the work folder first: the files it names can still be found."""

    @abc.abstractmethod
    def finish_removal(self, names: list[str]) -> None:
        """Remove the files that a dataset or a commit named, and no others."""


class Workspace(WorkArea):
    """An output folder. Cheap to make; workers make their own."""

    store: PlacedStore
    has_places = True

    def __init__(self, output: str | os.PathLike[str], scratch: str = "") -> None:
        """`scratch`: a folder for units that wait for their place, which need not survive."""
        self.output = self.local = Path(output)
        self.address = str(self.output)
        self.work = self.output / WORK
        # A file that is not whole yet is never beside the dataset's.
        self.store = PlacedFolder(output, scratch=self.work)
        self.files = self.output / FILES
        folder = scratch_folder(scratch, self.output) if scratch else self.work / "spill"
        self.spill = SpillFolder(folder, shared=bool(scratch))
        self.downloads = self.work / "downloads"

    def has_work(self) -> bool:
        return self.has(WORK)

    def lock(self) -> FileLock:
        """One coordinator per output. The work folder is there, and durable, once this returns."""
        lock = self.store.lock(f"{WORK}/{LOCK}")
        self.create()
        return lock

    def create(self) -> None:
        """Call only while holding the lock: its last holder may still be deleting the folder."""
        self.store.make_folder(FILES)
        self.store.sync_names(WORK)

    def bytes_begun(self) -> int:
        """Bytes that an earlier run wrote here; a resumed job needs that much less space."""
        with contextlib.suppress(OSError):
            names = self.store.list(FILES)
            return sum(self.store.size(f"{FILES}/{name}") or 0 for name in names)
        return 0

    def bind(self, plan: bytes) -> None:
        self.store.create(self.plan, plan)

    def open_files(self) -> OutputFiles:
        return OutputFiles(self.files)

    def read_log(
        self, name: str, fingerprint: str, decode: Callable[[bytes], Record]
    ) -> tuple[list[Record], int]:
        return read_log(self.store, f"{WORK}/{name}", fingerprint, decode)

    def open_log(self, name: str, position: int, header: bytes) -> AppendLog:
        folder, _, file = f"{WORK}/{name}".rpartition("/")
        return AppendLog(self.store.within(folder), file, position, header)

    def is_whole(self, record: UnitRecord) -> bool:
        return all(
            is_intact(self.store, f"{FILES}/{p.file}", p.offset, p.length, p.digest)
            for p in record.pieces
        )

    def put_cut(self, number: int, content: bytes) -> None:
        self.store.make_folder(CUTS)
        self.store.write_whole(f"{CUTS}/{number}", content)

    def name_of(self, working: str, path: str) -> str:
        return working

    def work_name(self, working: str) -> str:
        return working

    @property
    def made_in(self) -> str:
        return self.where(FILES)

    def announce(self, names: Iterable[str]) -> None:
        """Files are made in the work folder, and get their names from a commit."""

    def announced(self) -> list[str]:
        return []

    def grown_files(self, files: JobFiles, fingerprint: str) -> Store:
        return files

    def publish(self, names: dict[str, str], decision: bytes, manifest: bytes) -> None:
        self.store.write_whole(self.commit, decision)
        for path, working in names.items():
            self.store.publish(f"{FILES}/{working}", path)
        for folder in folders_of(names):
            self.store.sync_names(folder)
        self.store.write_whole(self.manifest, manifest)

    def clear_work(self) -> None:
        """Start over under the lock that is held: everything but the lock goes.

        The decision to publish goes first: without its plan the next job would take it for its own.
        """
        for name in (self.commit, f"{WORK}/{JOURNAL}", self.plan):
            if self.store.remove(name):
                self.store.sync_names(WORK)
        for folder in (FILES, CUTS, f"{WORK}/{self.downloads.name}"):
            self.store.remove_tree(folder)
        self.store.remove(self.command)
        self.forget_stopped()
        self.create()

    def forget_commit(self) -> None:
        self.store.remove(self.commit)
        self.store.sync_names(WORK)

    def remove_work(self) -> None:
        """Remove the work folder; the plan first, so that half a removal is not taken for a job.

        The lock is removed last: from then on another process may make a work folder of its own,
        which is not ours to remove.
        """
        for name in (self.plan, f"{WORK}/{JOURNAL}"):
            self.store.remove(name)
        self.spill.drop()
        with explained("remove", self.work):
            names = [name for name in self.store.list(WORK) if name != LOCK]
        for name in names:
            self.store.remove_tree(f"{WORK}/{name}")
        self.store.remove(f"{WORK}/{LOCK}")
        self.store.remove_folder(WORK)  # unless the next one is here already, or was
        self.store.sync_names("")

    def begin_removal(self) -> None:
        """Move the manifest to the work folder first: the files it names can still be found."""
        self.store.publish(self.manifest, self.removing)
        self.store.sync_names(WORK)
        self.store.remove(self.manifest)
        self.store.sync_names("")

    def finish_removal(self, names: list[str]) -> None:
        """Remove the files that a dataset or a commit named, and no others."""
        for name in names:
            self.store.remove(name)
        for folder in folders_of(names)[:-1]:
            with contextlib.suppress(FileNotFoundError):
                self.store.list(folder)
                self.store.sync_names(folder)
            with contextlib.suppress(StorageError):
                self.store.remove_folder(folder)
        self.store.sync_names("")
        self.store.remove(self.removing)


def folders_of(names: Iterable[str]) -> list[str]:
    """The folders that hold these files, and those above up to the root; deepest first."""
    found = {PurePath(".")}
    for name in names:
        found |= set(PurePath(name).parents)
    return [str(folder) for folder in sorted(found, key=lambda one: len(one.parts), reverse=True)]
