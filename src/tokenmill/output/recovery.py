"""Opening an output folder is recovering it: lock, compare plans, read the journal, go on.

Every state a crash can leave behind is one of: nothing, a work folder with a journal, a commit
that was begun (it is rolled back), a dataset whose work folder was not yet removed, a dataset.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import (
    Interrupted,
    RefusedError,
    StorageError,
    TokenmillError,
    VerificationError,
)
from tokenmill.formats import FORMATS, is_format
from tokenmill.inputs.source import SAMPLED, Source
from tokenmill.output.commit import IMPORTED, published, read_commit, roll_back
from tokenmill.output.durability import UnitLog
from tokenmill.output.finish.known_units import halves, recorded_before, whole_ones
from tokenmill.output.journal import UnitRecord, unit_record
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.opening import refuse_begun_here
from tokenmill.output.workspace import FILES, JOURNAL, RECORDS, WORK, WorkArea, Workspace
from tokenmill.planning.leases import Lease
from tokenmill.planning.plan import (
    Plan,
    difference,
    export_command,
    only_format_changed,
    without_amounts,
)
from tokenmill.settings import RunSettings
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.interrupts import keeping_work
from tokenmill.system.store import read_small, read_whole
from tokenmill.tokens.order import origin_of

# By segment: rows that ended their worker, of units that must be done again all the same.
QuarantinedRows = dict[tuple[int, int], dict[int, str]]

# What decoding damaged JSON may raise.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


FileState = tuple[int, int]  # of an input: the time of its last change, and its inode


class BoundPlan(msgspec.Struct, frozen=True):
    """plan.json: what an output is bound to, and when its inputs were last written to. A manifest
    can be read as one too."""

    plan: dict[str, Any]
    mtimes: dict[str, int] = {}
    states: dict[str, FileState] = {}  # of the inputs; empty in plans of before
    # Of a mixture: up to which choice key documents of its sources are encoded, pass after pass.
    bounds: tuple[dict[str, int], ...] = ()
    # Those on this machine, for `status`. A manifest's `sources` are something else.
    sources: tuple[Source, ...] = msgspec.field(name="local_sources", default=())
    # All of them, where another machine may finish the job: without what only one can open.
    all_sources: tuple[Source, ...] = ()


class JobState(msgspec.Struct, frozen=True):
    """Either a dataset that is finished already, or books to go on with."""

    manifest: Manifest | None = None
    books: UnitLog | None = None
    durable: Sequence[UnitRecord] = []
    ordered: list[UnitRecord] = []  # of a shuffled job: what its second half has done
    aside: QuarantinedRows = {}
    bounds: tuple[dict[str, int], ...] = ()  # of a mixture, for each pass over its inputs
    relative: bool = False  # units are written before their places are known
    leases: tuple[Lease, ...] | None = None  # what is to be done; None: everything


@contextlib.contextmanager
def open_job(
    plan: Plan,
    run: RunSettings,
    workspace: WorkArea,
    check_interrupt: Callable[[], None] = lambda: None,
    first_bounds: Callable[[], dict[str, int]] = dict,
) -> Iterator[JobState]:
    """Lock the output, recover what is there, and refuse what would mix or destroy.

    `first_bounds`: of a mixture that is begun, up to which choice key sources are encoded.
    """
    refuse_links(workspace)
    refuse_begun_here(workspace, overwrite=run.overwrite)
    if IMPORTED in plan.to_dict():
        _refuse_ours(workspace)
    else:
        refuse_foreign(workspace)
    if workspace.has(workspace.manifest) and not workspace.has_work() and not run.overwrite:
        yield JobState(finished_dataset(plan, workspace))
        return
    if workspace.takes_over and workspace.has(workspace.plan) and not run.overwrite:
        compare_bound(plan, workspace)  # or a command by mistake would stop a job of others
    lock = workspace.lock()
    try:
        begun = workspace.has(workspace.removing) and not workspace.has(workspace.manifest)
        if run.overwrite or begun:  # else nothing of the dataset is gone, and nothing shall go
            _remove_old(plan, workspace)
        if workspace.has(workspace.manifest):  # a crash before the work folder was removed
            yield JobState(finished_dataset(plan, workspace))
            return
        bound = _bind(plan, workspace, first_bounds)
        if isinstance(workspace, Workspace) and workspace.has(workspace.commit):
            roll_back(workspace)
        workspace.spill.clear()
        workspace.forget_stopped()
        with keeping_work(), _noted_end(workspace):
            books, durable, aside = recover(plan, run, workspace, bound, check_interrupt)
            with contextlib.closing(books):
                encoded, ordered = halves(plan, durable)
                yield JobState(
                    books=books,
                    durable=encoded,
                    ordered=ordered,
                    aside=aside,
                    bounds=bound.bounds,
                    relative=is_relative(plan, workspace),
                )
    finally:
        lock.release()


def is_relative(plan: Plan, workspace: WorkArea) -> bool:
    """Whether units are written before their places are known. A trial reads its inputs in order,
    and ends in the midst of one: there each unit waits for its place."""
    return not workspace.has_places and not plan.settings.reads_part


@contextlib.contextmanager
def _noted_end(workspace: WorkArea) -> Iterator[None]:
    """What stops the job in here is written down for `status`."""
    try:
        yield
    except (TokenmillError, Interrupted) as error:
        workspace.put_stopped(error.message, error.hint)
        raise


def bound_revisions(workspace: WorkArea) -> dict[str, str]:
    """The commits of the Hub that an output is bound to: what it was begun with holds, whatever
    its branch points to today."""
    refuse_links(workspace)
    for name in (workspace.plan, workspace.manifest):
        with contextlib.suppress(OSError, StorageError, *UNREADABLE):  # for opening it to tell
            content = read_small(workspace.store, name)
            plan = msgspec.json.decode(content, type=BoundPlan).plan
            return msgspec.convert(plan.get("revisions", {}), dict[str, str])
    return {}


def refuse_links(workspace: WorkArea) -> None:
    """Nothing is written or removed through a link inside an output folder.

    A folder may come from somebody else, in an archive or from the Hub. A link in place of the
    work folder, or of a file in it, would let `prepare` write to, rename or remove files outside.
    The output folder itself may be a link: its owner has made it so. Readers follow links to
    files: a download from the Hub is a folder of links into its cache.
    """
    if not isinstance(workspace, Workspace):
        return  # objects are no links
    for path in _touched(workspace.output):
        if os.path.islink(path):
            raise RefusedError(
                f"{path}: is a symbolic link; tokenmill does not write or remove files "
                "through links",
                hint="remove the link, or give another folder with -o",
            )


def _touched(output: Path) -> Iterator[Path]:
    """Every path that `prepare` opens to write, or removes with its content."""
    own = (WORK, "index", "train", "val")
    yield from (output / name for name in own)
    try:
        others = [name for name in os.listdir(output) if name not in own]
    except OSError:  # a folder may be open to those who know its names only
        others = list(FORMATS)
    for folder in (output / name for name in others):  # a manifest names files in no others
        if (os.path.islink(folder) or os.path.isdir(folder)) and is_format(folder.name):
            yield from (folder, folder / "train", folder / "val")
    for parent, folders, files in os.walk(output / WORK):
        yield from (Path(parent, name) for name in (*folders, *files))


def refuse_output(plan: Plan, workspace: WorkArea) -> None:
    """What `prepare` would refuse, found without touching anything."""
    refuse_links(workspace)
    refuse_foreign(workspace)
    if workspace.has(workspace.manifest):
        finished_dataset(plan, workspace)
    elif workspace.has(workspace.plan):
        compare_bound(plan, workspace)


def refuse_foreign(workspace: WorkArea) -> None:
    """A folder with files must hold a manifest of ours, or a job of ours."""
    if workspace.has(workspace.manifest):
        try:
            Manifest.load(workspace.store)
            return
        except VerificationError as error:
            if workspace.has(workspace.manifest):  # else another coordinator has just removed it
                raise RefusedError(
                    error.message, hint="give another folder with -o; nothing here is touched"
                ) from None
    if workspace.has_work():
        return
    foreign = workspace.foreign_files()
    if foreign:
        shown = ", ".join(foreign[:5]) + (" ..." if len(foreign) > 5 else "")
        raise RefusedError(
            f"{workspace.where()}: holds files that tokenmill did not make ({shown})",
            hint="give a new or empty folder with -o",
        )


def _refuse_ours(workspace: WorkArea) -> None:
    """There is nothing to import in files that `prepare` made, and to start over is to remove
    them: `import` is never asked for that."""
    for name in (workspace.manifest, workspace.removing, workspace.plan):
        if not workspace.has(name):
            continue
        hint = "look into the folder, and remove it by hand"
        if IMPORTED not in read_plan(workspace, name, hint).plan:
            raise RefusedError(
                f"{workspace.where()}: tokenmill made these files, so they need no import",
                hint="verify, inspect and export work on a finished dataset as it is"
                if name == workspace.manifest
                else "the command that began it completes it",
            )


def _remove_old(plan: Plan, workspace: WorkArea) -> None:
    """Remove a dataset or an unfinished job of ours, and nothing else. Survives a crash."""
    if workspace.has(workspace.manifest):
        if IMPORTED in Manifest.load(workspace.store).plan and IMPORTED not in plan.to_dict():
            raise RefusedError(
                f"{workspace.where()}: its token files were imported, and tokenmill does not "
                "remove files of others",
                hint="give another folder with -o, or remove them by hand",
            )
        workspace.begin_removal()
    names = workspace.announced()
    if workspace.has(workspace.removing):
        old = Manifest.load(workspace.store, workspace.removing)
        theirs = ("tokens", "sidecar") if IMPORTED in old.plan else ()
        names += [entry.path for entry in old.files if entry.kind not in theirs]
    if isinstance(workspace, Workspace) and workspace.has(workspace.commit):
        names += published(workspace, read_commit(workspace))
    workspace.finish_removal([*names, "run.json"] if names else [])
    workspace.clear_work()


def finished_dataset(plan: Plan, workspace: WorkArea) -> Manifest:
    manifest = Manifest.load(workspace.store)
    refuse_difference(manifest.plan, plan, workspace, "holds a dataset made with another plan")
    _refuse_touched(plan, workspace)
    _refuse_incomplete(manifest, workspace)
    return manifest


def _refuse_incomplete(manifest: Manifest, workspace: WorkArea) -> None:
    """Names and sizes only: what is in the files, `verify` compares."""
    for file in manifest.files:
        try:
            size = workspace.store.size(file.path)
            wrong = "is missing" if size is None else f"has {size:,} bytes instead of {file.size:,}"
        except OSError as error:  # a link or a folder of this name
            size, wrong = -1, f"cannot be used: {error.strerror}"
        if size != file.size:
            raise VerificationError(
                f"{workspace.where(file.path)}: {wrong}, so the dataset is not complete any more",
                hint="`tokenmill verify` lists all that is wrong; start again with --overwrite",
            )


def _refuse_touched(plan: Plan, workspace: WorkArea) -> None:
    """Only samples of a large file are compared: one written to since may have changed."""
    times = _times_when_read(workspace)
    for source in plan.sources:
        then = times.get(source.name, source.mtime_ns)
        if source.fingerprint.startswith(SAMPLED) and then != source.mtime_ns:
            raise RefusedError(
                f"{source.name}: was modified after {workspace.where()} was made from it",
                hint="if the content is the same, restore the file's time; otherwise start "
                "over with --overwrite",
            )


def _times_when_read(workspace: WorkArea) -> dict[str, int]:
    """Modification times of the inputs as the job found them, where a record of them is left."""
    try:
        if workspace.has(workspace.plan):  # a crash while the dataset got its names
            content = read_small(workspace.store, workspace.plan)
            return msgspec.json.decode(content, type=BoundPlan).mtimes
        content = read_whole(workspace.store, workspace.run_record)
        made_from = msgspec.json.decode(content)["sources"]
        return {name: entry["mtime_ns"] for name, entry in made_from.items()}
    except (OSError, *UNREADABLE, KeyError, TypeError, ValueError, AttributeError):
        return {}  # it is not part of the data: damaged or gone, it is no reason to stop


def refuse_difference(old: dict[str, Any], plan: Plan, workspace: WorkArea, what: str) -> None:
    new = plan.to_dict()
    if old != new:
        hint = "use the same settings to resume, another -o, or --overwrite to start over"
        try:
            lines = difference(old, new) or ["(the records differ)"]
            if workspace.has(workspace.manifest) and only_format_changed(old, new):
                command = export_command(old, new, workspace.where())
                hint = (
                    "use another -o, or --overwrite to start over; or, for another format of the "
                    f"same tokens, without encoding again: {command}"
                )
        except (KeyError, TypeError, AttributeError):
            lines = ["(the record of the old plan is damaged)"]
        raise RefusedError(f"{workspace.where()}: {what}:", lines=lines, hint=hint)


def note_pass(workspace: WorkArea, bounds: dict[str, int]) -> None:
    """Bind a job to the bounds of a further pass over its inputs, before it begins."""
    bound = read_plan(workspace, workspace.plan, "use --overwrite to start over")
    bound = msgspec.structs.replace(bound, bounds=(*bound.bounds, bounds))
    workspace.store.write_whole(workspace.plan, msgspec.json.encode(bound))


def _bind(plan: Plan, workspace: WorkArea, first_bounds: Callable[[], dict[str, int]]) -> BoundPlan:
    """Create plan.json, or compare with the one there."""
    if not workspace.has(workspace.plan):
        workspace.clear_work()  # what a crash left of a removal belongs to another plan
        content = binding(plan, workspace, first_bounds())
        workspace.bind(msgspec.json.encode(content))
        return content
    bound = compare_bound(plan, workspace)
    if bound.plan != plan.to_dict():
        bound = msgspec.structs.replace(bound, plan=plan.to_dict())
        workspace.store.write_whole(workspace.plan, msgspec.json.encode(bound))
    return bound


def binding(plan: Plan, workspace: WorkArea, bounds: dict[str, int]) -> BoundPlan:
    mtimes = {source.name: source.mtime_ns for source in plan.sources}
    states = {source.name: _state_of(source) for source in plan.sources}
    bare: tuple[Source, ...] = ()
    if is_relative(plan, workspace):
        bare = tuple(msgspec.structs.replace(one, path="", remote=None) for one in plan.sources)
    return BoundPlan(plan.to_dict(), mtimes, states, (bounds,), _local(plan), bare)


def _local(plan: Plan) -> tuple[Source, ...]:
    return tuple(
        msgspec.structs.replace(source, path=os.path.abspath(source.path))
        for source in plan.sources
        if source.remote is None and source.path and not is_bucket(source.path)
    )


def bound_plan(workspace: WorkArea) -> tuple[dict[str, Any], tuple[Source, ...]]:
    """What an unfinished job is bound to, and where its inputs were on this machine."""
    bound = read_plan(workspace, workspace.plan, "use --overwrite to start over")
    return bound.plan, bound.sources


def _state_of(source: Source) -> FileState:
    return source.ctime_ns, source.inode


def compare_bound(plan: Plan, workspace: WorkArea) -> BoundPlan:
    stored = read_plan(workspace, workspace.plan, "use --overwrite to start over")
    if not _only_amounts_differ(stored.plan, plan, workspace):
        refuse_difference(stored.plan, plan, workspace, "is bound to another plan")
    return stored


def _only_amounts_differ(old: dict[str, Any], plan: Plan, workspace: WorkArea) -> bool:
    """Whether only amounts of a mixture changed, and no document is chosen by the old ones yet."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        if without_amounts(old) != without_amounts(plan.to_dict()):
            return False
        records, _ = workspace.read_log(JOURNAL, plan.work_fingerprint, unit_record)
        count = len(plan.sources)
        encoded = [one for one in records if origin_of(one.unit.source, count) >= 0]
        known = {piece.file for record in encoded for piece in record.pieces}
        made = set[str]()
        with contextlib.suppress(FileNotFoundError):  # a store has no empty folders
            made = set(workspace.store.list(FILES))
        return len(encoded) == len(records) and known >= made
    return False


