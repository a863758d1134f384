"""A run that gives places to units that are recorded already, as engines see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from tokenmill.engines import events
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress, by_segment
from tokenmill.engines.messages import PlaceUnits
from tokenmill.engines.observer import EventLog
from tokenmill.engines.placing.place_worker import PlaceJob, PlaceWorker
from tokenmill.engines.run import PlanRun
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.output.durability import UnitLog
from tokenmill.output.journal import UnitRecord
from tokenmill.output.objects.record_table import RecordTable
from tokenmill.planning.plan import Plan
from tokenmill.system.memory import Budget


class _RecordedSegment(SegmentProgress):
    """A segment whose units are all recorded."""

    def __init__(self, segment: Segment, source: Source, records: list[UnitRecord]) -> None:
        super().__init__(segment, source)
        self.records = records

    @property
    def task(self) -> PlaceUnits:
        return PlaceUnits(self.source, self.segment, sorted(self.written), {}, self.records)


class PlacingRun(PlanRun):
    job: PlaceJob

    def __init__(
        self,
        plan: Plan,
        budget: Budget,
        books: UnitLog,
        recorded: RecordTable,
        placed: Sequence[UnitRecord],
        log: EventLog,
        check_interrupt: Callable[[], None],
    ) -> None:
        """`recorded`: all units; `placed`: what an earlier run has placed."""
        self.plan, self.budget, self.books, self.log = plan, budget, books, log
        self.settings, self.check_interrupt = books.run, check_interrupt
        settings = plan.settings.unlimited if plan.settings.by_key else plan.settings
        self.job = PlaceJob(settings, self.settings, budget, books.workspace.address)
        self.dispatch = Dispatch(
            settings,
            self.settings,
            _in_order(plan, recorded, placed),
            placed,
            books,
            rules=[] if settings.by_key else None,
            on_event=self._on_event,
        )

    def open_worker(self) -> PlaceWorker:
        return PlaceWorker(self.job, self.books.workspace.open_files())

    def _on_event(self, event: events.Event) -> None:
        """Documents are counted once, where they are encoded."""
        match event:
            case events.UnitDone() | events.UnitLost() | events.Resumed() | events.Quarantine():
                pass
            case _:
                self.log.add(event)

    def report(self) -> None:
        self.log.tick()


def _in_order(
    plan: Plan, recorded: RecordTable, placed: Sequence[UnitRecord]
) -> Iterator[SegmentProgress]:
    written = by_segment(placed)
    for key, found in itertools.groupby(
        recorded.records(), key=lambda one: (one.unit.source, one.unit.segment)
    ):
        records = list(found)
        # Its size is told to nobody: documents and bytes were counted when it was encoded.
        progress = _RecordedSegment(Segment(*key, 0, 0, 0), plan.sources[key[0]], records)
        for record in written.pop(key, ()):
            progress.note_written(record)
        yield progress
