"""The second half of a shuffled job, as engines see it: runs to merge, ranges to collect.

Ranges are units of a source of their own, behind the plan's: the frontier gives them their places,
the journal makes them durable, and a resumed job goes on behind the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from tokenmill.engines import events
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress, by_segment
from tokenmill.engines.hunt import DeathCount
from tokenmill.engines.order.choosing import ChosenDocuments, parts_of
from tokenmill.engines.order.order_worker import OrderJob, OrderWorker
from tokenmill.engines.run import PlanRun, UnitsRun
from tokenmill.errors import WorkerError
from tokenmill.formats.base import itemsize
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.durability import UnitTable
from tokenmill.output.journal import UnitRecord
from tokenmill.tokens.counts import Counts
from tokenmill.tokens.order import group_bounds, order_rule, range_count, run_name
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
    resumed = 0  # ranges, and runs before them, that were durable already

    def __init__(
        self,
        encoding: PlanRun,
        job: OrderJob,
        segments: list[Segment],
        what: str,
        durable: Iterable[UnitRecord],
        rules: list[CutRule],
    ) -> None:
        """`rules`: none where units do not write to the streams."""
        self.job, self.settings, self.log = job, encoding.settings, encoding.log
        self.books, self.check_interrupt = encoding.books, encoding.check_interrupt
        self._done_bytes = 0
        durable = list(durable)
        self.log.add(events.FilesBegun(len(segments), sum(one.size for one in segments)))
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
        return OrderWorker(self.job, self.books.workspace.open_files())

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
    written = by_segment(durable)
    source = Source(number=segments[0].source, name=what, kind="", size=0, fingerprint="")
    for segment in segments:
        progress = _OrderProgress(segment, source)
        for record in written.pop(progress.key, ()):
            progress.note_written(record)
        yield progress


def order_documents(
    encoding: PlanRun,
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
    runs, by_source = [*ledger.all_units(), *sorted(ledger.further)], ledger.by_source
    numbers = len(by_source) if chosen is None else len(chosen.group_of)
    if chosen is not None:
        runs, by_source = half.take(runs, chosen), chosen.by_source
    in_turn = chosen is not None and not encoding.plan.settings.shuffle
    half.group_of = chosen.group_of if chosen is not None and in_turn else (0,) * numbers
    return half.collect(half.merge(runs), by_source)


class _SecondHalf:
    """The steps of the second half, one after the other. Their units are of sources behind the
    plan's."""

    def __init__(
        self,
        encoding: PlanRun,
        ledger: UnitTable,
        ordered: list[UnitRecord],
        work: Callable[[OrderRun], None],
    ) -> None:
        self.encoding, self.ledger, self.ordered, self.work = encoding, ledger, ordered, work
        self.settings = encoding.plan.settings
        _, self.range_bytes, self.most = order_rule()
        behind = len(encoding.plan.sources)
        self.ranges, self.merges, self.takes = behind, behind + 1, behind + 2
        # Groups of documents follow one another: one, or the sources of a mixture that is not
        # shuffled. Here: the group of each input file, and the unit that each further run is of.
        self.group_of: tuple[int, ...] = (0,) * behind
        self._made_of: dict[UnitId, UnitId] = {}
        self._resumed = 0

    def _group(self, run: UnitId) -> int:
        return self.group_of[self._made_of.get(run, run).source]

    def _job(self, runs: Sequence[UnitId], counts: tuple[int, ...] = ()) -> OrderJob:
        rows = tuple(map(self.ledger.rows_before, runs))
        return OrderJob(
            self.settings,
            self.encoding.settings,
            self.encoding.budget,
            self.encoding.books.workspace.address,
            tuple(runs),
            tuple(map(self.ledger.run_file, runs)),
            counts,
            self.range_bytes,
            rows_before=rows if any(rows) else (),
        )

    def _run(
        self, job: OrderJob, segments: list[Segment], what: str, rules: list[CutRule]
    ) -> OrderRun:
        source = segments[0].source
        durable = [record for record in self.ordered if record.unit.source == source]
        run = OrderRun(self.encoding, job, segments, what, durable, rules)
        self.work(run)
        self._resumed += len(durable)
        run.resumed = self._resumed
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
            self._job(runs),
            parts=tuple(parts),
            choices=chosen.choices,
            group_of=chosen.group_of,
        )
        if segments:
            self._run(job, segments, "the documents of a mixture", [])
        whole = [unit for unit in runs if chosen.choice_for(unit).whole]
        taken = {UnitId(self.takes, n, 0): runs[unit] for n, (unit, _) in enumerate(parts)}
        self._made_of |= taken
        return whole + list(taken)

    def merge(self, runs: list[UnitId]) -> list[UnitId]:
        """Longer runs, where a range would take only a few bytes of each. Runs of one group are
        neighbours."""
        runs = sorted(runs, key=self._group)
        by_name = self.ledger.sizes()
        sizes = [by_name[run_name(unit)] for unit in runs]
        groups: list[tuple[int, int]] = []
        for _, together in itertools.groupby(range(len(runs)), key=lambda n: self._group(runs[n])):
            mine = list(together)
            bounds = [(number, number + 1) for number in range(len(mine))]
            if len(mine) > self.most:
                bounds = group_bounds([sizes[n] for n in mine], self.most, MERGE_BYTES)
            groups += [(mine[0] + first, mine[0] + stop) for first, stop in bounds]
        segments = [
            Segment(self.merges, number, first, stop, sum(sizes[first:stop]))
            for number, (first, stop) in enumerate(groups)
            if stop - first > 1
        ]
        if segments:
            self._run(self._job(runs), segments, "units to merge", [])
        merged = {UnitId(self.merges, one.number, 0): runs[one.start] for one in segments}
        self._made_of |= {unit: self._made_of.get(first, first) for unit, first in merged.items()}
        return [
            UnitId(self.merges, number, 0) if stop - first > 1 else runs[first]
            for number, (first, stop) in enumerate(groups)
        ]

    def collect(self, runs: list[UnitId], by_source: list[Counts]) -> OrderRun:
        """Ranges of keys to their places, one group of documents behind the other."""
        token_bytes, documents = ([0] * (max(self.group_of, default=0) + 1) for _ in range(2))
        for group, counts in zip(self.group_of, by_source, strict=False):
            token_bytes[group] += counts.tokens * itemsize(self.settings.first)
            documents[group] += counts.documents + counts.copies
        of_groups = tuple(
            range_count(size, number, self.range_bytes)
            for size, number in zip(token_bytes, documents, strict=True)
        )
        sizes = [
            max(1, size // count)
            for size, count in zip(token_bytes, of_groups, strict=True)
            for _ in range(count)
        ]
        segments = [Segment(self.ranges, n, n, n + 1, size) for n, size in enumerate(sizes)]
        job = self._job(runs, of_groups)
        if len(of_groups) > 1:
            job = msgspec.structs.replace(job, run_groups=tuple(map(self._group, runs)))
        rules = CutRule.all_of(self.settings, self.settings.first)
        return self._run(job, segments, "the range of keys", rules)
