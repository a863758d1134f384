"""The job around `export` and `import`: lock, make the files, commit, run.json.

The output is made like every output: a work folder, files noted as they are finished, a commit,
the manifest last. The same call resumes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from tokenmill.errors import InputError
from tokenmill.output.commit import Content, carry_out
from tokenmill.output.file_maker import FileMaker
from tokenmill.output.recovery import open_job
from tokenmill.output.result import Result
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.plan import BoundPlan
from tokenmill.settings import RunSettings
from tokenmill.system.interrupts import Interrupts


def make_dataset(
    plan: BoundPlan,
    workspace: WorkArea,
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
        if workspace.has_work():
            workspace.put_run_record(record(time.monotonic() - began))
            workspace.remove_work()
    return Result(
        output=workspace.where(),
        manifest=manifest,
        already_done=opened.manifest is not None,
        seconds=time.monotonic() - began,
        run={},
        warnings=[],
    )
