"""Which unit may be placed next, and where: the prefix sums of the run. No I/O.

Units are encoded in any order and placed in document order. The frontier walks that order. It
passes units that are durable from an earlier run, gives a place to the next unit that is encoded,
and waits at the first one that is not.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tokenmill.engines.hunt import MAX_ASIDE, DeathCount, FatalRowSearch
from tokenmill.engines.messages import EncodeTask, Task, TryRows, UnitSummary
from tokenmill.errors import TokenmillError, WorkerError
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.journal import UnitRecord
from tokenmill.output.objects.record_table import RecordRows, RecordTable
from tokenmill.settings import PlanSettings
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.placement import CutRule, NeedStarts, StreamState


class SegmentProgress:
    def __init__(self, segment: Segment, source: Source) -> None:
        self.segment, self.source = segment, source
        self.written: set[int] = set()
        self.last: int | None = None
        self.deaths: defaultdict[int, DeathCount] = defaultdict(DeathCount)  # by part
        self.failure: TokenmillError | None = None  # raised when the work gets there
        self.search: FatalRowSearch | None = None
        self.aside: dict[int, str] = {}  # rows that end their worker, and how

    @property
    def key(self) -> tuple[int, int]:
        return self.segment.source, self.segment.number

    @property
    def task(self) -> Task:
        """What a worker is to do for it next."""
        search = self.search
        work = EncodeTask(self.source, self.segment, sorted(self.written), self.aside)
        if search is None:
            return work
        return TryRows(work, search.part, *search.next_rows(), search.check)

    @property
    def complete(self) -> bool:
        return self.last is not None and len(self.written) == self.last + 1

    def note_written(self, record: UnitRecord) -> None:
        self.written.add(record.unit.part)
        if record.last:
            self.last = record.unit.part

    def unit_error(self, part: int, how: str, deaths: DeathCount) -> WorkerError:
        """Workers died on this unit, and no row is to blame."""
        segment, kind = self.segment, kind_named(self.source.kind)
        if deaths.fruitless is not None:
            first, stop = deaths.fruitless.batch
            numbered = kind.numbers_rows or not segment.start
            since = "" if numbered else f" from byte {segment.start} on"
            how = (
                f"{deaths.fruitless.how}, with rows {first} to {stop - 1}{since} under way. Each "
                "of these was then encoded alone, and none ended its worker: it may be their "
                "memory together"
            )
        return WorkerError(
            f"{self.source.name}: {deaths.total} workers died on unit {segment.number}.{part} "
            f"({kind.parts} {segment.start} to {segment.stop - 1}): the last one {how}",
            hint="everything else done so far is kept; the same command resumes. More memory "
            "(--memory), fewer --workers or --encoder reference may help",
        )

    def too_many_error(self, search: FatalRowSearch) -> WorkerError:
        return WorkerError(
            f"{self.source.name}: more than {MAX_ASIDE} rows of unit {self.segment.number}."
            f"{search.part} end their worker; of the last one: {search.found[max(search.found)]}",
            hint="rows are not the cause if so many do: try --encoder reference or more --memory",
        )

    def too_late_error(self, search: FatalRowSearch) -> WorkerError:
        row = min(search.found)
        return WorkerError(
            f"{self.source.name}: row {row} of segment {self.segment.number}: {search.found[row]}. "
            f"It did not when unit {self.segment.number}.{search.part} was encoded before, and "
            "units behind it have their places already",
            hint="everything done so far is kept; the same command resumes",
        )


class _SegmentsInTable:
    """Of millions of units, nothing is taken out: they are not in memory."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table

    def pop(self, key: tuple[int, int], otherwise: Sequence[UnitRecord]) -> Sequence[UnitRecord]:
        return self._table.of_segment(*key) or otherwise


def by_segment(
    records: Iterable[UnitRecord],
) -> dict[tuple[int, int], list[UnitRecord]] | _SegmentsInTable:
    """What was done of each segment, by source and number."""
    if isinstance(records, RecordRows):
        return _SegmentsInTable(records.table)
    found: dict[tuple[int, int], list[UnitRecord]] = {}
    for record in records:
        found.setdefault((record.unit.source, record.unit.segment), []).append(record)
    return found


class UnorderedUnits:
    """In place of a frontier where units are written before their places are known: nothing waits,
    and no unit depends on another."""

    limit_reached = done = False
    idle = True
    failure: TokenmillError | None = None
    state = State(streams=())

    def add_segment(self, segment: SegmentProgress) -> None: ...

    def encoded(self, summary: UnitSummary) -> tuple[UnitId, State] | None:
        raise NotImplementedError  # its worker does not ask for a place

    def has_place(self, unit: UnitId) -> bool:
        return False

    def lost(self, unit: UnitId) -> None: ...

    def written(self, record: UnitRecord, *, safe: bool = True) -> None: ...

    def safe(self, unit: UnitId) -> None: ...

    def unwritten(self, unit: UnitId) -> None: ...

    def ready(self) -> Iterator[tuple[UnitId, State]]:
        return iter(())


