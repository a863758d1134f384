"""Files that grow: tokens in their places, and logs that only grow at their end.

Tokens are written with pwrite, synced in bulk, and only then named in the journal.
"""

from __future__ import annotations

import xxhash

from tokenmill.output.workspace import Workspace
from tokenmill.system.store import PlacedFolder, PlacedStore, Store


class OutputFiles(PlacedFolder):
    """The files of a job as they grow, by their name in the work folder."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace.files)
        self.hold()


class AppendLog:
    """The journal's file: opened at its valid length, appended to, synced."""

    def __init__(self, store: PlacedStore, name: str, valid_length: int, header: bytes) -> None:
        """`store`: for this log alone, which closes it."""
        self._store, self._name = store, name
        self._store.truncate(self._name, valid_length)  # removes a torn last record
        self._length = valid_length
        if valid_length == 0:
            self.append(header)
            self._store.sync_names("")

    def append(self, content: bytes) -> None:
        self._store.append(self._name, self._length, content)
        self._length += len(content)

    def close(self) -> None:
        self._store.close()


def is_intact(store: Store, name: str, offset: int, length: int, digest: int) -> bool:
    """Whether a piece of a file is still what it was when it was written."""
    try:
        content = store.read(name, offset, length)
    except OSError:
        return False
    return len(content) == length and xxhash.xxh3_64_intdigest(content) == digest
