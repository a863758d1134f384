"""When a unit becomes durable: its files are synced by who wrote it, then the journal names it."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.errors import RefusedError, StorageError
from tokenmill.inputs.segments import UnitId
from tokenmill.inputs.source import Source
from tokenmill.output import durability
from tokenmill.output.durability import FileSync, UnitLog, WorkerSync
from tokenmill.output.journal import AsideRecord, PieceRecord, UnitRecord, read_journal
from tokenmill.output.workspace import JOURNAL, WORK, Workspace
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings
from tokenmill.tokens.counts import Counts, State

SOURCE = Source(
    number=0, name="a", path="a", kind="jsonl", size=1, fingerprint="xxh3:0", mtime_ns=0
)
NEVER = 1e9  # seconds, so that nothing is synced but what a test asks for


class Scene:
    """The books of a job, and the order of syncs and journal entries."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, workers: int = 2) -> None:
        self.workspace, self.steps = Workspace(folder), []
        self.workspace.create()
        settings = plan_settings(make_options({"val": "none"}), folder)
        self.plan = Plan(settings=settings, sources=[SOURCE])
        self.run = RunSettings(workers=workers, memory=0, sync_seconds=NEVER)
        self.books = UnitLog(self.plan, self.run, self.workspace, [], 0, {})
        synced = FileSync.sync

        def noted(this: FileSync, files: set[str]) -> None:
            self.steps.extend(sorted(files))
            synced(this, files)

        monkeypatch.setattr(FileSync, "sync", noted)

    def write(self, part: int, *, here: bool = True, aside: bool = False) -> UnitId:
        self.books.written(record(part, aside=aside), here=here)
        return UnitId(0, 0, part)

    def journal(self) -> list[int]:
        """The parts that the journal names, when the books had time for it."""
        self.books.sync_if_due()
        if self.books._syncing is not None:
            self.books._syncing.result()
        store = self.workspace.store
        records, _ = read_journal(store, f"{WORK}/{JOURNAL}", self.plan.fingerprint)
        return [one.unit.part for one in records]


def record(part: int, *, aside: bool = False) -> UnitRecord:
    state, rows = State(streams=()), ((AsideRecord(0, 0, "ended its worker"),) if aside else ())
    pieces = (PieceRecord(f"tokens-{part}", 0, 8, 1),)
    return UnitRecord(UnitId(0, 0, part), False, 0, Counts(), state, state, pieces, rows)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.books.close()


def test_a_unit_is_durable_when_its_worker_has_synced_it_and_not_before(scene: Scene) -> None:
    first, second = scene.write(1), scene.write(2)
    assert scene.journal() == []
    scene.books.synced([second])
    assert scene.journal() == [2]
    scene.books.synced([first, second])
    assert scene.journal() == [2, 1]
    assert scene.steps == [], "the engine has nothing to sync"


def test_the_engine_syncs_what_a_dead_worker_wrote_and_only_that(scene: Scene) -> None:
    orphan = scene.write(1)
    scene.write(2)
    scene.books.orphaned([orphan])
    assert scene.journal() == [1]
    assert scene.steps == ["tokens-1"]


def test_at_the_end_the_engine_syncs_what_is_left(scene: Scene) -> None:
    done = scene.write(1)
    scene.write(2)
    scene.books.synced([done])
    scene.books.sync_now()
    assert scene.journal() == [1, 2]
    assert scene.steps == ["tokens-2"]


def test_the_engine_never_syncs_for_another_host(scene: Scene) -> None:
    unit = scene.write(1, here=False)
    scene.books.sync_now()
    assert scene.journal() == []
    scene.books.synced([unit])
    assert scene.journal() == [1]
    assert scene.steps == []


def test_a_unit_that_was_lost_with_its_host_must_come_out_the_same(scene: Scene) -> None:
    units = [scene.write(1, here=False), scene.write(2, here=False)]
    scene.books.lost(units)
    assert scene.books.encoded_units == 0
    scene.write(1)
    scene.books.sync_now()
    assert scene.journal() == [1]
    with pytest.raises(RefusedError, match="is not what it was when it was first written"):
        scene.write(2, aside=True)