class Frontier:
    def __init__(
        self,
        settings: PlanSettings,
        durable: Iterable[UnitRecord],
        rules: Sequence[CutRule] | None = None,
    ) -> None:
        """`rules`: none where units do not write to the streams."""
        self.limit_reached = False
        self._settings = settings
        self._rules = CutRule.all_of(settings, settings.first) if rules is None else rules
        self.state = State(streams=tuple(StreamState() for _ in self._rules))
        self._order: deque[SegmentProgress] = deque()
        self._part = 0
        self._segment_rows = 0  # of the source, before the segment at the frontier
        # A unit is in one of these from when it is encoded until it is written.
        self._encoded: dict[UnitId, UnitSummary] = {}
        self._placed: dict[UnitId, tuple[UnitSummary, State]] = {}
        self._at_risk: dict[UnitId, tuple[UnitSummary, State]] = {}  # written, and may get lost
        self._table = durable.table if isinstance(durable, RecordRows) else None
        self._durable: dict[UnitId, UnitRecord] = {}
        if self._table is None:
            self._durable = {record.unit: record for record in durable}
        self._asked: UnitId | None = None  # only its record will say where the next unit goes

    def add_segment(self, segment: SegmentProgress) -> None:
        """Call in document order, for each segment before any of its units."""
        if not self.limit_reached:
            self._order.append(segment)

    @property
    def idle(self) -> bool:
        return not self._order

    def encoded(self, summary: UnitSummary) -> tuple[UnitId, State] | None:
        """A unit has been encoded. Returns its place if it had one already (its worker died)."""
        placed = self._placed.get(summary.unit)
        if placed is None:
            self._encoded[summary.unit] = summary
            return None
        if placed[0] != summary:
            raise TokenmillError(
                f"unit {summary.unit} came out differently the second time: {placed[0]} and "
                f"{summary}",
                hint="an input changed while it was being read, or this machine's memory is bad",
            )
        return summary.unit, placed[1]

    def has_place(self, unit: UnitId) -> bool:
        """Whether units behind it may have got their places: it must come out as it did."""
        return unit in self._placed

    def lost(self, unit: UnitId) -> None:
        """The worker that held this encoded unit is gone."""
        self._encoded.pop(unit, None)

    def written(self, record: UnitRecord, *, safe: bool = True) -> None:
        placed = self._placed.pop(record.unit, None)
        if placed is not None and not safe:
            self._at_risk[record.unit] = placed
        if record.unit == self._asked:
            self._asked = None
            self._step(record.after, record.last)

    def safe(self, unit: UnitId) -> None:
        """A written unit cannot get lost any more."""
        self._at_risk.pop(unit, None)

    def unwritten(self, unit: UnitId) -> None:
        """A written unit is lost. It keeps its place, and must come out as it did."""
        self._placed[unit] = self._at_risk.pop(unit)

    def ready(self) -> Iterator[tuple[UnitId, State]]:
        """Units that may be written now, with the state that says where."""
        while self._order and self._asked is None:
            unit = UnitId(*self._order[0].key, self._part)
            before = self.state.entering(unit)
            if unit.part == 0:
                self._segment_rows = before.rows
            record = self._was_durable(unit)
            if record is not None:
                if record.before != before:
                    raise TokenmillError(
                        f"the journal does not fit together at unit {unit}",
                        hint="run again with --overwrite to start over",
                    )
                self._step(record.after, record.last)
                continue
            summary = self._encoded.pop(unit, None)
            if summary is None:
                return
            if summary.rows_before != before.rows - self._segment_rows:
                raise TokenmillError(
                    f"unit {unit} does not begin where the one before it ends (row "
                    f"{self._segment_rows + summary.rows_before}, not {before.rows}): the source "
                    "was cut differently when the earlier units were made",
                    hint="run again with --overwrite to start over",
                )
            self._placed[unit] = (summary, before)
            after = self._after(summary, before)
            if after is None:
                self._asked = unit
            else:
                self._step(after, summary.last)
            yield unit, before

    def _was_durable(self, unit: UnitId) -> UnitRecord | None:
        return self._durable.pop(unit, None) if self._table is None else self._table.get(unit)

    def _step(self, after: State, last: bool) -> None:
        self.state = after
        self._part += 1
        if last:
            self._order.popleft()
            self._part = 0
        goes_on = any(stream.open for stream in after.streams)  # then its document belongs too
        if self._limit_within(after) and not goes_on:
            self.limit_reached = True
            self._order.clear()
            self._encoded.clear()

    def _limit_within(self, state: State, then: Counts | None = None) -> bool:
        """Whether a limit of the plan is within the tokens up to `state`, and `then` after it."""
        documents = sum(s.documents for s in state.streams) + (then.documents if then else 0)
        tokens = sum(s.tokens for s in state.streams) + (then.tokens if then else 0)
        settings = self._settings
        return 0 < settings.limit_docs <= documents or 0 < settings.limit_tokens <= tokens

    @property
    def done(self) -> bool:
        """A limit of the plan is reached, and all units before it are written."""
        return self.limit_reached and not self._placed

    @property
    def failure(self) -> TokenmillError | None:
        """Why the unit that everything waits for cannot be encoded."""
        if not self._order or self._asked is not None:
            return None
        segment = self._order[0]
        unit = UnitId(*segment.key, self._part)
        return segment.failure if unit not in self._encoded and unit not in self._placed else None

    def _after(self, summary: UnitSummary, before: State) -> State | None:
        """The state after a unit, from its counts; None if only its worker can say."""
        if summary.counts.quarantined or self._limit_within(before, summary.counts):
            return None
        try:
            streams = [
                rule.lay_out(state, counts, starts=None)[1]
                for rule, state, counts in zip(
                    self._rules, before.streams, summary.streams, strict=True
                )
            ]
        except NeedStarts:
            return None
        return msgspec.structs.replace(
            before,
            streams=tuple(streams),
            rows=before.rows + summary.counts.rows,
            lines=before.lines + summary.lines,
        )
