"""Who does what next. No process, no clock, no disk: an engine is a driver of this.

    a worker was started  ->  joined(worker)
    a message came        ->  received(worker, report)
    a worker ended        ->  died(worker, end)
                              orders(): messages to send, each with its worker  ->
                              finished

A worker has one task at a time. While it works, it is also told the places of units that it holds.
A report that arrives twice, or from a worker that is taken for dead, changes nothing. No step looks
at all workers, so a message costs the same with two workers and with a thousand.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tokenmill.engines import events, messages
from tokenmill.engines.events import Event
from tokenmill.engines.frontier import Frontier, SegmentProgress, UnorderedUnits
from tokenmill.engines.hunt import MAX_ASIDE, MAX_DEATHS, DeathCount, FatalRowSearch, WorkerEnd
from tokenmill.engines.making import FilesToMake
from tokenmill.engines.messages import Activity, Place, Task
from tokenmill.errors import WorkerError, from_wire
from tokenmill.inputs.segments import UnitId
from tokenmill.output.file_maker import FileTask
from tokenmill.output.journal import UnitRecord
from tokenmill.settings import PlanSettings, RunSettings
from tokenmill.tokens.counts import State
from tokenmill.tokens.placement import CutRule

# Few places at a time: with both pipes full, engine and worker would wait for each other for ever.
MAX_PLACING = 16
BLAMED = ("fault", "kill")  # ends of a worker that its row may have caused


class Books(Protocol):
    """What is told of units as they are written; `UnitLog` makes them durable."""

    def written(self, record: UnitRecord, *, here: bool) -> None:
        """`here`: by a worker on the engine's host."""
        ...

    def synced(self, units: list[UnitId]) -> None:
        """The worker that wrote these units has synced them."""
        ...

    def orphaned(self, units: list[UnitId]) -> None:
        """The worker that wrote these units died, on this host, before it had synced them."""
        ...

    def lost(self, units: list[UnitId]) -> None:
        """It died on another host: these units will be written again."""
        ...


class UnsyncedUnit(NamedTuple):
    segment: SegmentProgress
    record: UnitRecord


class WorkerState:
    """What is known of one worker."""

    def __init__(self, *, here: bool) -> None:
        self.here = here  # on the engine's host
        self.ready = False
        self.task: Task | None = None
        self.doing = Activity("read", 0)
        self.held: set[UnitId] = set()  # encoded and not yet written
        self.to_place: deque[Place] = deque()
        self.placing: deque[UnitId] = deque()  # sent and not yet written, in order
        self.made_bytes = 0  # of the file that it makes
        self.unsynced: dict[UnitId, UnsyncedUnit] = {}  # written
        self.stats: dict[str, int] = {}
        self.reports = 0

    @property
    def busy(self) -> bool:
        return self.task is not None or not self.ready or bool(self.placing)

    @property
    def searching(self) -> bool:
        return isinstance(self.task, messages.TryRows)


