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
        commit.json            the manifest and the names that are about to be given
        removing.json          the manifest of a dataset that --overwrite is about to remove

Every change that must survive is write, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import msgspec
import xxhash

from tokenmill.errors import RefusedError
from tokenmill.output.manifest import MANIFEST
from tokenmill.system import disk as steps
from tokenmill.system.disk import (
    explained,
    make_folder,
    remove_folder,
    remove_tree,
    sync_directory,
    unlink,
    write_atomic,
)
from tokenmill.system.lock import FileLock
from tokenmill.system.store import NotAFileError, PlacedFolder, PlacedStore

WORK = ".tokenmill"
LOCK = "lock"
JOURNAL = "journal"
FILES = f"{WORK}/files"


class Workspace:
    """Names and atomic steps of one output folder. Cheap to make; workers make their own."""

    plan = f"{WORK}/plan.json"
    commit = f"{WORK}/commit.json"
    removing = f"{WORK}/removing.json"
    manifest = MANIFEST
    run_record = "run.json"

    def __init__(self, output: str | os.PathLike[str], scratch: str = "") -> None:
        """`scratch`: a folder for units that wait for their place, which need not survive."""
        self.output = Path(output)
        self.work = self.output / WORK
        # A file that is not whole yet is never beside the dataset's.
        self.store: PlacedStore = PlacedFolder(output, scratch=self.work)
        self.files = self.output / FILES
        self.spill = self.work / "spill"
        if scratch:  # of each output another folder there
            path = os.fsencode(os.path.realpath(output))
            self.spill = Path(scratch, f"tokenmill-{xxhash.xxh3_64_hexdigest(path)}")
        self.cuts = self.work / "cuts"
        self.downloads = self.work / "downloads"
        self.journal = self.work / JOURNAL

    def has(self, name: str) -> bool:
        """Whether something of this name is there, a file or not."""
        try:
            return self.store.size(name) is not None
        except NotAFileError:
            return True
        except NotADirectoryError:  # the output folder itself is a file
            return False

    def lock(self) -> FileLock:
        """One coordinator per output. The work folder is there, and durable, once this returns."""
        lock = self.store.lock(f"{WORK}/{LOCK}")
        self.create()
        for folder in dict.fromkeys((self.output, *(new.parent for new in lock.made))):
            sync_directory(folder)
        return lock

    def create(self) -> None:
        """Call only while holding the lock: its last holder may still be deleting the folder."""
        with explained("create the folder", self.work):
            make_folder(self.files)
            sync_directory(self.work)

    def foreign_files(self) -> list[str]:
        """Visible files in the output folder; of ours none are there before the commit."""
        try:
            return [name for name in self.store.list("") if not name.startswith(".")]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            what = f"{self.output}: not a folder"
            raise RefusedError(what, hint="name another with -o") from None

    def bytes_begun(self) -> int:
        """Bytes that an earlier run wrote here; a resumed job needs that much less space."""
        with contextlib.suppress(OSError):
            names = self.store.list(FILES)
            return sum(self.store.size(f"{FILES}/{name}") or 0 for name in names)
        return 0

    def put_run_record(self, record: dict[str, Any]) -> None:
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = msgspec.json.encode({"version": 1, "finished": finished, **record})
        self.store.write_whole(self.run_record, msgspec.json.format(content, indent=1) + b"\n")

    def put_cut(self, number: int, content: bytes) -> None:
        """How a downloaded source is cut."""
        with explained("create the folder", self.cuts):
            make_folder(self.cuts)
        write_atomic(self.cuts / str(number), content)

    def clear_spill(self) -> None:
        remove_folder(self.spill)
        with explained("create the folder", self.spill):
            make_folder(self.spill.parent)
            with contextlib.suppress(FileExistsError):
                steps.disk.mkdir(self.spill, 0o700)
            found = os.lstat(self.spill)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if self.spill.parent != self.work and not ours:
            # Others may write to a folder for temporary files, and knew the name.
            hint = "remove it, or give another --scratch"
            raise RefusedError(f"{self.spill}: not a folder of yours", hint=hint)

    def clear_work(self) -> None:
        """Start over under the lock that is held: everything but the lock goes.

        The decision to publish goes first: without its plan the next job would take it for its own.
        """
        with explained("remove", self.work):
            for name in (self.commit, f"{WORK}/{JOURNAL}", self.plan):
                if self.store.remove(name):
                    self.store.sync_names(WORK)
            for folder in (self.files, self.cuts, self.downloads):
                remove_tree(folder)
        self.create()

    def forget_commit(self) -> None:
        self.store.remove(self.commit)
        self.store.sync_names(WORK)

    def remove_work(self) -> None:
        """Remove the work folder; the plan first, so that half a removal is not taken for a job.

        The lock is removed last: from then on another process may make a work folder of its own,
        which is not ours to remove.
        """
        with explained("remove", self.work):
            for name in (self.plan, f"{WORK}/{JOURNAL}"):
                self.store.remove(name)
            remove_folder(self.spill)
            for path in [p for p in self.work.iterdir() if p.name != LOCK]:
                remove_tree(path)
            unlink(self.work / LOCK)
            try:
                steps.disk.rmdir(self.work)
            except OSError as error:  # the next one is here already, or was
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
            sync_directory(self.output)

    def begin_removal(self) -> None:
        """Move the manifest to the work folder first: the files it names can still be found."""
        self.store.publish(self.manifest, self.removing)
        self.store.sync_names(WORK)
        self.store.remove(self.manifest)
        self.store.sync_names("")

    def finish_removal(self, names: list[str]) -> None:
        """Remove the files that a dataset or a commit named, and no others."""
        with explained("remove", self.output):
            for name in names:
                self.store.remove(name)
            for folder in folders_of(names)[:-1]:
                if (self.output / folder).exists():
                    self.store.sync_names(folder)
                with contextlib.suppress(OSError):
                    steps.disk.rmdir(self.output / folder)
            self.store.sync_names("")
            self.store.remove(self.removing)


def folders_of(names: Iterable[str]) -> list[str]:
    """The folders that hold these files, and those above up to the root; deepest first."""
    found = {PurePath(".")}
    for name in names:
        found |= set(PurePath(name).parents)
    return [str(folder) for folder in sorted(found, key=lambda one: len(one.parts), reverse=True)]
