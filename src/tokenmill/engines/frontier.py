"""Which unit may be placed next, and where: the prefix sums of the run. No I/O.

Units are encoded in any order and placed in document order. The frontier walks that order: it
passes units that are durable from an earlier run, gives a place to the next one that is encoded,
and waits at the first that is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from tokenmill.engines.encoded import UnitSummary
from tokenmill.engines.hunt import Deaths, Hunt
from tokenmill.errors import TokenmillError
from tokenmill.manifest import State, UnitRecord
from tokenmill.pack import CutRule, NeedStarts, StreamState
from tokenmill.plan import Segment, UnitId
from tokenmill.sources import Source


class SegmentJob:
    """A segment and how far its units have come."""

    def __init__(self, segment: Segment, source: Source) -> None:
        self.segment, self.source = segment, source
        self.written: set[int] = set()
        self.last: int | None = None
        self.deaths: dict[int, Deaths] = {}  # by part
        self.failure: TokenmillError | None = None  # raised when the work gets there
        self.hunt: Hunt | None = None
        self.aside: dict[int, str] = {}  # rows that end their worker, and how
        self.found: dict[int, int] = {}  # how many of them, by part

    @property
    def key(self) -> tuple[int, int]:
        return self.segment.source, self.segment.number

    @property
    def complete(self) -> bool:
        return self.last is not None and len(self.written) == self.last + 1

    def note_written(self, unit: UnitId, last: bool) -> None:
        self.written.add(unit.part)
        if last:
            self.last = unit.part


class Frontier:
    def __init__(
        self,
        rules: list[CutRule],
        durable: dict[UnitId, UnitRecord],
        limit_docs: int = 0,
        limit_tokens: int = 0,
    ) -> None:
        self.rules = rules
        self.limit_docs, self.limit_tokens = limit_docs, limit_tokens
        self.limit_reached = False
        self.durable = durable
        self.state = State(streams=tuple(StreamState() for _ in rules))
        self._order: deque[SegmentJob] = deque()
        self._part = 0
        self._segment_rows = 0  # of the source, before the segment at the frontier
        self._encoded: dict[UnitId, UnitSummary] = {}
        self._placed: dict[UnitId, tuple[UnitSummary, State]] = {}
        self._asked: UnitId | None = None

    def add_segment(self, job: SegmentJob) -> None:
        """Segments come in document order, each before any of its units."""
        if not self.limit_reached:
            self._order.append(job)

    @property
    def idle(self) -> bool:
        return not self._order

    def encoded(self, summary: UnitSummary) -> tuple[UnitId, State] | None:
        """A unit has been encoded. If it had its place already (its worker died), here it is."""
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

    def lost(self, unit: UnitId) -> None:
        """The worker that held this encoded unit is gone."""
        self._encoded.pop(unit, None)

    def written(self, record: UnitRecord) -> None:
        self._placed.pop(record.unit, None)
        if record.unit == self._asked:
            self._asked = None
            self._step(record.after, record.last)

    def ready(self) -> Iterator[tuple[UnitId, State]]:
        """Units that may be written now, with the state that says where."""
        while self._order and self._asked is None:
            segment = self._order[0].segment
            unit = UnitId(segment.source, segment.number, self._part)
            before = self.state.entering(unit)
            if unit.part == 0:
                self._segment_rows = before.rows
            record = self.durable.pop(unit, None)
            if record is not None:
                if record.before != before:
                    raise TokenmillError(
                        f"the journal does not fit together at unit {unit}",
                        hint="run again with --overwrite to start anew",
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
                    hint="run again with --overwrite to start anew",
                )
            self._placed[unit] = (summary, before)
            after = self._after(summary, before)
            if after is None:
                self._asked = unit  # only its worker can tell: wait for the record
            else:
                self._step(after, summary.last)
            yield unit, before

    def _step(self, after: State, last: bool) -> None:
        self.state = after
        self._part += 1
        if last:
            self._order.popleft()
            self._part = 0
        if self._reaches_limit(after):
            self.limit_reached = True
            self._order.clear()
            self._encoded.clear()

    def _reaches_limit(self, state: State) -> bool:
        if any(stream.open for stream in state.streams):
            return False  # the document under way is still in
        documents = sum(stream.documents for stream in state.streams)
        tokens = sum(stream.tokens for stream in state.streams)
        return (0 < self.limit_docs <= documents) or (0 < self.limit_tokens <= tokens)

    def _near_limit(self, summary: UnitSummary, before: State) -> bool:
        """Whether a limit may fall into this unit: then only its worker can tell where."""
        documents = sum(s.documents for s in before.streams) + summary.counts.documents
        tokens = sum(s.tokens for s in before.streams) + summary.counts.tokens
        return (0 < self.limit_docs <= documents) or (0 < self.limit_tokens <= tokens)

    @property
    def done(self) -> bool:
        """A limit of the plan is reached, and all before it is written."""
        return self.limit_reached and not self._placed

    @property
    def failure(self) -> TokenmillError | None:
        """Why the unit that everything waits for will not come."""
        if not self._order or self._asked is not None:
            return None
        job = self._order[0]
        unit = UnitId(job.segment.source, job.segment.number, self._part)
        return job.failure if unit not in self._encoded and unit not in self._placed else None

    def _after(self, summary: UnitSummary, before: State) -> State | None:
        """The state behind a unit, from its counts alone; None where they do not suffice."""
        if summary.counts.quarantined or self._near_limit(summary, before):
            return None
        try:
            streams = [
                rule.lay_out(state, counts, starts=None)[1]
                for rule, state, counts in zip(
                    self.rules, before.streams, summary.streams, strict=True
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
