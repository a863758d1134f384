"""How far a folder is: finished, unfinished and bound to a plan, or not ours. Changes nothing."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Literal

import msgspec

from tokenmill.dataset.verification import read_run
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inputs.kinds import segments_of
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.output.commit import IMPORTED
from tokenmill.output.finish.file_list import made_files, read_file_list
from tokenmill.output.journal import UnitRecord, unit_record
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.part_job import bound_to
from tokenmill.output.objects.parts import (
    FINISH_PARTS,
    CutSources,
    PartNote,
    missing_leases,
    read_notes,
)
from tokenmill.output.objects.records import recorded_units
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.recovery import bound_plan
from tokenmill.output.workspace import JOURNAL, LOCK, WorkArea, Workspace
from tokenmill.planning.leases import Lease, Part, leases_of
from tokenmill.planning.needs import FinishedWork
from tokenmill.planning.plan import Plan, work_fingerprint
from tokenmill.settings import PlanSettings
from tokenmill.system.lock import holder_of
from tokenmill.system.store import read_small
from tokenmill.tokens.counts import Counts

State = Literal["finished", "unfinished", "removing", "foreign", "empty"]
EXPORTED = "exported_from"


class PartStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a job on several machines."""

    part: str
    leases: int
    leases_done: int
    state: str = ""  # what it has last said: at work, done or stopped; "": nothing yet
    host: str = ""
    message: str = ""  # why it stopped
    when: str = ""


class FinishPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of `finish`, on one of several machines."""

    part: str
    files: int
    files_made: int  # that are recorded; who made them does not matter
    state: str = ""  # what it has last said: at work, done or stopped; "": nothing yet
    host: str = ""
    message: str = ""  # why it stopped
    when: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a folder. Of an unfinished job, what is durable: a crash costs none of it."""

    directory: str
    state: State
    made_by: str = ""  # prepare, export or import
    process: int = 0  # at work in it now; 0: none
    counts: dict[str, int] = {}  # rows, documents, tokens ...
    input_bytes: int = 0
    input_bytes_done: int = -1  # -1: not known
    sources: int = 0
    settings: dict[str, Any] = {}
    revisions: dict[str, str] = {}
    finished: str = ""  # when
    command: str = ""  # that began it, or went on with it last
    folder: str = ""  # in which that was typed
    stopped: dict[str, str] = {}  # why its last run stopped: message, hint and when
    files: list[str] = []  # of a foreign folder, the first ones
    leases: int = 0  # of a job on several machines
    leases_done: int = 0
    parts: list[PartStatus] = []  # that were begun, or have something to do
    files_to_make: int = 0  # by parts of `finish`; 0: no part has begun
    files_made: int = 0
    finish_parts: list[FinishPart] = []


def status(directory: str | os.PathLike[str]) -> Status:
    """What is in a folder: a dataset, an unfinished job, files of others, or nothing."""
    workspace = open_workspace(directory)
    if isinstance(workspace, Workspace) and not os.path.isdir(directory):
        what = "not a folder" if os.path.lexists(directory) else "no such folder"
        raise UsageError(
            f"{os.fspath(directory)}: {what}", hint="give the folder that was `-o` of `prepare`"
        )
    process = 0
    if isinstance(workspace, Workspace):
        process = holder_of(workspace.work / LOCK)
    if workspace.has(workspace.manifest):
        return _finished(workspace, process)
    if workspace.has(workspace.plan):
        opened = open_workspace(directory)
        if isinstance(opened, ObjectWorkspace):
            return _on_several(opened, str(directory))
        return _unfinished(workspace, process)
    names = workspace.foreign_files()
    state: State = "foreign" if names else "empty"
    if workspace.has(workspace.removing):
        state = "removing"
    return Status(directory=str(directory), state=state, process=process, files=names[:10])


def _finished(workspace: WorkArea, process: int) -> Status:
    manifest = Manifest.load(workspace.store)
    made = read_run(workspace.store) or {}
    size = sum(int(source.get("size", 0)) for source in manifest.plan.get("sources", ()))
    return Status(
        directory=workspace.where(),
        state="finished",
        made_by=_maker(manifest.plan),
        process=process,
        counts=manifest.counts,
        input_bytes=size,
        input_bytes_done=size,
        sources=len(manifest.sources),
        settings=manifest.plan["settings"],
        revisions=manifest.plan.get("revisions", {}),
        finished=str(made.get("finished", "")),
    )


def _maker(plan: dict[str, Any]) -> str:
    return "import" if IMPORTED in plan else "export" if EXPORTED in plan else "prepare"


def _unfinished(workspace: WorkArea, process: int) -> Status:
    plan, local = bound_plan(workspace)
    fingerprint = work_fingerprint(plan)
    records, _ = workspace.read_log(JOURNAL, fingerprint, unit_record)
    encoded = [one for one in records if one.unit.source < len(plan.get("sources", ()))]
    latest = {record.unit: record for record in encoded}
    counts = Counts()
    for record in latest.values():
        counts.add(record.counts)
    made_by = _maker(plan)
    sources = plan.get("sources", ())
    done = -1
    if made_by == "prepare":
        done = _bytes_done(workspace, plan, local, list(latest.values()))
    began = _note(workspace, workspace.command)  # a job that Python began has none
    return Status(
        directory=workspace.where(),
        state="unfinished",
        made_by=made_by,
        process=process,
        counts=counts.to_dict(),
        input_bytes=sum(int(source["size"]) for source in sources),
        input_bytes_done=done,
        sources=len(sources),
        settings=plan["settings"],
        revisions=plan.get("revisions", {}),
        command=began.get("command", ""),
        folder=began.get("folder", ""),
        stopped=_note(workspace, workspace.stopped),
    )


