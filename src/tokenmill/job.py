"""Opening an output folder is recovering it: lock, compare plans, read the journal, go on.

Every state a crash can leave behind is one of: nothing, a work folder with a journal, a commit
that was begun (it is rolled back), a dataset whose work folder was not yet removed, a dataset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tokenmill.commit import IMPORTED, published, read_commit, roll_back
from tokenmill.config import RunSettings
from tokenmill.engines.books import Books, check_pieces
from tokenmill.errors import RefusedError, StorageError, VerificationError
from tokenmill.links import refuse_links
from tokenmill.manifest import Manifest, UnitRecord, read_journal
from tokenmill.plan import Plan, difference
from tokenmill.steps import create_exclusively, read_file
from tokenmill.storage import Lock, Workspace

# By segment: rows that ended their worker, of units that must be done again all the same.
Aside = dict[tuple[int, int], dict[int, str]]


# What decoding damaged JSON may raise.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Bound(msgspec.Struct, frozen=True):
    """plan.json: what an output is bound to, and when its inputs were last written to."""

    plan: dict[str, Any]
    mtimes: dict[str, int]


class _RevisionsOf(msgspec.Struct):
    revisions: dict[str, str] = {}


class _Revisions(msgspec.Struct):
    plan: _RevisionsOf


class _Planned(msgspec.Struct):
    plan: dict[str, Any]


class Opened(msgspec.Struct, frozen=True):
    """Either a dataset that is finished already, or books to go on with."""

    manifest: Manifest | None
    books: Books | None
    durable: list[UnitRecord]
    aside: Aside


@contextlib.contextmanager
def open_job(
    plan: Plan,
    run: RunSettings,
    workspace: Workspace,
    check_interrupt: Callable[[], None] = lambda: None,
) -> Iterator[Opened]:
    """Lock the output, recover what is there, and refuse what would mix or destroy."""
    refuse_links(workspace.output)
    if IMPORTED in plan.to_dict():
        _refuse_ours(workspace)
    else:
        _refuse_foreign(workspace)
    if workspace.manifest.exists() and not workspace.work.exists() and not run.overwrite:
        yield Opened(_finished(plan, workspace), None, [], {})
        return
    lock = Lock(workspace)
    try:
        begun = workspace.removing.exists() and not workspace.manifest.exists()
        if run.overwrite or begun:  # else nothing of the dataset is gone, and nothing shall go
            _remove_old(plan, workspace)
        if workspace.manifest.exists():  # a crash before the work folder was removed
            yield Opened(_finished(plan, workspace), None, [], {})
            return
        mtimes = _bind(plan, workspace)
        if workspace.commit.exists():
            roll_back(workspace)
        workspace.clear_spill()
        books, durable, aside = _recover(plan, run, workspace, mtimes, check_interrupt)
        try:
            yield Opened(None, books, durable, aside)
        finally:
            books.close()
    finally:
        lock.release()


def bound_revisions(workspace: Workspace) -> dict[str, str]:
    """The commits of the Hub that an output is bound to: what it was begun with holds, whatever
    its branch points to today."""
    refuse_links(workspace.output)
    for path in (workspace.plan, workspace.manifest):
        with contextlib.suppress(OSError, StorageError, *UNREADABLE):  # for opening it to tell
            return msgspec.json.decode(read_file(path), type=_Revisions).plan.revisions
    return {}


def refuse_output(plan: Plan, workspace: Workspace) -> None:
    """What `prepare` would refuse, found without touching anything."""
    if workspace.output.exists() and not workspace.output.is_dir():
        raise RefusedError(f"{workspace.output}: not a folder", hint="name another with -o")
    refuse_links(workspace.output)
    _refuse_foreign(workspace)
    if workspace.manifest.exists():
        _finished(plan, workspace)
    elif workspace.plan.exists():
        _compare_bound(plan, workspace)


def _refuse_foreign(workspace: Workspace) -> None:
    """A folder with files must hold a manifest of ours, or a job of ours."""
    if workspace.manifest.exists():
        try:
            Manifest.load(workspace.manifest)
        except VerificationError as error:
            raise RefusedError(
                error.message, hint="give another folder with -o; nothing here is touched"
            ) from None
        return
    if workspace.work.exists():
        return
    foreign = workspace.foreign_files()
    if foreign:
        shown = ", ".join(foreign[:5]) + (" ..." if len(foreign) > 5 else "")
        raise RefusedError(
            f"{workspace.output}: has files that are not ours ({shown})",
            hint="give a new or empty folder with -o",
        )


def _refuse_ours(workspace: Workspace) -> None:
    """Of files that `prepare` made there is nothing to import, and to begin anew is to remove
    them: that is never what `import` is asked for."""
    for path in (workspace.manifest, workspace.removing, workspace.plan):
        if not path.exists():
            continue
        try:
            old = msgspec.json.decode(read_file(path), type=_Planned).plan
        except UNREADABLE as error:
            raise RefusedError(
                f"{path}: damaged: {error}", hint="look into the folder, and remove it by hand"
            ) from None
        if IMPORTED not in old:
            raise RefusedError(
                f"{workspace.output}: its files are tokenmill's own, and need no import",
                hint="verify, inspect and export work on a finished dataset as it is"
                if path == workspace.manifest
                else "the command that began it completes it",
            )


def _remove_old(plan: Plan, workspace: Workspace) -> None:
    """Remove a dataset or an unfinished job of ours, and nothing else. Survives a crash."""
    if workspace.manifest.exists():
        _refuse_imported(plan, Manifest.load(workspace.manifest), workspace)
        workspace.begin_removal()
    names: list[str] = []
    if workspace.removing.exists():
        old = Manifest.load(workspace.removing)
        theirs = ("tokens", "sidecar") if IMPORTED in old.plan else ()
        names += [entry.path for entry in old.files if entry.kind not in theirs]
    if workspace.commit.exists():
        names += published(workspace, read_commit(workspace))
    workspace.finish_removal([*names, "run.json"] if names else [])
    workspace.clear_work()


def _refuse_imported(plan: Plan, old: Manifest, workspace: Workspace) -> None:
    if IMPORTED in old.plan and IMPORTED not in plan.to_dict():
        raise RefusedError(
            f"{workspace.output}: its token files were imported, and are not ours to remove",
            hint="give another folder with -o, or remove them by hand",
        )


def _finished(plan: Plan, workspace: Workspace) -> Manifest:
    manifest = Manifest.load(workspace.manifest)
    _refuse_difference(manifest.plan, plan, workspace, "holds a dataset made with another plan")
    _refuse_touched(plan, workspace)
    return manifest


def _refuse_touched(plan: Plan, workspace: Workspace) -> None:
    """Of a large file only samples are compared: one written to since may have changed."""
    times = _times_when_read(workspace)
    for source in plan.sources:
        then = times.get(source.name, source.mtime_ns)
        if source.fingerprint.startswith("xxh3-sampled") and then != source.mtime_ns:
            raise RefusedError(
                f"{source.name}: was written to after {workspace.output} was made from it",
                hint="if its content is the same, give it its old time; else use --overwrite",
            )


def _times_when_read(workspace: Workspace) -> dict[str, int]:
    """Modification times of the inputs as the job found them, where a record of them is left."""
    try:
        if workspace.plan.exists():  # a crash while the dataset got its names
            return msgspec.json.decode(read_file(workspace.plan), type=Bound).mtimes
        record = workspace.run_record
        made_from = msgspec.json.decode(read_file(record))["sources"] if record.is_file() else {}
        return {name: entry["mtime_ns"] for name, entry in made_from.items()}
    except (OSError, *UNREADABLE, KeyError, TypeError, ValueError, AttributeError):
        return {}  # it is not part of the data: damaged or gone, it is no reason to stop


def _refuse_difference(old: dict[str, Any], plan: Plan, workspace: Workspace, what: str) -> None:
    new = plan.to_dict()
    if old != new:
        try:
            lines = difference(old, new) or ["(the records differ)"]
        except (KeyError, TypeError, AttributeError):
            lines = ["(the record of the old plan is damaged)"]
        raise RefusedError(
            f"{workspace.output}: {what}:",
            lines=lines,
            hint="use the same settings to resume, another -o, or --overwrite to start anew",
        )


def _bind(plan: Plan, workspace: Workspace) -> dict[str, int]:
    """Create plan.json, or compare with the one there; returns its modification times."""
    mtimes = {source.name: source.mtime_ns for source in plan.sources}
    if not workspace.plan.exists():
        workspace.clear_work()  # what a crash left of a removal belongs to another plan
        content = Bound(plan.to_dict(), mtimes)
        create_exclusively(workspace.plan, msgspec.json.encode(content))
        return mtimes
    return _compare_bound(plan, workspace)


def _compare_bound(plan: Plan, workspace: Workspace) -> dict[str, int]:
    try:
        stored = msgspec.json.decode(read_file(workspace.plan), type=Bound)
    except UNREADABLE as error:
        raise RefusedError(
            f"{workspace.plan}: damaged: {error}", hint="use --overwrite to start anew"
        ) from None
    _refuse_difference(stored.plan, plan, workspace, "is bound to another plan")
    return stored.mtimes


def _recover(
    plan: Plan,
    run: RunSettings,
    workspace: Workspace,
    mtimes: dict[str, int],
    check_interrupt: Callable[[], None],
) -> tuple[Books, list[UnitRecord], Aside]:
    """The units that are durable and intact. Of a file touched since, each is done again and
    must come out the same: size and sampled content agree, but only that is proof."""
    records, length = read_journal(workspace.journal, plan.fingerprint)
    latest = {record.unit: record for record in records}
    touched = {s.number for s in plan.sources if mtimes.get(s.name) != s.mtime_ns}
    expected = {unit: record for unit, record in latest.items() if unit.source in touched}
    candidates = [record for unit, record in latest.items() if unit not in expected]

    def is_intact(record: UnitRecord) -> bool:
        check_interrupt()  # there may be a terabyte of them
        return check_pieces(workspace, record.pieces)

    with ThreadPoolExecutor(max_workers=4) as pool:
        intact = list(pool.map(is_intact, candidates))
    durable = [record for record, ok in zip(candidates, intact, strict=True) if ok]
    aside: Aside = {}
    kept = {record.unit for record in durable}
    for record in (record for unit, record in latest.items() if unit not in kept):
        rows = aside.setdefault((record.unit.source, record.unit.segment), {})
        rows.update({one.segment_row: one.reason for one in record.set_aside})
    return Books(plan, run, workspace, durable, length, expected), durable, aside
