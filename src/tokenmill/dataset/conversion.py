"""The job around `export` and `import`: lock, make the files, commit, run.json.

The output is made like every output: a work folder, files noted as they are finished, a commit,
the manifest last. The same call resumes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator
from typing import Any

from tokenmill.errors import InputError
from tokenmill.output.commit import Content, carry_out
from tokenmill.output.file_maker import PIECE_BYTES, FileMaker
from tokenmill.output.recovery import open_job
from tokenmill.output.result import Result
from tokenmill.output.workspace import WORK, Workspace
from tokenmill.planning.plan import BoundPlan
from tokenmill.settings import RunSettings
from tokenmill.system.interrupts import Interrupts
from tokenmill.system.store import Store, read_range


def make_dataset(
    plan: BoundPlan,
    workspace: Workspace,
    interrupts: Interrupts,
    overwrite: bool,
    make: Callable[[FileMaker], Content],
    record: Callable[[float], dict[str, Any]],
) -> Result:
    """A dataset of what `make` makes; `record` gives run.json, from the seconds that it took."""
    began = time.monotonic()
    run = RunSettings(workers=0, memory=0, overwrite=overwrite)
    with interrupts.deferred(), open_job(plan, run, workspace, interrupts.check) as opened:
        manifest = opened.manifest
        if manifest is None:
            maker = FileMaker(workspace, plan.fingerprint, interrupts.check)
            try:
                with contextlib.closing(maker):
                    manifest = carry_out(plan, make(maker), workspace)
            except InputError:  # it is asked again with other options, to which nothing is bound
                workspace.remove_work()
                raise
        if workspace.has(WORK):
            workspace.put_run_record(record(time.monotonic() - began))
            workspace.remove_work()
    return Result(
        output=os.fspath(workspace.output),
        manifest=manifest,
        already_done=opened.manifest is not None,
        seconds=time.monotonic() - began,
        run={},
        warnings=[],
    )


def pieces_of(store: Store, name: str, size: int) -> Generator[bytes, None, None]:
    """The first `size` bytes of a file, as they are cut for checksums."""
    at = 0
    while at < size:
        content = read_range(store, name, at, min(PIECE_BYTES, size - at))
        if not content:
            raise InputError(f"{store.where(name)}: became shorter while it was read")
        yield content
        at += len(content)