def _on_several(workspace: ObjectWorkspace, directory: str) -> Status:
    """An unfinished job of several machines: what is recorded, by any of them."""
    plan = bound_to(workspace)
    records = recorded_units(plan, workspace)
    counts = Counts()
    for record in records.records():
        counts.add(record.counts)
    complete = records.complete_segments()
    leases, cuts = list(leases_of(plan.sources)), CutSources(workspace)
    missing = {lease.number for lease in missing_leases(leases, cuts, complete)}
    done = sum(
        segment.size
        for number in complete.sources()
        for segment in cuts.of(number) or ()
        if (number, segment.number) in complete
    )
    began = _note(workspace, workspace.command)
    return Status(
        directory=directory,
        state="unfinished",
        made_by="prepare",
        counts=counts.to_dict(),
        input_bytes=plan.input_bytes,
        input_bytes_done=done,
        sources=len(plan.sources),
        settings=plan.to_dict()["settings"],
        revisions=plan.revisions,
        command=began.get("command", ""),
        folder=began.get("folder", ""),
        stopped=_note(workspace, workspace.stopped),
        leases=len(leases),
        leases_done=len(leases) - len(missing),
        parts=_parts(leases, missing, read_notes(workspace.store)),
        **_files(plan, workspace),
    )


def _files(plan: Plan, workspace: ObjectWorkspace) -> dict[str, Any]:
    """The files that parts of `finish` are to make, and have made."""
    notes, found = read_notes(workspace.store, FINISH_PARTS), read_file_list(plan, workspace)
    made = made_files(workspace, found.evidence) if found is not None else set[str]()
    sizes, parts = {part.of for part in notes}, list[FinishPart]()
    for part in [Part(number, of) for of in sorted(sizes) for number in range(of)]:
        mine = found.share_of(part) if found is not None else []
        note = notes.get(part, PartNote(part="", state=""))
        parts.append(
            FinishPart(
                part=str(part),
                files=len(mine),
                files_made=sum(task.working in made for task in mine),
                state=note.state,
                host=note.host,
                message=note.message,
                when=note.when,
            )
        )
    total = len(found.tasks) if found is not None else 0
    return {"files_to_make": total, "files_made": len(made), "finish_parts": parts}


def _parts(leases: list[Lease], missing: set[int], notes: dict[Part, PartNote]) -> list[PartStatus]:
    sizes = {part.of for part in notes}
    parts = set(notes) | {Part(number, of) for of in sizes for number in range(of)}
    found: list[PartStatus] = []
    for part in sorted(parts, key=lambda one: (one.of, one.number)):
        mine, note = part.of_leases(leases), notes.get(part, PartNote(part="", state=""))
        left = sum(lease.number in missing for lease in mine)
        found.append(
            PartStatus(
                part=str(part),
                leases=len(mine),
                leases_done=len(mine) - left,
                state=note.state,
                host=note.host,
                message=note.message,
                when=note.when,
            )
        )
    return found


def _note(workspace: WorkArea, name: str) -> dict[str, str]:
    """What a run wrote down for people, if it can be read."""
    with contextlib.suppress(OSError, TokenmillError, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(read_small(workspace.store, name), type=dict[str, str])
    return {}


def _bytes_done(
    workspace: WorkArea,
    plan: dict[str, Any],
    local: tuple[Source, ...],
    records: list[UnitRecord],
) -> int:
    """Bytes of the inputs whose segments are durable as a whole, as the progress bar counts
    them; -1 where an input is not at hand any more."""
    parts: dict[tuple[int, int], int] = {}
    whole: dict[tuple[int, int], int] = {}
    for record in records:
        key = (record.unit.source, record.unit.segment)
        parts[key] = parts.get(key, 0) + 1
        if record.last:
            whole[key] = record.unit.part + 1
    complete = {key for key, count in whole.items() if parts[key] == count}
    reading = PlanSettings.from_dict(plan["settings"]).reading
    at_hand = {source.number: source for source in local}
    done = 0
    for number in sorted({number for number, _ in complete}):
        segments: list[Segment] | None = None
        with contextlib.suppress(OSError, TokenmillError, ValueError):
            if number in at_hand:
                segments = list(segments_of(at_hand[number], reading))
            else:
                content = workspace.cut(number) or b""
                segments = msgspec.json.decode(content, type=list[Segment])
        if segments is None:
            return -1
        done += sum(one.size for one in segments if (number, one.number) in complete)
    return done


def finished_work(output: str | os.PathLike[str]) -> FinishedWork:
    """What `prepare` with the same arguments would not do again."""
    workspace = open_workspace(output)
    has_dataset = workspace.has(workspace.manifest)
    if not has_dataset and not workspace.has(workspace.plan):
        return FinishedWork()
    found = status(output)
    share = found.input_bytes_done / max(1, found.input_bytes)
    return FinishedWork(
        documents=found.counts.get("documents", 0),
        tokens=found.counts.get("tokens", 0),
        input_share=1.0 if has_dataset else min(max(share, 0.0), 1.0),
        committed=has_dataset,
        written_bytes=workspace.bytes_begun() if isinstance(workspace, Workspace) else 0,
    )
