"""`finish`: from the recorded units of all parts to a dataset, on any machine."""

from __future__ import annotations

import functools
import os
import platform
import time
from typing import Any

import msgspec

from tokenmill.amounts import parse_bytes
from tokenmill.assembly import choose_of_all, complete, placed_units
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.errors import UsageError
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.part_job import bound_to
from tokenmill.output.objects.parts import (
    CutSources,
    missing_leases,
    read_notes,
    refuse_missing,
)
from tokenmill.output.objects.record_table import RecordTable
from tokenmill.output.objects.records import recorded_units
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.recovery import read_plan
from tokenmill.output.result import Result, warnings_of
from tokenmill.planning.leases import leases_of
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings, patient, timer_knobs
from tokenmill.system.interrupts import Interrupts, interruptible, keeping_work
from tokenmill.system.memory import fit_budget


def finish(
    directory: str | os.PathLike[str],
    *,
    workers: int | None = None,
    memory: str | int | None = None,
    scratch: str | os.PathLike[str] = "",
    allow_empty_split: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Make a dataset of what all parts of a job have recorded. The same call resumes.

    >>> tokenmill.finish("out")
    """
    began = time.monotonic()
    parsed = None if memory is None else parse_bytes(memory, what="--memory")
    budget = fit_budget(workers, parsed)
    settings = RunSettings(
        workers=budget.workers,
        memory=budget.memory,
        scratch=os.path.abspath(scratch) if scratch else "",
        allow_empty_split=allow_empty_split,
        **timer_knobs(),
    )
    settings = patient(settings)
    workspace = open_workspace(os.fspath(directory), settings.scratch, shared=True)
    if not isinstance(workspace, ObjectWorkspace):
        raise TypeError("a shared folder is a store of whole files")
    plan = None
    if not workspace.has(workspace.manifest):
        if not workspace.has(workspace.plan):
            raise UsageError(
                f"{workspace.where()}: no job in parts was begun here",
                hint="give the folder that was `-o` of `prepare --part`",
            )
        plan = bound_to(workspace)
        _refuse_incomplete(plan, workspace)  # before any other coordinator is disturbed
    record: dict[str, Any] = {}
    sorted_ones: list[str] = []
    with interruptible() as interrupts, interrupts.deferred():
        if plan is not None:
            record, sorted_ones = _finish(
                plan, workspace, settings, observer or Observer(), interrupts
            )
        elif workspace.has_work():  # a crash before it was removed
            workspace.lock()
            workspace.remove_work()
    manifest = Manifest.load(workspace.store)
    return Result(
        output=workspace.where(),
        manifest=manifest,
        already_done=plan is None,
        seconds=time.monotonic() - began,
        run=record,
        warnings=warnings_of(manifest, manifest.settings, None, record) + sorted_ones,
    )


def _finish(
    plan: Plan,
    workspace: ObjectWorkspace,
    settings: RunSettings,
    observer: Observer,
    interrupts: Interrupts,
) -> tuple[dict[str, Any], list[str]]:
    began, record = time.monotonic(), dict[str, Any]()
    budget = fit_budget(settings.workers, settings.memory)
    lease = workspace.lock()
    try:
        workspace.spill.clear()
        recorded = _refuse_incomplete(plan, workspace)
        log = EventLog(observer, plan.input_bytes)
        with (
            keeping_work(),
            placed_units(plan, settings, budget, workspace, recorded, log, interrupts.check) as (
                placing,
                ordered,
            ),
        ):
            bounds = read_plan(workspace, workspace.plan, "use --overwrite to start over").bounds
            choose = functools.partial(choose_of_all, placing, bounds)
            frontier = placing.dispatch.frontier
            try:
                _, sorted_ones = complete(placing, frontier, ordered, record, choose)
            except UsageError as error:  # a mixture that cannot be met
                raise error.advised(
                    "change the amounts in the mix.toml, then run `tokenmill prepare --mix` with "
                    "the same -o and without --part: it encodes nothing again and finishes the job"
                ) from None
        notes = read_notes(workspace.store)
        parts = [note for _, note in sorted(notes.items())]
        run = {
            "seconds": round(time.monotonic() - began, 3),
            **record,
            **next((note.made_with for note in parts if note.made_with), {}),
            "settings": msgspec.to_builtins(settings),
            "parts": [
                msgspec.to_builtins(msgspec.structs.replace(note, made_with={})) for note in parts
            ],
            "host": platform.node(),
        }
        workspace.put_run_record(run)
        workspace.remove_work()
    finally:
        lease.release()
    return record or {"units": len(recorded)}, sorted_ones


def _refuse_incomplete(plan: Plan, workspace: ObjectWorkspace) -> RecordTable:
    """All recorded units. Raises if some are missing, and says whose they are."""
    leases, recorded = list(leases_of(plan.sources)), recorded_units(plan, workspace)
    missing = missing_leases(leases, CutSources(workspace), recorded.complete_segments())
    refuse_missing(missing, len(leases), read_notes(workspace.store), workspace.where())
    return recorded
