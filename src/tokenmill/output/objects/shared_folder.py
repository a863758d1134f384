"""A folder that several machines write to at once, used as a store of whole files.

Nothing grows in place here: clients of a shared file system write whole pages, and two that write
to one page of a file undo each other's work. So each file has one writer, which gives it its name
when it is complete and synced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenmill.errors import RefusedError
from tokenmill.output.workspace import WORK
from tokenmill.system import disk as steps
from tokenmill.system.disk import (
    REWRITE,
    Buffer,
    explained,
    make_folder,
    name_again,
    opened,
    sync_directory,
    unlink,
    write_all,
)
from tokenmill.system.store import FolderStore, ObjectStore

SCHEME = "shared:"
NEW = f"{WORK}/new"  # files that are not whole yet, under names that nobody else has
TRIES = 10


class SharedFolder(FolderStore, ObjectStore):
    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.path.abspath(path))
        self.address = f"{SCHEME}{self.path}"

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFolder, (self.path,)

    def write_whole(self, name: str, content: bytes) -> None:
        self.write_parts(name, [content])

    def write_parts(self, name: str, parts: Iterable[Buffer], size: int = 0) -> None:
        target = self.path / name
        with explained("write", target), self._new_file(parts) as new:
            self._give_name(lambda: steps.disk.replace(new, target), target)

    def create(self, name: str, content: bytes) -> None:
        target = self.path / name
        with explained("create", target, len(content)), self._new_file([content]) as new:
            try:
                self._give_name(lambda: name_again(new, target), target)
            except FileExistsError:
                raise RefusedError(f"{target}: exists already") from None

    def remove(self, name: str) -> bool:
        """And the folders that are empty then: a bucket has none."""
        found = super().remove(name)
        above = (self.path / name).relative_to(self.path).parents
        for folder in (NEW, WORK, *map(str, above[:-1])):
            with contextlib.suppress(OSError):  # not empty; or somebody else has removed it
                steps.disk.rmdir(self.path / folder)
        return found

    def names(self, prefix: str) -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        found = (
            os.path.relpath(os.path.join(above, file), self.path)
            for above, _, files in os.walk(self.path / folder)
            for file in files
        )
        return iter(sorted(name for name in found if name.startswith(prefix)))

    @contextlib.contextmanager
    def _new_file(self, parts: Iterable[Buffer]) -> Iterator[Path]:
        """A synced file of these bytes, which is gone afterwards unless it got a name."""
        new = self.path / NEW / os.urandom(16).hex()
        at = 0
        try:
            with self._in_folder(new) as fd:
                for part in parts:
                    at += write_all(fd, part, at)
                steps.disk.fsync(fd)
            yield new
        finally:
            unlink(new)

    @contextlib.contextmanager
    def _in_folder(self, path: Path) -> Iterator[int]:
        """A new file in a folder that another writer may be removing, because it was empty."""
        for attempt in range(TRIES):
            make_folder(path.parent)
            with contextlib.ExitStack() as stack:
                try:
                    fd = stack.enter_context(opened(path, REWRITE))
                except FileNotFoundError:
                    if attempt == TRIES - 1:
                        raise
                    continue
                yield fd
                return

    def _give_name(self, rename: Any, target: Path) -> None:
        for attempt in range(TRIES):
            make_folder(target.parent)
            try:
                rename()
            except FileNotFoundError:
                if attempt == TRIES - 1:
                    raise
            else:
                sync_directory(target.parent)
                return
