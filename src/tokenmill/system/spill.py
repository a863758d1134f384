"""Units that wait for their place, and that no memory is left for: files of this machine alone.

They need no sync: a unit that is lost is done again. With `--scratch` they are on a local disk.
"""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.errors import RefusedError, StorageError
from tokenmill.system.disk import explained, make_private_folder, remove_folder
from tokenmill.system.store import PlacedFolder, read_small


def scratch_folder(scratch: str, output: Path) -> Path:
    """Every output has a folder of its own there."""
    path = os.fsencode(os.path.realpath(output))
    return Path(scratch, f"tokenmill-{xxhash.xxh3_64_hexdigest(path)}")


class SpillFolder(PlacedFolder):
    def __init__(self, path: Path, *, shared: bool) -> None:
        """`shared`: in a folder that others may write to."""
        super().__init__(path)
        self.shared = shared

    def clear(self) -> None:
        """Make it, or empty it of what a killed run left."""
        self.close()
        remove_folder(self.path)
        with explained("create the folder", self.path):
            ours = make_private_folder(self.path)
        if self.shared and not ours:  # its name can be guessed
            hint = "remove it, or give another --scratch"
            raise RefusedError(f"{self.path}: not a folder of yours", hint=hint)

    def drop(self) -> None:
        self.close()
        remove_folder(self.path)

    def put(self, name: str, arrays: list[np.ndarray[Any, Any]]) -> None:
        offset = 0
        self.truncate(name, 0)  # a process of the same number may have been killed
        for array in arrays:
            self.write_at(name, offset, np.ascontiguousarray(array))
            offset += array.nbytes

    def take(self, name: str) -> bytes:
        return read_small(self, name)

    def forget(self, name: str) -> None:
        with contextlib.suppress(StorageError):
            self.remove(name)


def spill_name(unit: object, pid: int) -> str:
    """Named by host and process too: two workers may have had the same unit."""
    return f"{unit}-{platform.node().replace('/', '_')[:64]}-{pid}"