def test_nothing_is_durable_before_the_only_record_of_a_fatal_row(scene: Scene) -> None:
    """A resumed job would place later units as if that row had been no document."""
    scene.write(1)
    scene.write(2, aside=True)
    last = scene.write(3)
    scene.books.synced([last])
    assert scene.journal() == []
    scene.books.synced([UnitId(0, 0, 2)])
    assert scene.journal() == [2, 3]


def test_after_a_failed_sync_of_a_worker_nothing_becomes_durable(scene: Scene) -> None:
    unit = scene.write(1)
    scene.books.worker_failed_to_sync(StorageError("the disk is gone"))
    scene.books.synced([unit])
    with pytest.raises(StorageError, match="the disk is gone"):
        scene.books.sync_now()


# --- a worker's own syncs ------------------------------------------------------------------------


def test_a_worker_syncs_in_bulk_and_reports_after_it(scene: Scene) -> None:
    told: list[list[UnitId]] = []
    run = RunSettings(workers=1, memory=0, sync_seconds=0.0)
    sync = WorkerSync(scene.workspace, run, told.append, _never)
    sync.written(record(1))
    assert scene.steps == ["tokens-1"]
    assert told == [[UnitId(0, 0, 1)]]


def test_a_worker_syncs_when_enough_was_written(scene: Scene) -> None:
    told: queue.SimpleQueue[list[UnitId]] = queue.SimpleQueue()
    run = RunSettings(workers=1, memory=0, sync_seconds=NEVER / 1e3, sync_bytes=15)
    sync = WorkerSync(scene.workspace, run, told.put, _never)
    sync.written(record(1))
    sync.written(record(2))  # 16 bytes
    assert told.get(timeout=30) == [UnitId(0, 0, 1), UnitId(0, 0, 2)]


def test_a_sync_that_fails_is_reported_as_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(this: FileSync, files: set[str]) -> None:
        raise StorageError("no")

    monkeypatch.setattr(durability.FileSync, "sync", failing)
    failures: list[BaseException] = []
    told: list[list[UnitId]] = []
    run = RunSettings(workers=1, memory=0, sync_seconds=0.0)
    WorkerSync(scene.workspace, run, told.append, failures.append).written(record(1))
    assert [str(one) for one in failures] == ["no"]
    assert told == []


class ErrorsToldOnce:
    """Files as Linux has them: an error of writing is told once to everyone who had the file open
    when it came, and never to those who open it later."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def fail(self, name: str) -> None:
        self.errors[name] = self.errors.get(name, 0) + 1

    def watch(self, name: str) -> None:
        self.seen.setdefault(name, self.errors.get(name, 0))

    def sync(self, name: str) -> None:
        self.watch(name)
        before, self.seen[name] = self.seen[name], self.errors.get(name, 0)
        if before != self.seen[name]:
            raise StorageError(f"{name}: could not be synced")

    def sync_names(self, folder: str) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_error_that_a_killed_worker_could_not_tell_is_told_by_the_next_sync(
    scene: Scene,
) -> None:
    disk = ErrorsToldOnce()
    scene.books._file_sync._files = disk
    unit = scene.write(1)
    scene.books._syncer.submit(lambda: None).result()  # what was asked of it before is done
    disk.fail("tokens-1")  # the worker's own sync is told of it, and the worker is killed
    scene.books.orphaned([unit])
    with pytest.raises(StorageError, match="tokens-1: could not be synced"):
        scene.books.sync_now()
    assert scene.books.ledger.all_units() == []


def _never(error: BaseException) -> None:
    raise error


# --- scratch -------------------------------------------------------------------------------------


def test_every_output_has_a_folder_of_its_own_in_the_scratch_folder(tmp_path: Path) -> None:
    scratch = str(tmp_path / "scratch")
    first, second = (Workspace(tmp_path / name, scratch) for name in "ab")
    for workspace in (first, second):
        workspace.create()
        workspace.spill.clear()
        assert not (workspace.work / "spill").exists()
    assert first.spill.path != second.spill.path
    (first.spill.path / "left").write_text("by a killed run")
    first.spill.clear()
    assert list(first.spill.path.iterdir()) == []
    assert first.spill.path.stat().st_mode & 0o777 == 0o700
    first.remove_work()
    assert os.listdir(scratch) == [second.spill.path.name]


def test_a_folder_of_somebody_else_in_the_scratch_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path / "o", str(tmp_path))
    workspace.spill.clear()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RefusedError, match="not a folder of yours"):
        workspace.spill.clear()
