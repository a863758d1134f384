"""The second half of a shuffled job, as engines see it: runs to merge, ranges to collect.

Ranges are units of a source of their own, behind the plan's: the frontier gives them their places,
the journal makes them durable, and a resumed job goes on behind the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from tokenmill.engines import events
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.hunt import DeathCount
from tokenmill.engines.order.choosing import ChosenDocuments, parts_of
from tokenmill.engines.order.order_worker import OrderJob, OrderWorker
from tokenmill.engines.order.sorted_run import run_name
from tokenmill.engines.run import EncodingRun, UnitsRun
from tokenmill.errors import WorkerError
from tokenmill.formats.base import itemsize
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.durability import UnitTable
from tokenmill.output.journal import UnitRecord
from tokenmill.tokens.counts import Counts
from tokenmill.tokens.order import group_bounds, order_rule, range_count
from tokenmill.tokens.placement import CutRule

MERGE_BYTES = 128 << 20  # of runs that are merged into one, in memory


class _OrderProgress(SegmentProgress):
    """A range of keys, or a group of runs to merge."""

    def unit_error(self, part: int, how: str, deaths: DeathCount) -> WorkerError:
        return WorkerError(
            f"{deaths.total} workers died on {self.source.name}, {self.segment.number}.{part}: the "
            f"last one {how}",
            hint="everything else done so far is kept; the same command resumes. More memory "
            "(--memory) or fewer --workers may help",
        )


class OrderRun(UnitsRun):
    job: OrderJob

    def __init__(
        self,
        encoding: EncodingRun,
        job: OrderJob,
        segments: list[Segment],
        what: str,
        durable: Iterable[UnitRecord],
        rules: list[CutRule],
    ) -> None:
        """`rules`: none where units do not write to the streams."""
        self.job, self.settings, self.log = job, encoding.settings, encoding.log
        self.books, self.check_interrupt = encoding.books, encoding.check_interrupt
        self._sizes = {(one.source, one.number): one.size for one in segments}
        self._done_bytes = 0
        durable = list(durable)
        self.log.add(events.FilesBegun(len(segments), sum(self._sizes.values())))
        self.dispatch = Dispatch(
            job.settings,
            self.settings,
            _in_order(segments, what, durable),
            durable,
            self.books,
            rules=rules,
            on_event=self._on_event,
        )

    def open_worker(self) -> OrderWorker:
        return OrderWorker(self.job)

    def _on_event(self, event: events.Event) -> None:
        """Documents are counted once, where they are encoded."""
        match event:
            case events.UnitDone(unit=unit, input_bytes=size) if size:
                self._note_done(unit, size)
            case events.Resumed(input_bytes=size):
                self._note_done("", size)
            case events.UnitDone() | events.UnitLost():
                pass
            case _:
                self.log.add(event)

    def _note_done(self, unit: str, size: int) -> None:
        self._done_bytes += size
        self.log.add(events.FileMade(unit, size))

    def report(self) -> None:
        self.log.progress(events.Making(self._done_bytes))
        self.log.tick()


def _in_order(
    segments: list[Segment], what: str, durable: list[UnitRecord]
) -> Iterator[SegmentProgress]:
    written: dict[tuple[int, int], list[UnitRecord]] = {}
    for record in durable:
        written.setdefault((record.unit.source, record.unit.segment), []).append(record)
    source = Source(number=segments[0].source, name=what, kind="", size=0, fingerprint="")
    for segment in segments:
        progress = _OrderProgress(segment, source)
        for record in written.pop(progress.key, ()):
            progress.note_written(record)
        yield progress


def order_documents(
    encoding: EncodingRun,
    ledger: UnitTable,
    ordered: list[UnitRecord],
    work: Callable[[OrderRun], None],
    chosen: ChosenDocuments | None = None,
) -> OrderRun:
    """Collect the documents of all units in the order of their keys, with `work`; returns the run
    whose frontier has the streams.

    `ledger`: has all units. `ordered`: what an earlier run has done of this half. `chosen`: what
    a mixture takes of each source.
    """
    half = _SecondHalf(encoding, ledger, ordered, work)
    runs, by_source = ledger.all_units(), ledger.by_source
    if chosen is not None:
        runs, by_source = half.take(runs, chosen), chosen.by_source
    return half.collect(half.merge(runs), by_source)


class _SecondHalf:
    """The steps of the second half, one after the other. Their units are of sources behind the
    plan's."""

    def __init__(
        self,
        encoding: EncodingRun,
        ledger: UnitTable,
        ordered: list[UnitRecord],
        work: Callable[[OrderRun], None],
    ) -> None:
        self.encoding, self.ledger, self.ordered, self.work = encoding, ledger, ordered, work
        self.settings = encoding.plan.settings
        _, self.range_bytes, self.most = order_rule()
        behind = len(encoding.plan.sources)
        self.ranges, self.merges, self.takes = behind, behind + 1, behind + 2

    def _job(self, runs: Iterable[UnitId], count: int) -> OrderJob:
        prepared = self.encoding.prepared
        return OrderJob(
            self.settings,
            self.encoding.settings,
            prepared.budget,
            prepared.output,
            tuple(runs),
            count,
            self.range_bytes,
        )

    def _run(
        self, job: OrderJob, segments: list[Segment], what: str, rules: list[CutRule]
    ) -> OrderRun:
        source = segments[0].source
        durable = [record for record in self.ordered if record.unit.source == source]
        run = OrderRun(self.encoding, job, segments, what, durable, rules)
        self.work(run)
        return run

    def take(self, runs: list[UnitId], chosen: ChosenDocuments) -> list[UnitId]:
        """The runs of the documents that a mixture takes: units as they are where all of their
        documents are taken, and a run for each further copy or selection."""
        parts, sizes = parts_of(runs, chosen), self.ledger.sizes()
        segments = [
            Segment(self.takes, number, number, number + 1, sizes[run_name(runs[unit])])
            for number, (unit, _) in enumerate(parts)
        ]
        job = msgspec.structs.replace(
            self._job(runs, 0),
            parts=tuple(parts),
            choices=chosen.choices,
            group_of=chosen.group_of,
        )
        if segments:
            self._run(job, segments, "the documents of a mixture", [])
        whole = [unit for unit in runs if chosen.choice_for(unit).whole]
        return whole + [UnitId(self.takes, number, 0) for number in range(len(parts))]

    def merge(self, runs: list[UnitId]) -> list[UnitId]:
        """Longer runs, where a range would take only a few bytes of each."""
        if len(runs) <= self.most:
            return runs
        by_name = self.ledger.sizes()
        sizes = [by_name[run_name(unit)] for unit in runs]
        groups = group_bounds(sizes, self.most, MERGE_BYTES)
        segments = [
            Segment(self.merges, number, first, stop, sum(sizes[first:stop]))
            for number, (first, stop) in enumerate(groups)
            if stop - first > 1
        ]
        if segments:
            self._run(self._job(runs, 0), segments, "units to merge", [])
        return [
            UnitId(self.merges, number, 0) if stop - first > 1 else runs[first]
            for number, (first, stop) in enumerate(groups)
        ]

    def collect(self, runs: list[UnitId], by_source: list[Counts]) -> OrderRun:
        """Ranges of keys to their places."""
        token_bytes = sum(one.tokens for one in by_source) * itemsize(self.settings.first)
        documents = sum(one.documents + one.copies for one in by_source)
        count = range_count(token_bytes, documents, self.range_bytes)
        segments = [
            Segment(self.ranges, number, number, number + 1, max(1, token_bytes // count))
            for number in range(count)
        ]
        rules = CutRule.all_of(self.settings, self.settings.first)
        return self._run(self._job(runs, count), segments, "the range of keys", rules)
