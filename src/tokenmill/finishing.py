"""`finish`: from the recorded units of all parts to a dataset, on any machine.

`finish --part` makes a share of the files, on one of several machines. What is missing then, and
all that only one can do, `finish` does: the index, the manifest.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tokenmill.amounts import parse_bytes
from tokenmill.assembly import (
    choose_of_all,
    complete,
    make_files,
    placed_units,
    streams_in_order,
)
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.order.choosing import ChosenDocuments
from tokenmill.engines.placing.placing_run import PlacingRun
from tokenmill.errors import RefusedError, TokenmillError, UsageError
from tokenmill.output.commit import evidence_of, file_tasks
from tokenmill.output.file_maker import FileMaker
from tokenmill.output.finish.file_list import (
    FileList,
    put_file_list,
    read_file_list,
    refuse_other_versions,
)
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.part_job import bound_to, noted_part
from tokenmill.output.objects.parts import (
    FINISH_PARTS,
    PARTS,
    CutSources,
    PartNote,
    forget_note,
    missing_leases,
    read_notes,
    refuse_missing,
)
from tokenmill.output.objects.record_table import RecordTable
from tokenmill.output.objects.records import recorded_units
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.recovery import read_plan
from tokenmill.output.result import Result, part_result, warnings_of
from tokenmill.output.workspace import MADE_BY_PARTS
from tokenmill.planning.leases import Part, leases_of
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings, patient, timer_knobs
from tokenmill.system.interrupts import Interrupts, interruptible, keeping_work
from tokenmill.system.memory import fit_budget
from tokenmill.tokens.counts import Counts

WAIT_SECONDS = 1.0  # for another machine


def finish(
    directory: str | os.PathLike[str],
    *,
    workers: int | None = None,
    memory: str | int | None = None,
    scratch: str | os.PathLike[str] = "",
    allow_empty_split: bool = False,
    part: str = "",
    observer: Observer | None = None,
) -> Result:
    """Make a dataset of what all parts of a job have recorded. The same call resumes.

    `part`: only a share of the files, on one of several machines.

    >>> tokenmill.finish("out")
    """
    began = time.monotonic()
    wanted = Part.parse(part) if part else None
    settings = _run_settings(workers, memory, scratch, allow_empty_split)
    observer = observer or Observer()
    workspace = _opened(directory, settings)
    record: dict[str, Any] = {}
    sorted_ones: list[str] = []
    with interruptible() as interrupts, interrupts.deferred():
        plan = _unfinished(workspace)
        if plan is not None and wanted is not None:
            made = _finish_part(plan, workspace, wanted, settings, observer, interrupts)
            if made is not None:
                seconds = time.monotonic() - began
                return part_result(plan, workspace.where(), wanted, Counts(), seconds, made)
            plan = None  # another machine has finished it meanwhile
        elif plan is not None:
            _refuse_incomplete(plan, workspace)  # before any other coordinator is disturbed
            record, sorted_ones = _finish(plan, workspace, settings, observer, interrupts)
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


def _run_settings(
    workers: int | None,
    memory: str | int | None,
    scratch: str | os.PathLike[str],
    allow_empty_split: bool,
) -> RunSettings:
    parsed = None if memory is None else parse_bytes(memory, what="--memory")
    budget = fit_budget(workers, parsed)
    settings = RunSettings(
        workers=budget.workers,
        memory=budget.memory,
        scratch=os.path.abspath(scratch) if scratch else "",
        allow_empty_split=allow_empty_split,
        **timer_knobs(),
    )
    return patient(settings)


def _opened(directory: str | os.PathLike[str], settings: RunSettings) -> ObjectWorkspace:
    workspace = open_workspace(os.fspath(directory), settings.scratch, shared=True)
    if not isinstance(workspace, ObjectWorkspace):
        raise TypeError("a shared folder is a store of whole files")
    return workspace


def _unfinished(workspace: ObjectWorkspace) -> Plan | None:
    """What the job is bound to; None if it is finished."""
    if workspace.has(workspace.manifest):
        return None
    if not workspace.has(workspace.plan):
        raise UsageError(
            f"{workspace.where()}: no job in parts was begun here",
            hint="give the folder that was `-o` of `prepare --part`",
        )
    return bound_to(workspace)


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
            choose = _chosen(placing, workspace)
            with _advice():
                frontier = placing.dispatch.frontier
                _, sorted_ones = complete(placing, frontier, ordered, record, choose)
        parts = _notes(workspace, PARTS)
        run = {
            "seconds": round(time.monotonic() - began, 3),
            **record,
            **next((note.made_with for note in parts if note.made_with), {}),
            "settings": msgspec.to_builtins(settings),
            "parts": [msgspec.structs.replace(note, made_with={}) for note in parts],
            "finish_parts": _notes(workspace, FINISH_PARTS),
            "host": platform.node(),
        }
        workspace.put_run_record(run)
        workspace.remove_work()
    finally:
        lease.release()
    return record or {"units": len(recorded)}, sorted_ones


def _notes(workspace: ObjectWorkspace, folder: str) -> list[PartNote]:
    return [note for _, note in sorted(read_notes(workspace.store, folder).items())]


def _chosen(
    placing: PlacingRun, workspace: ObjectWorkspace
) -> Callable[[], ChosenDocuments | None]:
    bounds = read_plan(workspace, workspace.plan, "use --overwrite to start over").bounds
    return functools.partial(choose_of_all, placing, bounds)


@contextlib.contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except UsageError as error:  # a mixture that cannot be met
        raise error.advised(
            "change the amounts in the mix.toml, then run `tokenmill prepare --mix` with "
            "the same -o and without --part: it encodes nothing again and finishes the job"
        ) from None


# --- on several machines -----------------------------------------------------------------------


def _finish_part(
    plan: Plan,
    workspace: ObjectWorkspace,
    part: Part,
    settings: RunSettings,
    observer: Observer,
    interrupts: Interrupts,
) -> dict[str, Any] | None:
    """Make a share of the files. None: the job was finished meanwhile."""
    try:
        with keeping_work(), noted_part(workspace, part, {}, FINISH_PARTS) as noted:
            found = _file_list(plan, workspace, settings, observer, interrupts)
            refuse_other_versions(found)
            mine = found.share_of(part)
            maker = FileMaker(workspace, found.evidence, interrupts.check, MADE_BY_PARTS)
            with contextlib.closing(maker):
                missing = maker.missing(mine)
                make_files(settings, EventLog(observer), found.job, missing, maker)
            made = {
                "files": len(mine),
                "files_made": len(missing),
                "files_in_all": len(found.tasks),
            }
            noted.update(made)
            return made
    except (TokenmillError, OSError):
        if not workspace.has(workspace.manifest):
            raise
        forget_note(workspace, part, FINISH_PARTS)
        return None  # and what the files were made of is removed


def _file_list(
    plan: Plan,
    workspace: ObjectWorkspace,
    settings: RunSettings,
    observer: Observer,
    interrupts: Interrupts,
) -> FileList:
    """What is to be made. The first part that comes gives the units their places, and others wait
    for it. If it dies, another part goes on with that."""
    looked = waited = False
    while (found := read_file_list(plan, workspace)) is None:
        if not looked:
            _refuse_incomplete(plan, workspace)  # before any other coordinator is disturbed
        looked = True
        placing = ObjectWorkspace(workspace.store, settings.scratch)  # it holds the lease
        lease = placing.lock_if_free(interrupts.check)
        if lease is None:
            if not waited:
                observer.note("another machine gives the units their places: waiting for it")
            waited = True
            time.sleep(WAIT_SECONDS)
            interrupts.check()
            continue
        try:
            if placing.has(placing.manifest):
                placing.remove_work()
                raise RefusedError(
                    f"{workspace.where()}: is finished already",
                    hint="`tokenmill verify` compares it",
                )
            if read_file_list(plan, placing) is None:
                _list_files(plan, placing, settings, observer, interrupts)
        finally:
            lease.release()
    return found


def _list_files(
    plan: Plan,
    workspace: ObjectWorkspace,
    settings: RunSettings,
    observer: Observer,
    interrupts: Interrupts,
) -> None:
    """Give all units their places, and write down which files are to be made of them."""
    budget = fit_budget(settings.workers, settings.memory)
    workspace.spill.clear()
    recorded, log = _refuse_incomplete(plan, workspace), EventLog(observer, plan.input_bytes)
    with placed_units(plan, settings, budget, workspace, recorded, log, interrupts.check) as (
        placing,
        ordered,
    ):
        choose = _chosen(placing, workspace)
        with _advice():
            frontier = placing.dispatch.frontier
            final = streams_in_order(placing, frontier, ordered, {}, choose)
        ledger = placing.books.ledger
        job, tasks = file_tasks(plan, ledger, final, workspace, budget.share)
        put_file_list(plan, workspace, evidence_of(plan, ledger), job, tasks)
    workspace.spill.drop()


def _refuse_incomplete(plan: Plan, workspace: ObjectWorkspace) -> RecordTable:
    """All recorded units. Raises if some are missing, and says whose they are."""
    leases, recorded = list(leases_of(plan.sources)), recorded_units(plan, workspace)
    missing = missing_leases(leases, CutSources(workspace), recorded.complete_segments())
    refuse_missing(missing, len(leases), read_notes(workspace.store), workspace.where())
    return recorded
