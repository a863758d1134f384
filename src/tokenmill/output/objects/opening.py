"""An output by its address: what the coordinator and every worker open, on any machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from tokenmill.errors import RefusedError, UsageError
from tokenmill.output.objects.parts import PARTS
from tokenmill.output.objects.shared_folder import SCHEME, SharedFolder
from tokenmill.output.objects.workspace import DRIVER, ObjectWorkspace
from tokenmill.output.workspace import LOCK, WORK, WorkArea, Workspace
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.lock import holder_of
from tokenmill.system.store import ObjectStore, Place, store_of


def open_workspace(output: Place, scratch: str = "", *, shared: bool = False) -> WorkArea:
    """The output in a folder, or in a store of whole files.

    `shared`: several machines write to the folder. A job that was begun so goes on so.
    """
    if not isinstance(output, str | os.PathLike):
        if not hasattr(output, "write_parts"):
            raise UsageError(f"{output.where()}: cannot be written to")
        return ObjectWorkspace(cast("ObjectStore", output), scratch)
    path = os.fspath(output)
    if is_bucket(path):
        return ObjectWorkspace(cast("ObjectStore", store_of(path)), scratch)
    if path.startswith(SCHEME):
        path, shared = path.removeprefix(SCHEME), True
    if shared or any(os.path.isdir(os.path.join(path, one)) for one in (DRIVER, PARTS)):
        return ObjectWorkspace(SharedFolder(path), scratch)
    return Workspace(path, scratch)


def refuse_begun_here(workspace: WorkArea, *, overwrite: bool = False) -> None:
    """In a folder that several machines share: a job that one machine began grows in place there,
    and is locked in another way."""
    lock = Path(workspace.where(f"{WORK}/{LOCK}"))
    if workspace.has_places or not lock.is_file():
        return
    if holder_of(lock) or not overwrite:
        raise RefusedError(
            f"{workspace.where()}: holds a job that was begun on one machine alone",
            hint="the command that began it completes it (without --part and --engine ray); or "
            "start over with --overwrite, or remove the folder",
        )
