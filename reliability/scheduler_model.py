"""Simulated workers, channels and accidents around the real `Dispatch`, and what must hold.

There is no process, clock or disk. A worker is a generator that sends what a real one would send. A
seed draws the order of all events, so that a schedule can be run again.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from tokenmill.engines import messages
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.hunt import Cause, WorkerEnd
from tokenmill.errors import SourceError, TokenmillError, WorkerError
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.file_maker import FileTask
from tokenmill.output.journal import AsideRecord, UnitRecord
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.settings import OnBadRow, PlanSettings, RunSettings
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.placement import CutRule, StreamCounts, StreamState

# Shards end at documents and the validation split at the third one: often only a worker, who
# knows where documents begin, can say where the next unit goes.
SETTINGS = plan_settings(
    make_options(
        {"format": "llmc", "cut": "document", "shard_tokens": 20, "val": "docs:3", "name": "x"}
    ),
    "out",
)
RULES = CutRule.all_of(SETTINGS, SETTINGS.first)
BATCH_ROWS = 2
ENDS: dict[Cause, WorkerEnd] = {
    "fault": WorkerEnd("crashed", "fault", "crashed its worker"),
    "kill": WorkerEnd("was killed", "kill", "killed its worker"),
    "outside": WorkerEnd("was stopped", "outside", "stopped its worker"),
}
Key = tuple[int, int]
# What a worker sends, and in the end the error that the work ended with.
Work = Generator[messages.FromWorker, None, list[str] | None]
# What a row does to its worker: nothing, or it ends it; "checked": only where it is checked.
Fatal = Literal["", "fault", "kill", "checked"]


@dataclass(frozen=True)
class Row:
    length: int  # 0: a bad row
    fatal: Fatal = ""


Rows = tuple[Row, ...]


@dataclass(frozen=True)
class Scene:
    """A job, and what will go wrong."""

    sources: list[list[list[Rows]]]  # of segments of units
    workers: int = 2
    limit_docs: int = 0
    limit_tokens: int = 0
    on_bad_row: OnBadRow = "quarantine"
    broken: UnitId | None = None  # reading it fails
    kills: int = 0  # from outside, at any moment
    stalls: int = 0
    resumes: int = 0  # the engine itself is killed
    waits: int = 0  # a source is not there yet
    files: int = 0  # to make, beside the units
    fatal_file: int = -1  # which of them ends every worker
    elsewhere: bool = False  # some workers are on other hosts: what they did not sync dies too
    noise: bool = False  # messages come twice, or after the death of their worker
    seed: int = 0

    @property
    def settings(self) -> PlanSettings:
        return msgspec.structs.replace(
            SETTINGS, limit_docs=self.limit_docs, limit_tokens=self.limit_tokens
        )

    @property
    def has_fatal(self) -> bool:
        return any(r.fatal for s in self.sources for g in s for u in g for r in u)

    @property
    def strict(self) -> bool:
        """Whether accidents are too few to be taken for the fault of a unit or a row."""
        if self.has_fatal:
            return self.kills == self.stalls == 0
        return self.stalls == 0 or (self.stalls == 1 and self.kills == 0)


@dataclass(frozen=True)
class Unit:
    id: UnitId
    last: bool
    rows_before: int  # in its segment
    rows: Rows

    def is_bad(self, index: int, aside: dict[int, str]) -> bool:
        return self.rows[index].length == 0 or self.rows_before + index in aside

    def summary(self, aside: dict[int, str], stop: int | None = None) -> messages.UnitSummary:
        rows = self.rows[:stop]
        lengths = [r.length for i, r in enumerate(rows) if not self.is_bad(i, aside)]
        counts = Counts(
            rows=len(rows),
            documents=len(lengths),
            quarantined=len(rows) - len(lengths),
            tokens=sum(lengths),
        )
        streams = (StreamCounts(sum(lengths), len(lengths), min(1, len(lengths))),)
        return messages.UnitSummary(self.id, self.last, self.rows_before, 0, counts, streams)

    def stop(self, aside: dict[int, str], before: State, scene: Scene) -> int | None:
        """Behind the last row within the limits; None: all rows."""
        documents, tokens = before.streams[0].documents, before.streams[0].tokens
        for index, row in enumerate(self.rows):
            if not self.is_bad(index, aside):
                documents, tokens = documents + 1, tokens + row.length
            if 0 < scene.limit_docs <= documents or 0 < scene.limit_tokens <= tokens:
                return index + 1
        return None

    def record(self, aside: dict[int, str], before: State, scene: Scene) -> UnitRecord:
        stop = self.stop(aside, before, scene)
        rows = self.rows[:stop]
        lengths = [r.length for i, r in enumerate(rows) if not self.is_bad(i, aside)]
        summary = self.summary(aside, stop)
        starts = np.cumsum((0, *lengths))[:-1].astype(np.int64)
        _, stream = RULES[0].lay_out(before.streams[0], summary.streams[0], starts)
        quarantined = summary.counts.quarantined
        after = msgspec.structs.replace(
            before,
            streams=(stream,),
            rows=before.rows + len(rows),
            quarantine_bytes=before.quarantine_bytes + 7 * quarantined,
        )
        set_aside = tuple(
            AsideRecord(before.rows + i, self.rows_before + i, aside[self.rows_before + i])
            for i in range(len(rows))
            if self.rows_before + i in aside
        )
        last = self.last or stop is not None
        return UnitRecord(self.id, last, 0, summary.counts, before, after, (), set_aside)


def units_of(scene: Scene) -> list[Unit]:
    units = []
    for source, segments in enumerate(scene.sources):
        for number, parts in enumerate(segments):
            rows = 0
            for part, content in enumerate(parts):
                unit = UnitId(source, number, part)
                units.append(Unit(unit, part == len(parts) - 1, rows, content))
                rows += len(content)
    return units


class WorkerDeath(Exception):  # noqa: N818 - a part of the play
    def __init__(self, cause: Cause) -> None:
        self.cause = cause


class Worker:
    """One simulated worker: `step` lets it do one thing."""

    def __init__(self, number: int, world: World) -> None:
        self.number, self.world = number, world
        self.inbox: deque[messages.ToWorker] = deque()
        self.outbox: deque[messages.Report] = deque()
        self.heard: list[messages.Report] = []  # delivered already
        self.held: dict[UnitId, dict[int, str]] = {}  # and the rows set aside in it
        self.unsynced: list[UnitId] = []  # written
        self.here = not world.scene.elsewhere or world.rng.random() < 0.3
        self.segment: Key | None = None
        self.waiting = self.stalled = False
        self._sent = 0
        self._life = self._live()

    def step(self) -> None:
        """Raises `WorkerDeath` if this was its last step."""
        message = next(self._life)
        if message is not None:
            self._send(message)

    def _send(self, message: messages.FromWorker) -> None:
        self._sent += 1
        self.outbox.append(messages.Report(self._sent, message))

    def sync(self) -> None:
        """What its thread does now and then."""
        units, self.unsynced = self.unsynced, []
        self.world.synced.update(units)
        self._send(messages.UnitsSynced(units))

    def _live(self) -> Iterator[messages.FromWorker | None]:
        yield messages.Ready()
        while True:
            self.waiting = not self.inbox
            if self.waiting:
                yield None
            else:
                yield from self._carry_out(self.inbox.popleft())

    def _drain(self) -> Iterator[messages.FromWorker]:
        while self.inbox:
            yield from self._carry_out(self.inbox.popleft())

    def _carry_out(self, order: messages.ToWorker) -> Iterator[messages.FromWorker]:
        match order:
            case messages.Place():
                yield from self._place(order)
                return
            case messages.EncodeTask():
                error = yield from self._encode(order)
            case messages.MakeFile():
                yield from self._make(order)
                return
            case messages.TryRows():
                error = yield from self._try_rows(order)
        self.segment = None
        yield messages.Failure(error) if error else messages.TaskDone({"tasks": 1})

    def _encode(self, work: messages.EncodeTask) -> Work:
        scene = self.world.scene
        self.segment = work.segment.source, work.segment.number
        for unit in self.world.units_in[self.segment]:
            if unit.id.part in work.skip:
                continue
            if unit.id == scene.broken:
                return SourceError(f"cannot read {unit.id}").to_wire()
            for first in range(0, len(unit.rows), BATCH_ROWS):
                rows = range(first, min(first + BATCH_ROWS, len(unit.rows)))
                yield from self._drain()
                yield messages.Activity(
                    "encode", unit.id.part, unit.rows_before + first, len(rows), 1
                )
                for index in rows:
                    if unit.rows_before + index not in work.aside:
                        self._survive(unit.rows[index], checked=self.world.rng.random() < 0.5)
                    elif scene.on_bad_row == "stop" and not scene.settings.limited:
                        return _stop_at(unit, index).to_wire()
                yield from self._drain()
                yield messages.Activity("read", unit.id.part)
            self.held[unit.id] = dict(work.aside)
            yield unit.summary(work.aside)
            yield from self._drain()
        return None

    def _try_rows(self, wanted: messages.TryRows) -> Work:
        self.segment = wanted.work.segment.source, wanted.work.segment.number
        yield messages.Activity("read", wanted.part)
        for unit in self.world.units_in[self.segment]:
            for index, row in enumerate(unit.rows):
                number = unit.rows_before + index
                if wanted.first_row <= number < wanted.stop_row and number not in wanted.work.aside:
                    yield from self._drain()
                    yield messages.Activity("encode", wanted.part, number, 1, 1)
                    self._survive(row, checked=wanted.check)
        return None

    def _make(self, order: messages.MakeFile) -> Iterator[messages.FromWorker]:
        for _ in range(2):
            yield from self._drain()
            yield messages.Activity("make", 0, size=1)
            if order.file.number == self.world.scene.fatal_file:
                raise WorkerDeath("fault")
        yield messages.FileMade([(2, order.file.number)], {})

    def _survive(self, row: Row, *, checked: bool) -> None:
        if row.fatal in ("fault", "kill"):
            raise WorkerDeath(row.fatal)
        if row.fatal == "checked" and checked:
            raise WorkerDeath("fault")

    def _place(self, place: messages.Place) -> Iterator[messages.FromWorker]:
        yield messages.Activity("write", place.unit.part)
        unit, aside = self.world.units[place.unit], self.held.pop(place.unit)
        record = unit.record(aside, place.before, self.world.scene)
        if record.set_aside and self.world.scene.on_bad_row == "stop":
            index = record.set_aside[0].segment_row - unit.rows_before
            yield messages.Failure(_stop_at(unit, index).to_wire(), "place")
        else:
            yield messages.UnitWritten(record, {"units": 1})
            self.unsynced.append(place.unit)


def _stop_at(unit: Unit, index: int) -> WorkerError:
    return WorkerError(f"row {unit.id.source}.{unit.id.segment}.{unit.rows_before + index}")


class Journal:
    """What the engine knows of units that were written in this life of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.safe: set[UnitId] = set()  # synced, or on this host
        self.gone: set[UnitId] = set()  # with their host, and not yet written again

    def written(self, record: UnitRecord, *, here: bool) -> None:
        unit, world = record.unit, self.world
        assert unit in self.gone or unit not in world.written, f"{unit} was written twice"
        assert unit not in world.durable, f"{unit} was durable, and done again"
        assert world.written.setdefault(unit, record) == record, f"{unit} came out differently"
        self.gone.discard(unit)
        if here:
            self.safe.add(unit)  # the engine can sync it at any time

    def synced(self, units: list[UnitId]) -> None:
        assert self.world.synced.issuperset(units), "not synced yet"
        self.safe.update(units)

    def orphaned(self, units: list[UnitId]) -> None:
        assert self.safe.issuperset(units), "not written on this host"

    def lost(self, units: list[UnitId]) -> None:
        assert not self.safe.intersection(units), "what is safe is done again"
        self.gone.update(units)

    def durable(self) -> dict[UnitId, UnitRecord]:
        """In the order they were written in; none behind a unit that is not safe, if only its
        record knows of fatal rows."""
        found: dict[UnitId, UnitRecord] = {}
        for unit, record in self.world.written.items():
            if unit in self.safe:
                found[unit] = record
            elif record.set_aside:
                break
        return found