def _was_touched(source: Source, bound: BoundPlan) -> bool:
    """Whether a source may have changed since its units were made. The time of a file's last
    change and its inode tell what its modification time hides, which any program can set; a file
    that is hashed whole needs neither."""
    if bound.mtimes.get(source.name) != source.mtime_ns:
        return True
    known = bound.states.get(source.name, _state_of(source))
    return source.fingerprint.startswith(SAMPLED) and known != _state_of(source)


def read_plan(workspace: WorkArea, name: str, hint: str) -> BoundPlan:
    try:
        return msgspec.json.decode(read_small(workspace.store, name), type=BoundPlan)
    except UNREADABLE as error:
        where = workspace.store.where(name)
        raise RefusedError(f"{where}: damaged: {error}", hint=hint) from None


def recover(
    plan: Plan,
    run: RunSettings,
    workspace: WorkArea,
    bound: BoundPlan,
    check_interrupt: Callable[[], None],
    segments: set[tuple[int, int]] | None = None,
) -> tuple[UnitLog, Sequence[UnitRecord], QuarantinedRows]:
    """The units that are durable and intact. The units of a file touched since are done again
    and must come out the same: size and sampled content agree, but only that is proof."""
    log = RECORDS if is_relative(plan, workspace) else JOURNAL
    touched = {source.number for source in plan.sources if _was_touched(source, bound)}
    count = len(plan.sources)
    if log == RECORDS:
        durable, expected, damaged = recorded_before(
            plan, workspace, touched, check_interrupt, segments
        )
        length = 0
    else:
        records, length = workspace.read_log(log, plan.work_fingerprint, unit_record)
        latest = {record.unit: record for record in records}
        expected = {
            unit: one for unit, one in latest.items() if origin_of(unit.source, count) in touched
        }
        candidates = [record for unit, record in latest.items() if unit not in expected]
        whole = whole_ones(workspace, candidates, check_interrupt)
        durable = [one for one, ok in zip(candidates, whole, strict=True) if ok]
        damaged = [one for one, ok in zip(candidates, whole, strict=True) if not ok]
    aside: QuarantinedRows = {}
    for record in (*expected.values(), *damaged):
        rows = aside.setdefault((record.unit.source, record.unit.segment), {})
        rows.update({one.segment_row: one.reason for one in record.set_aside if not one.rows})
    return UnitLog(plan, run, workspace, durable, length, expected, log), durable, aside