class Dispatch:
    def __init__(
        self,
        settings: PlanSettings,
        run: RunSettings,
        segments: Iterable[SegmentProgress | None],
        durable: Iterable[UnitRecord],
        books: Books,
        *,
        rules: Sequence[CutRule] | None = None,
        files: Iterable[FileTask] = (),
        on_made: Callable[[FileTask, messages.FileMade], None] = lambda *_: None,
        on_event: Callable[[Event], None] = lambda _: None,
        ordered: bool = True,
    ) -> None:
        """`segments`: in document order; None: there will be more, but not yet. `rules`: of the
        streams that units write to; None: the plan's. `files`: to be made of what is there already;
        in the order in which they are handed out. `ordered`: units wait for their places; else
        workers write each at once."""
        self.settings, self.run = settings, run
        self.frontier = Frontier(settings, durable, rules) if ordered else UnorderedUnits()
        self.workers: dict[int, WorkerState] = {}
        self.books, self._on_made, self._on_event = books, on_made, on_event
        self._files = FilesToMake(files)
        self._segments, self._exhausted = iter(segments), False
        self._begun: dict[tuple[int, int], SegmentProgress] = {}  # and not completely written
        self._again: list[tuple[int, int]] = []  # keys of segments that need a worker, a heap
        self._holders: dict[UnitId, int] = {}  # who has an encoded unit
        # Workers without a task; those that hold no unit have least to lose and come first.
        self._free: dict[int, None] = {}
        self._free_holding: dict[int, None] = {}
        self._to_tell: deque[int] = deque()  # workers with places to be sent
        self._at_risk = 0  # units that are gone if a worker on another host dies now
        self._failed_starts = DeathCount(max_faults=3, max_kills=10)
        self._past_stats: Counter[str] = Counter()  # of workers that are gone

    # --- what a driver asks ------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Nothing is left to do or to wait for."""
        if self._at_risk:
            return False
        frontier = self.frontier
        encoded = frontier.done or (self._exhausted and not self._begun and frontier.idle)
        return encoded and self._files.finished

    def orders(self) -> Iterator[tuple[int, messages.ToWorker]]:
        """All that can be handed out now: the worker, and what it is to be told."""
        while True:
            while self._to_tell:
                worker = self._to_tell.popleft()
                place = self._next_place(worker)
                if place is not None:
                    yield worker, place
            free = next(iter(self._free or self._free_holding), None)
            task = None if free is None else self.task_for(free)
            if free is not None and task is not None:
                yield free, task
            elif not self._to_tell:
                return

    def task_for(self, worker: int) -> messages.ToWorker | None:
        """The next order for one worker: the place of a unit it holds, or a task if it has none."""
        place, state = self._next_place(worker), self.workers.get(worker)
        if place is not None or state is None or not state.ready or state.task is not None:
            return place
        segment = self._next_segment()
        file = self._files.next() if segment is None else None
        if segment is not None:
            state.task, state.doing = segment.task, Activity("read", 0)
        elif file is not None:
            state.task, state.doing = messages.MakeFile(file), Activity("make", 0)
            state.made_bytes = 0
        else:
            return None
        self._sort(worker, state)
        if state.searching and segment is not None:
            self._on_event(events.RowsTried(segment.source.name, segment.segment.number))
        return state.task

    @property
    def stats(self) -> Counter[str]:
        """What the encoders of all workers did, dead workers included."""
        total = Counter(self._past_stats)
        for state in self.workers.values():
            total.update(state.stats)
        return total

    # --- what a driver tells -----------------------------------------------------------------

    def joined(self, worker: int, *, here: bool = True) -> None:
        """A worker was started, on the engine's host or elsewhere. Its number is a new one."""
        self.workers[worker] = WorkerState(here=here)

    def received(self, worker: int, report: messages.Report) -> None:
        state, message = self.workers.get(worker), report.message
        if state is None or report.number <= state.reports:
            return
        state.reports = report.number
        match message:
            case messages.Activity():
                state.doing = message
                state.made_bytes += message.size if message.step == "make" else 0
            case messages.UnitSummary():
                self._encoded(worker, state, message)
            case messages.UnitWritten():
                self._written(worker, state, message)
            case messages.UnitsSynced():
                self._synced(state, message.units)
            case messages.TaskDone():
                state.stats = message.stats
                self._end_task(worker, state)
            case messages.FileMade():
                self._made(worker, state, message)
            case messages.Ready():
                state.ready = True
                self._failed_starts = DeathCount(max_faults=3, max_kills=10)
                self._sort(worker, state)
            case messages.Failure():
                self._failed(worker, state, message)
        self._place_ready()

    def died(self, worker: int, end: WorkerEnd) -> set[UnitId]:
        """A worker has ended: its work is given to others. Returns the units that it held."""
        state = self.workers.pop(worker)
        self._free.pop(worker, None)
        self._free_holding.pop(worker, None)
        self._past_stats.update(state.stats)
        if end.cause != "lost":  # then its driver says so: it may have been several workers
            self._on_event(events.WorkerDied(end.how, searching=state.searching))
        if not state.ready:
            self._failed_starts.add(end.cause)
            if self._failed_starts.too_many:
                raise WorkerError(
                    f"workers do not start: {end.how}", hint="try --workers 0 to see the reason"
                )
        again = {(unit.source, unit.segment) for unit in state.held}
        for unit in state.held:
            del self._holders[unit]
            self.frontier.lost(unit)
        again |= self._leave_unsynced(state)
        segment = self._segment_of(state)
        if segment is not None:
            again.add(segment.key)
        file = state.task.file if isinstance(state.task, messages.MakeFile) else None
        if file is not None:
            self._files.again(file)
        if state.placing and (state.task is None or state.doing.step == "write"):
            unit = state.placing[0]
            self._count_death(self._begun[unit.source, unit.segment], unit.part, end)
        elif file is not None:
            self._files.died(file, end)
        elif segment is not None and state.searching:
            again.remove(segment.key)  # the search asks for it again
            self._died_searching(segment, state.doing, end)
        elif segment is not None:
            self._died_at_work(segment, state.doing, end)
        for key in sorted(again):
            self._do_again(key)
        self._place_ready()
        return state.held

    # --- tasks -------------------------------------------------------------------------------

    def _next_segment(self) -> SegmentProgress | None:
        """The next segment that needs a worker; None if there is none, or none yet."""
        while self._again:
            segment = self._begun.get(heapq.heappop(self._again))
            if segment is not None:
                return segment
        if self.frontier.limit_reached:
            return None
        for segment in self._segments:
            if segment is None:
                break
            self.frontier.add_segment(segment)
            if not segment.complete:
                self._begun[segment.key] = segment
                return segment
            self._on_event(events.Resumed(segment.segment.size))
        else:
            self._exhausted = True
        self._place_ready()  # the last segments may all be durable from an earlier run
        return None

    def _do_again(self, key: tuple[int, int]) -> None:
        segment = self._begun.get(key)
        if segment is not None:
            # A part could not be read, but units before it are to be made first: with them a limit
            # may be reached. Otherwise the next worker meets the failure again.
            segment.failure = None
        heapq.heappush(self._again, key)
        self._on_event(events.Retry(*key))

    def _segment_of(self, state: WorkerState) -> SegmentProgress | None:
        match state.task:
            case messages.EncodeTask(segment=segment):
                pass
            case messages.TryRows(work=work):
                segment = work.segment
            case _:
                return None
        return self._begun.get((segment.source, segment.number))

    def _end_task(self, worker: int, state: WorkerState) -> None:
        """The task is done. Units that it made may still wait for their places."""
        segment, searching = self._segment_of(state), state.searching
        state.task = None
        self._sort(worker, state)
        if searching and segment is not None and segment.search is not None:
            segment.search.survived()
            self._go_on_searching(segment, segment.search)

    def _made(self, worker: int, state: WorkerState, message: messages.FileMade) -> None:
        if not isinstance(state.task, messages.MakeFile):
            return  # it has none to make
        file, state.task, state.made_bytes = state.task.file, None, 0
        self._sort(worker, state)
        self._files.made()
        self._on_made(file, message)
        self._on_event(events.FileMade(file.name, sum(length for length, _ in message.pieces)))

    def _failed(self, worker: int, state: WorkerState, message: messages.Failure) -> None:
        """Raised at once; but under a limit only when the work gets there: it may end before."""
        error, segment = from_wire(message.error), self._segment_of(state)
        encoding = isinstance(state.task, messages.EncodeTask | messages.TryRows)
        if not self.settings.limited or not encoding or message.step != "task":
            raise error
        if segment is not None:  # else it is complete without what could not be read
            segment.failure = error
        state.task = None
        self._sort(worker, state)

    def _sort(self, worker: int, state: WorkerState) -> None:
        """Keep a worker among the free ones while it has no task."""
        self._free.pop(worker, None)
        self._free_holding.pop(worker, None)
        if state.ready and state.task is None:
            (self._free_holding if state.held else self._free)[worker] = None

    # --- units and their places --------------------------------------------------------------

    def _encoded(self, worker: int, state: WorkerState, summary: messages.UnitSummary) -> None:
        state.held.add(summary.unit)
        self._holders[summary.unit] = worker
        placed = self.frontier.encoded(summary)
        if placed is not None:
            self._place(*placed)

    def _written(self, worker: int, state: WorkerState, message: messages.UnitWritten) -> None:
        record, unit = message.record, message.record.unit
        state.stats = message.stats
        state.doing = Activity("read", state.doing.part)
        state.held.discard(unit)
        if self._holders.pop(unit, None) is not None:  # else it needed no place
            state.placing.remove(unit)
        self._tell(worker, state)
        self._sort(worker, state)
        segment = self._begun[unit.source, unit.segment]
        segment.note_written(record)
        state.unsynced[unit] = UnsyncedUnit(segment, record)
        self._at_risk += not state.here
        self.books.written(record, here=state.here)
        self.frontier.written(record, safe=state.here)
        done_bytes = 0
        if segment.complete:
            del self._begun[segment.key]
            done_bytes = segment.segment.size
        n, name = record.counts, str(unit)
        self._on_event(
            events.UnitDone(name, n.rows, n.quarantined, n.tokens, n.text_bytes, done_bytes)
        )
        if n.quarantined:
            fatal = [one.row for one in record.set_aside]
            self._on_event(events.Quarantine(segment.source.name, name, n.quarantined, fatal))

    def _synced(self, state: WorkerState, units: list[UnitId]) -> None:
        """Their worker has synced them: they are safe, whatever happens to it."""
        safe = [unit for unit in units if state.unsynced.pop(unit, None) is not None]
        if not state.here:
            self._at_risk -= len(safe)
            for unit in safe:
                self.frontier.safe(unit)
        self.books.synced(safe)

    def _leave_unsynced(self, state: WorkerState) -> set[tuple[int, int]]:
        """Its worker is gone. What it had not synced is left to the engine where both are on one
        host and share its page cache; else it is lost. Returns the segments to do again."""
        units = list(state.unsynced)
        if state.here:
            self.books.orphaned(units)
            return set()
        self._at_risk -= len(units)
        self.books.lost(units)
        for unit, (segment, record) in state.unsynced.items():
            done_bytes = segment.segment.size if segment.complete else 0
            segment.written.discard(unit.part)
            self._begun[segment.key] = segment
            self.frontier.unwritten(unit)
            n = record.counts
            self._on_event(
                events.UnitLost(
                    str(unit), n.rows, n.quarantined, n.tokens, n.text_bytes, done_bytes
                )
            )
        return {segment.key for segment, _ in state.unsynced.values()}

    def _next_place(self, worker: int) -> Place | None:
        state = self.workers.get(worker)
        if state is None or not state.to_place or len(state.placing) >= MAX_PLACING:
            return None
        place = state.to_place.popleft()
        state.placing.append(place.unit)
        self._tell(worker, state)
        return place

    def _place(self, unit: UnitId, before: State) -> None:
        worker = self._holders[unit]
        state = self.workers[worker]
        state.to_place.append(Place(unit, before))
        self._tell(worker, state)

    def _tell(self, worker: int, state: WorkerState) -> None:
        if state.to_place and len(state.placing) < MAX_PLACING:
            self._to_tell.append(worker)

    def _place_ready(self) -> None:
        for unit, before in self.frontier.ready():
            self._place(unit, before)
        if self.frontier.failure is not None:
            raise self.frontier.failure

    # --- deaths, and the search for a row that ends its worker -------------------------------

    def _count_death(self, segment: SegmentProgress, part: int, end: WorkerEnd) -> None:
        deaths = segment.deaths[part]
        deaths.add(end.cause)
        if deaths.too_many:
            raise segment.unit_error(part, end.how, deaths)

    def _died_at_work(self, segment: SegmentProgress, doing: Activity, end: WorkerEnd) -> None:
        deaths = segment.deaths[doing.part]
        may_be_row = doing.step == "encode" and doing.rows > 0 and end.cause in BLAMED
        if not may_be_row or deaths.fruitless is not None or deaths.total + 1 < MAX_DEATHS:
            self._count_death(segment, doing.part, end)
            return
        deaths.add(end.cause)
        stop = doing.first_row + doing.rows
        may_check = self.run.encoder_check != "none" and self.run.encoder != "reference"
        segment.search = FatalRowSearch(
            doing.part, doing.first_row, stop, end.how, may_check=may_check
        )
        self._on_event(
            events.SearchBegun(
                segment.source.name,
                f"{segment.segment.number}.{doing.part}",
                deaths.total,
                doing.rows,
            )
        )

    def _died_searching(self, segment: SegmentProgress, doing: Activity, end: WorkerEnd) -> None:
        search = segment.search
        assert search is not None
        if doing.step == "encode" and end.cause in BLAMED:
            search.died(doing.first_row, end.fault, end.cause)
        else:
            search.other_deaths.add(end.cause)
            if search.other_deaths.too_many:
                raise segment.unit_error(search.part, end.how, search.other_deaths)
        self._go_on_searching(segment, search)

    def _go_on_searching(self, segment: SegmentProgress, search: FatalRowSearch) -> None:
        """Try the next rows; or do the work itself, now that the fatal rows are known.

        If bad rows stop the run, the worker that meets the first of them names its place.
        """
        deaths = segment.deaths[search.part]
        if deaths.rows_found + len(search.found) > MAX_ASIDE:
            raise segment.too_many_error(search)
        if search.found and self.frontier.has_place(UnitId(*segment.key, search.part)):
            raise segment.too_late_error(search)
        if search.exhausted or (search.found and self.run.on_bad_row == "stop"):
            deaths.end_search(search)
            segment.aside.update(search.found)
            segment.search = None
            self._on_event(events.SearchEnded(segment.source.name, len(search.found)))
        self._do_again(segment.key)