@dataclass
class World:
    """The engine's driver, and everything outside of it."""

    scene: Scene
    written: dict[UnitId, UnitRecord] = field(default_factory=dict)  # in this life of the engine
    durable: dict[UnitId, UnitRecord] = field(default_factory=dict)  # from lives before it
    made: list[int] = field(default_factory=list)  # files, in all lives: each is noted at once
    synced: set[UnitId] = field(default_factory=set)  # by the worker that wrote them

    def __post_init__(self) -> None:
        scene = self.scene
        self.rng = random.Random(scene.seed)
        self.units = {unit.id: unit for unit in units_of(scene)}
        self.units_in: dict[Key, list[Unit]] = {}
        for unit in self.units.values():
            self.units_in.setdefault((unit.id.source, unit.id.segment), []).append(unit)
        self.kills, self.stalls = scene.kills, scene.stalls
        self.resumes, self.waits = scene.resumes, scene.waits
        self.steps = self.started = 0
        self._begin()

    # --- a life of the engine ------------------------------------------------------------------

    def _begin(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.given: dict[Key, SegmentProgress] = {}
        self.places: dict[UnitId, State] = {}
        self.journal = Journal(self)
        self.waiting = False
        self.dispatch = Dispatch(
            self.scene.settings,
            RunSettings(workers=self.scene.workers, memory=0, on_bad_row=self.scene.on_bad_row),
            self._segments(),
            list(self.durable.values()),
            self.journal,
            files=[file_task(n) for n in range(self.scene.files) if n not in self.made],
            on_made=self._note_made,
        )
        for _ in range(self.scene.workers):
            self._start_worker()

    def _segments(self) -> Iterator[SegmentProgress | None]:
        for key in self.units_in:
            while self.waits and self.rng.random() < 0.5:
                self.waits -= 1
                self.waiting = True
                yield None
            self.waiting = False
            source = Source(
                number=key[0], name=f"s{key[0]}", path="a", kind="jsonl", size=1,
                fingerprint="xxh3:0", mtime_ns=0,
            )  # fmt: skip
            progress = SegmentProgress(Segment(*key, 0, 1, 1), source)
            for unit in self.units_in[key]:
                record = self.durable.get(unit.id)
                if record is not None:
                    progress.note_written(record)
                    progress.aside |= {one.segment_row: one.reason for one in record.set_aside}
            self.given[key] = progress
            yield progress

    def _start_worker(self) -> None:
        self.started += 1
        self.workers[self.started] = Worker(self.started, self)
        self.dispatch.joined(self.started, here=self.workers[self.started].here)

    def _note_made(self, file: FileTask, message: messages.FileMade) -> None:
        assert message.pieces == [(2, file.number)], "another file's"
        assert file.number not in self.made, f"file {file.number} was made twice"
        self.made.append(file.number)

    def run(self) -> None:
        """Until the engine says that it has finished. Raises what it raises."""
        rows = sum(len(unit.rows) for unit in self.units.values()) + 2 * self.scene.files
        bound = 3000 + 400 * (rows + len(self.units)) * (1 + self.scene.resumes)
        while True:
            self.steps += 1
            assert self.steps < bound, "it does not end"
            for number, order in self.dispatch.orders():
                self._send(self.workers[number], order)
            if self.dispatch.finished:
                return
            self._check_nobody_idles()
            self._something_happens()

    def _send(self, worker: Worker, order: messages.ToWorker) -> None:
        worker.inbox.append(order)
        if isinstance(order, messages.Place):
            unit = order.unit
            assert unit in worker.held, f"{unit} is placed by a worker that does not hold it"
            assert self.places.setdefault(unit, order.before) == order.before, "two places"

    def _check_nobody_idles(self) -> None:
        """A worker without a task, while a segment needs one, would be a waste for ever."""
        states = self.dispatch.workers.values()
        if all(state.task is not None or not state.ready for state in states):
            return
        given = [s.task.file.number for s in states if isinstance(s.task, messages.MakeFile)]
        assert len(given) == len(set(given)), "two workers make the same file"
        assert len(given) + len(self.made) == self.scene.files, "nobody makes a file"
        if self.dispatch.frontier.limit_reached:
            return
        tasks = [
            task.work.segment if isinstance(task, messages.TryRows) else task.segment
            for task in (state.task for state in states)
            if isinstance(task, messages.TryRows | messages.EncodeTask)
        ]
        busy = [(segment.source, segment.number) for segment in tasks]
        assert len(busy) == len(set(busy)), "two workers have the same segment"
        held = {unit for state in states for unit in state.held}
        assert self.waiting or len(self.given) == len(self.units_in), "segments are not handed out"
        for key, progress in self.given.items():
            if key not in busy and progress.failure is None and not progress.complete:
                lost = [
                    unit.id
                    for unit in self.units_in[key]
                    if unit.id.part not in progress.written and unit.id not in held
                ]
                assert not lost, f"nobody does {lost}, and a worker is idle"

    # --- what may happen -----------------------------------------------------------------------

    def _something_happens(self) -> None:
        rng, workers = self.rng, list(self.workers.values())
        if self.resumes and rng.random() < 0.01:
            self._resume()
            return
        if self.kills and rng.random() < 0.05:
            self.kills -= 1
            self._end(rng.choice(workers), rng.choice(["kill", "outside"]), from_outside=True)
            return
        if self.stalls and rng.random() < 0.05:
            self.stalls -= 1
            rng.choice(workers).stalled = True
        moving = [
            w for w in workers if w.stalled or w.outbox or w.inbox or w.unsynced or not w.waiting
        ]
        assert moving or self.waiting, "everybody waits, and nothing will ever come"
        if moving:
            self._move(rng.choice(moving))

    def _move(self, worker: Worker) -> None:
        if worker.stalled and not worker.outbox:
            self._end(worker, "fault")
        elif worker.outbox and (worker.stalled or self.rng.random() < 0.6):
            self._deliver(worker)
        elif worker.unsynced and not worker.stalled and self.rng.random() < 0.2:
            worker.sync()
        elif not worker.stalled:
            try:
                worker.step()
            except WorkerDeath as death:
                self._end(worker, death.cause)

    def _deliver(self, worker: Worker) -> None:
        worker.heard.append(worker.outbox.popleft())
        self.dispatch.received(worker.number, worker.heard[-1])
        while self.scene.noise and self.rng.random() < 0.2:
            self.dispatch.received(worker.number, self.rng.choice(worker.heard))

    def _end(self, worker: Worker, cause: Cause, *, from_outside: bool = False) -> None:
        too_late = from_outside and self.scene.noise and self.rng.random() < 0.5
        while worker.outbox and not too_late:
            self._deliver(worker)
        del self.workers[worker.number]
        self.dispatch.died(worker.number, ENDS[cause])
        for report in worker.outbox:
            self.dispatch.received(worker.number, report)
        self._start_worker()

    def _resume(self) -> None:
        """The engine is killed. The journal has a part of what it could have."""
        self.resumes -= 1
        durable = list(self.journal.durable().items())
        self.durable |= dict(durable[: self.rng.randint(0, len(durable))])
        self.written.clear()
        self._begin()


def file_task(number: int) -> FileTask:
    return FileTask(f"file-{number}", 0, 0, "train", number, 1, 0, 1, 0, 1)


def play(scene: Scene) -> World:
    """Run a scene to its end and check what came out; raises AssertionError."""
    world = World(scene)
    try:
        world.run()
    except TokenmillError as error:
        _check_error(world, error)
        _check_chain(world)
        return world
    aside: dict[Key, dict[int, str]] = {}
    records = world.durable | world.written
    assert not world.journal.gone, "a unit was lost with its host"
    assert world.journal.safe.issuperset(world.written), "finished, and a unit may still get lost"
    for record in records.values():
        for one in record.set_aside:
            key = record.unit.source, record.unit.segment
            aside.setdefault(key, {})[one.segment_row] = one.reason
    expected = in_order(scene, aside)
    assert sorted(records) == [record.unit for record in expected], "a unit is lost, or extra"
    assert [records[record.unit] for record in expected] == expected, "a unit has a wrong place"
    assert scene.broken not in records, "it cannot be read"
    assert sorted(world.made) == list(range(scene.files)), "a file is missing"
    assert not 0 <= scene.fatal_file < scene.files, "it ends every worker"
    if expected:
        assert world.dispatch.frontier.state == expected[-1].after
    if scene.strict:
        _check_rows(world, aside, {record.unit for record in expected})
    return world


def _check_error(world: World, error: TokenmillError) -> None:
    scene = world.scene
    if isinstance(error, SourceError):
        assert scene.broken is not None
        if not scene.has_fatal:
            within = [record.unit for record in in_order(scene, {})]
            assert scene.broken in within, "the limit comes before what cannot be read"
        return
    assert isinstance(error, WorkerError), f"not expected: {error!r}"
    if error.message.startswith("file-"):
        to_blame = error.message.startswith(f"file-{scene.fatal_file}:")
        assert to_blame or not scene.strict, error.message
        return
    if error.message.startswith("row "):
        assert scene.on_bad_row == "stop"
        source, segment, row = map(int, error.message.removeprefix("row ").split("."))
        rows = [row for unit in world.units_in[source, segment] for row in unit.rows]
        assert rows[row].fatal or not scene.strict, f"{error.message} is not to blame"
    elif "It did not when" in error.message:
        checked = any(row.fatal == "checked" for unit in world.units.values() for row in unit.rows)
        assert checked or not scene.strict, error.message
    else:
        assert not scene.strict, f"nothing can have caused this: {error.message}"


def _check_chain(world: World) -> None:
    """What was written before the error fits together."""
    records, units = world.durable | world.written, list(world.units)
    for unit, following in itertools.pairwise(units):
        if unit in records and following in records:
            after = records[unit].after.entering(following)
            assert records[following].before == after, f"{following} has a wrong place"


def _check_rows(world: World, aside: dict[Key, dict[int, str]], units: set[UnitId]) -> None:
    """Exactly the fatal rows of what was written were quarantined."""
    for unit in (world.units[one] for one in units):
        found = aside.get((unit.id.source, unit.id.segment), {})
        record = (world.durable | world.written)[unit.id]
        for index, row in enumerate(unit.rows[: record.counts.rows]):
            blamed = unit.rows_before + index in found
            assert blamed <= bool(row.fatal), "a healthy row is blamed"
            assert blamed or row.fatal not in ("fault", "kill"), "a fatal row was written"


def in_order(scene: Scene, aside: dict[Key, dict[int, str]]) -> list[UnitRecord]:
    """Every unit written behind the one before it: what any schedule must come to."""
    records: list[UnitRecord] = []
    state = State(streams=(StreamState(),))
    for unit in units_of(scene):
        stream = state.streams[0]
        if 0 < scene.limit_docs <= stream.documents or 0 < scene.limit_tokens <= stream.tokens:
            break
        rows = aside.get((unit.id.source, unit.id.segment), {})
        records.append(unit.record(rows, state.entering(unit.id), scene))
        state = records[-1].after
    return records
