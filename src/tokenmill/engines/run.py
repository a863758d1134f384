"""One run of a plan, as every engine sees it: segments to encode, and units as they are written."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from tokenmill.engines import events
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress, by_segment
from tokenmill.engines.messages import FileMade
from tokenmill.engines.observer import EventLog, Observer, Snapshot
from tokenmill.engines.order.order_worker import OrderJob, OrderWorker
from tokenmill.engines.order.skipping import first_pass
from tokenmill.engines.placing.place_worker import PlaceJob, PlaceWorker
from tokenmill.engines.supply import Downloads
from tokenmill.engines.unit import UnitWorker, WorkerJob
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.output.durability import UnitLog
from tokenmill.output.file_maker import FileMaker, FileTask
from tokenmill.output.file_tasks import FileJob, FileWorker, effort_of, weight_of
from tokenmill.output.journal import UnitRecord
from tokenmill.output.recovery import JobState
from tokenmill.planning.leases import Lease, segments_in
from tokenmill.planning.make import Proposal
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings
from tokenmill.system.memory import Budget
from tokenmill.system.spill import spill_name

Job = WorkerJob | FileJob | OrderJob | PlaceJob


class Run(abc.ABC):
    """What an engine works on: tasks to hand out, and what a worker must know to do them."""

    job: Job
    settings: RunSettings
    dispatch: Dispatch
    log: EventLog
    check_interrupt: Callable[[], None]
    seconds_starting = 0.0  # until the first worker was ready

    @property
    def snapshot(self) -> Snapshot:
        return self.log.snapshot

    @abc.abstractmethod
    def open_worker(self) -> UnitWorker | OrderWorker | PlaceWorker | FileWorker:
        """A worker in this process."""

    def keep_up(self) -> None:
        """Called several times a second: end on a signal, make durable what was written."""
        self.check_interrupt()

    @abc.abstractmethod
    def report(self) -> None:
        """Called several times a second: how far it is."""

    def forget_spilled(self, unit: UnitId, pid: int) -> None:
        """The worker that held this unit is gone."""
        return

    def sync_failed(self, error: BaseException) -> None:
        """In a worker, of units that it wrote."""
        raise error


class _NoUnits:
    """The books of a run that encodes nothing."""

    def written(self, record: UnitRecord, *, here: bool) -> None: ...

    def synced(self, units: list[UnitId]) -> None: ...

    def orphaned(self, units: list[UnitId]) -> None: ...

    def lost(self, units: list[UnitId]) -> None: ...


class FilesRun(Run):
    """Files made of tokens that are there already: other formats, or another dataset."""

    job: FileJob

    def __init__(
        self,
        job: FileJob,
        files: list[FileTask],
        settings: RunSettings,
        log: EventLog,
        maker: FileMaker,
    ) -> None:
        workers = min(settings.workers, len(files))
        self.job, self.settings = job, msgspec.structs.replace(settings, workers=workers)
        self.log, self.check_interrupt = log, maker.check_interrupt
        self._maker, self._done_bytes = maker, 0
        # The longest first, or one worker would be at work on it while the others have none.
        files = sorted(files, key=lambda file: effort_of(job.settings, file), reverse=True)
        self.dispatch = Dispatch(
            job.settings,
            self.settings,
            (),
            (),
            _NoUnits(),
            files=files,
            on_made=self._made,
            on_event=log.add,
        )

    def open_worker(self) -> FileWorker:
        maker = self._maker
        return FileWorker(self.job, maker.source, maker.workspace.open_files())

    def _made(self, file: FileTask, message: FileMade) -> None:
        self._done_bytes += weight_of(self.job.settings, file)
        self._maker.note(file, message.pieces, message.info)

    def report(self) -> None:
        under_way = sum(state.made_bytes for state in self.dispatch.workers.values())
        self.log.progress(events.Making(self._done_bytes + under_way))
        self.log.tick()


class UnitsRun(Run):
    """Units that are written to their places, and become durable."""

    books: UnitLog

    def keep_up(self) -> None:
        super().keep_up()
        self.books.sync_if_due()

    def forget_spilled(self, unit: UnitId, pid: int) -> None:
        self.books.workspace.spill.forget(spill_name(unit, pid))

    def sync_failed(self, error: BaseException) -> None:
        self.books.worker_failed_to_sync(error)


class PlanRun(UnitsRun):
    """Units that are the documents of a plan."""

    plan: Plan
    budget: Budget


class EncodingRun(PlanRun):
    job: WorkerJob

    def __init__(
        self,
        prepared: Proposal,
        opened: JobState,
        supply: Downloads,
        observer: Observer,
        check_interrupt: Callable[[], None],
    ) -> None:
        assert opened.books is not None
        self.prepared, self.plan, self.settings = prepared, prepared.plan, prepared.run
        self.budget = prepared.budget
        encoding, output = prepared.encoding, opened.books.workspace.address
        settings = self.plan.settings
        # A shuffled job encodes everything; its limits are those of the second half.
        settings = settings.unlimited if settings.by_key else settings
        skipping = first_pass(self.plan, opened.bounds[0] if opened.bounds else {})
        self.job = WorkerJob(
            settings, self.settings, prepared.budget, encoding, output, prepared.reuse, skipping,
            opened.relative,
        )  # fmt: skip
        self.books = opened.books
        self.supply, self.check_interrupt = supply, check_interrupt
        self.log = EventLog(observer, _bytes_to_read(self.plan, opened))
        self.dispatch = Dispatch(
            settings,
            self.settings,
            _segments_in_order(self.plan, opened, supply),
            opened.durable,
            self.books,
            rules=[] if settings.by_key else None,
            on_event=self.log.add,
            ordered=not opened.relative,
        )

    def open_worker(self) -> UnitWorker:
        return UnitWorker(self.job, files=self.books.workspace.open_files())

    def report(self) -> None:
        self.supply.report(self.log)


def _segments_in_order(
    plan: Plan, opened: JobState, supply: Downloads
) -> Iterator[SegmentProgress | None]:
    """The segments of a plan in document order, with what an earlier run has done of each.

    A source is cut when its turn comes; on a cluster some ahead. None: its file is still being
    downloaded, or a node has not cut it yet: ask again.
    """
    durable = by_segment(opened.durable)
    given: deque[SegmentProgress] = deque()
    wanted = None if opened.leases is None else _by_source(opened.leases)
    here = [one for one in plan.sources if one.remote is None]
    here = [one for one in here if wanted is None or one.number in wanted]
    cuts = supply.access.cuts(here, plan.settings.reading, few=plan.settings.reads_part)
    for planned in plan.sources:
        source = planned
        if wanted is not None and planned.number not in wanted:
            continue
        if plan.settings.reads_part and planned.remote is not None:
            # A trial may end with the files that are here: download another only when it has not.
            while _drop_complete(given):
                yield None
        segments: Iterable[Segment] | None = supply.cut_before(planned)
        if segments is None:
            while (found := supply.here(planned)) is None:
                yield None
            source = found
            while (segments := cuts.of(source)) is None:
                yield None
            if planned.remote is not None or opened.relative:
                segments = supply.note_cut(planned, list(segments))
        if wanted is not None:
            whole = list(segments)
            segments = [
                one for lease in wanted[planned.number] for one in segments_in(lease, whole)
            ]
        for segment in segments:
            progress = SegmentProgress(segment, source)
            progress.aside.update(opened.aside.get(progress.key, {}))
            for record in durable.pop(progress.key, ()):
                progress.note_written(record)
            if plan.settings.reads_part:
                _drop_complete(given)
                given.append(progress)
            yield progress


def _by_source(leases: Iterable[Lease]) -> dict[int, list[Lease]]:
    found: dict[int, list[Lease]] = {}
    for lease in leases:
        for source in range(lease.first, lease.stop):
            found.setdefault(source, []).append(lease)
    return found


def _bytes_to_read(plan: Plan, opened: JobState) -> int:
    if opened.leases is None:
        return plan.input_bytes
    return sum(
        source.size // lease.of
        for lease in opened.leases
        for source in plan.sources[lease.first : lease.stop]
    )


def _drop_complete(segments: deque[SegmentProgress]) -> bool:
    """Drop the first segments as far as they are complete; True if one is not."""
    while segments and segments[0].complete:
        segments.popleft()
    return bool(segments)
