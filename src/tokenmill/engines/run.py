"""One run of a plan, as every engine sees it: segments to encode, and units as they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.supply import Downloads
from tokenmill.engines.unit import WorkerJob
from tokenmill.inputs.kinds import segments_of
from tokenmill.inputs.segments import Segment
from tokenmill.output.journal import UnitRecord
from tokenmill.output.recovery import JobState
from tokenmill.planning.make import Proposal
from tokenmill.planning.plan import Plan


class EncodingRun:
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
        encoding, output = prepared.encoding, prepared.output
        self.job = WorkerJob(self.plan.settings, self.settings, prepared.budget, encoding, output)
        self.books = opened.books
        self.supply, self.check_interrupt = supply, check_interrupt
        self.log = EventLog(observer, self.plan.input_bytes)
        self.snapshot = self.log.snapshot
        self.seconds_starting = 0.0  # until the first worker had its encoder open
        self.dispatch = Dispatch(
            self.plan.settings,
            self.settings,
            _segments_in_order(self.plan, opened, supply),
            opened.durable,
            self.books,
            on_event=self.log.add,
        )

    def keep_up(self) -> None:
        """Called several times a second: end on a signal, make durable what was written."""
        self.check_interrupt()
        self.books.sync_if_due()

    def report(self) -> None:
        self.supply.report(self.log)


def _segments_in_order(
    plan: Plan, opened: JobState, supply: Downloads
) -> Iterator[SegmentProgress | None]:
    """The segments of a plan in document order, with what an earlier run has done of each.

    A source is cut when its turn comes. None: its file is still being downloaded, ask again.
    """
    durable: dict[tuple[int, int], list[UnitRecord]] = {}
    for record in opened.durable:
        durable.setdefault((record.unit.source, record.unit.segment), []).append(record)
    given: deque[SegmentProgress] = deque()
    for planned in plan.sources:
        source = planned
        if plan.settings.limited and planned.remote is not None:
            # A trial may end with the files that are here: download another only when it has not.
            while _drop_complete(given):
                yield None
        segments: Iterable[Segment] | None = supply.cut_before(planned)
        if segments is None:
            while (here := supply.here(planned)) is None:
                yield None
            source, segments = here, segments_of(here, plan.settings.reading)
            if planned.remote is not None:
                segments = supply.note_cut(planned, list(segments))
        for segment in segments:
            progress = SegmentProgress(segment, source)
            progress.aside.update(opened.aside.get(progress.key, {}))
            for record in durable.pop(progress.key, ()):
                progress.note_written(record)
            if plan.settings.limited:
                _drop_complete(given)
                given.append(progress)
            yield progress


def _drop_complete(segments: deque[SegmentProgress]) -> bool:
    """Drop the first segments as far as they are complete; True if one is not."""
    while segments and segments[0].complete:
        segments.popleft()
    return bool(segments)
