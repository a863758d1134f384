"""A driver of `Dispatch` on a Ray cluster.

Each actor holds one worker process. To `Dispatch` it is several workers (slots), each with a task
of its own, so that some work is always ahead and Ray is called a few times a second at most. The
orders of an actor are carried out one after the other. A unit that was written is durable: its
object is complete and synced when its worker reports it. An actor that is gone (preempted, or with
its node) is counted apart from a worker that died: it may happen any number of times.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from typing import Any

import msgspec

from tokenmill.amounts import show_bytes
from tokenmill.engines import events, messages
from tokenmill.engines.hunt import WorkerEnd
from tokenmill.engines.ray.actor import Reply
from tokenmill.engines.ray.pool import GROW_SECONDS, ActorPool, refuse_other_versions
from tokenmill.engines.run import EncodingRun, Run
from tokenmill.errors import WorkerError, from_wire
from tokenmill.inputs.segments import UnitId

SLOTS = 8  # segments that an actor has at a time: a second of work
EXCHANGE_SECONDS = 1.0
TICK_SECONDS = 0.2
WAITING_SECONDS = 10.0  # for a node with room; then the driver says so
LOST = WorkerEnd("is gone with its node, or was preempted", "lost", "was lost")
WAITS = WorkerEnd("had not begun when its process ended", "lost", "was lost")


class Actor:
    """An actor as the engine sees it."""

    def __init__(self, handle: Any, slots: list[int]) -> None:
        self.handle, self.slots = handle, slots
        self.call: Any = None  # that is under way
        self.begun = False  # its call is `exchange`; before, it is `begin`
        self.node = self.host = ""
        self.orders: list[bytes] = []  # to be sent with the next call
        self.turns: deque[int] = deque()  # the slots whose tasks it has, in order
        self.placing = 0  # places that were sent and not yet used
        self.starting = False  # its worker has not said that it is ready

    @property
    def busy(self) -> bool:
        return bool(self.turns or self.placing or self.starting)


class RayEngine:
    def __init__(self, run: Run, pool: ActorPool) -> None:
        self.run, self.dispatch = run, run.dispatch
        self.pool, self.cluster, self.ray = pool, pool.cluster, pool.cluster.ray
        self.job = msgspec.msgpack.encode(run.job)
        # Only a run that asks for no places can have several tasks of one worker under way.
        self.slots = SLOTS if isinstance(run, EncodingRun) and run.job.relative else 1
        self.actors: list[Actor] = []
        self.by_slot: dict[int, Actor] = {}
        self.owners: dict[UnitId, int] = {}  # the slot that has a unit, until it is synced
        self.numbers = itertools.count(1)
        self.began = self.looked = time.monotonic()
        self.waits = False  # it was said that no actor has begun

    # --- the loop ----------------------------------------------------------------------------

    def work(self) -> None:
        """Until every unit is written."""
        try:
            self._grow()
            while not self._finished():
                self._wait()
                self.run.keep_up()
                self.cluster.refuse_headless()
                if time.monotonic() - self.looked > GROW_SECONDS:
                    self._grow()
                self.run.report()
        except BaseException:
            for actor in self.actors if not self.cluster.headless else ():
                self.pool.end(actor.handle)
            raise
        # They serve the next run, also those that still start: that takes seconds. The first that
        # is taken is the last one here.
        last = sorted(self.actors, key=lambda actor: (actor.begun, actor.call is None))
        self.pool.give_back([actor.handle for actor in last])

    def _finished(self) -> bool:
        for slot, order in self.dispatch.orders():
            actor = self.by_slot[slot]
            if isinstance(order, messages.Place):
                actor.placing += 1
            else:
                actor.turns.append(slot)
            actor.orders.append(messages.encode(order))
        if self.dispatch.finished:
            return True
        for actor in self.actors:
            if actor.call is None and (actor.orders or actor.busy):
                orders, actor.orders = actor.orders, []
                few = self.slots // 2 if orders else 0  # else there is nothing more to send
                actor.call = actor.handle.exchange.remote(orders, few, EXCHANGE_SECONDS)
        return False

    def _wait(self) -> None:
        calls = {actor.call: actor for actor in self.actors if actor.call is not None}
        if not calls:
            time.sleep(TICK_SECONDS)
            return
        done, _ = self.ray.wait(list(calls), num_returns=1, timeout=TICK_SECONDS, fetch_local=False)
        if done:  # and all others that have an answer by now
            done, _ = self.ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in done:
            self._answered(calls[call], call)

    def _answered(self, actor: Actor, call: Any) -> None:
        actor.call = None
        try:
            answer = self.ray.get(call)
        except self.ray.exceptions.RayTaskError as error:
            raise WorkerError(
                f"in an actor on {actor.host or 'the cluster'}: {error.cause!r}",
                hint="this is a bug of tokenmill",
            ) from None
        except self.ray.exceptions.RayError:  # the actor is gone, or what it answered
            self._lost(actor)
            return
        if not actor.begun:
            refuse_other_versions(answer)
            actor.host, actor.node = answer["host"], answer["node"]
            actor.begun = actor.starting = True
            for slot in actor.slots:
                self.dispatch.joined(slot)
            self._tell_workers()
        else:
            reply = msgspec.msgpack.decode(answer, type=Reply)
            for content in reply.reports:
                self._handle(actor, messages.decode_report(content))
            if reply.end is not None:
                self._replace_worker(actor, reply.end)

    # --- reports -----------------------------------------------------------------------------

    def _handle(self, actor: Actor, report: messages.Report) -> None:
        """A report, to the slot that it is about."""
        message = report.message
        slot = actor.turns[0] if actor.turns else actor.slots[0]
        match message:
            case messages.Ready():
                actor.starting = False
                now = time.monotonic() - self.began
                self.run.seconds_starting = self.run.seconds_starting or now
                for one in actor.slots:
                    self.dispatch.received(one, report)
                return
            case messages.UnitSummary(unit=unit):
                self.owners[unit] = slot
            case messages.UnitWritten(record=record):
                known = self.owners.get(record.unit)
                actor.placing -= known is not None
                slot = self.owners.setdefault(record.unit, slot)
                if isinstance(self.run, EncodingRun):
                    self.cluster.figures_of(actor.node).note_unit(record.counts)
            case messages.UnitsSynced(units=units):
                self._synced(report.number, units)
                return
            case messages.TaskDone():
                actor.turns.popleft()
            case messages.FileMade(pieces=pieces):
                actor.turns.popleft()
                self.cluster.figures_of(actor.node).note_file(length for length, _ in pieces)
            case messages.Failure():
                if message.step == "sync":
                    self.run.sync_failed(from_wire(message.error))
                elif message.step == "task" and actor.turns:
                    actor.turns.popleft()
        self.dispatch.received(slot, report)

    def _synced(self, number: int, units: list[UnitId]) -> None:
        by_slot: dict[int, list[UnitId]] = {}
        for unit in units:
            slot = self.owners.pop(unit, None)
            if slot is not None:
                by_slot.setdefault(slot, []).append(unit)
        for slot, mine in by_slot.items():
            self.dispatch.received(slot, messages.Report(number, messages.UnitsSynced(mine)))

    # --- actors ------------------------------------------------------------------------------

    def _grow(self) -> None:
        """An actor for every core of the cluster, also of nodes that were added since. With
        --workers, or where no node has room yet, actors wait: a cluster that grows sees them."""
        self.looked = time.monotonic()
        while len(self.actors) < self.pool.wanted:
            slots = [next(self.numbers) for _ in range(self.slots)]
            actor = Actor(self.pool.take(), slots)
            self.actors.append(actor)
            self.by_slot |= dict.fromkeys(actor.slots, actor)
            actor.call = actor.handle.begin.remote(self.job, self.run.settings.stuck_seconds)
        if not self.waits and self.looked - self.began > WAITING_SECONDS:
            self.waits = True
            if not any(actor.begun for actor in self.actors):
                self.run.log.observer.note(
                    "no worker has begun: each takes a core and "
                    f"{show_bytes(self.cluster.actor_bytes)} of memory of a node; waiting"
                )

    def _tell_workers(self) -> None:
        nodes = Counter((actor.node, actor.host) for actor in self.actors if actor.begun)
        for node, workers in nodes.items():
            figures = self.cluster.figures_of(*node)
            figures.workers = max(figures.workers, workers)
        self.run.log.add(events.WorkersAtWork(nodes.total(), len(nodes)))

    def _leave(self, actor: Actor, end: WorkerEnd) -> None:
        """Its worker is gone: the work of all slots is given to others. Only the task at work may
        be to blame; those behind it had not begun."""
        at_work = actor.turns[0] if actor.turns else actor.slots[0]
        for slot in actor.slots:
            if slot in self.dispatch.workers:
                self.dispatch.died(slot, end if slot == at_work else WAITS)
            del self.by_slot[slot]
        gone = set(actor.slots)
        self.owners = {unit: slot for unit, slot in self.owners.items() if slot not in gone}
        actor.orders, actor.turns, actor.placing = [], deque(), 0

    def _replace_worker(self, actor: Actor, end: WorkerEnd) -> None:
        """The actor lives, and starts another worker with its next call."""
        self._leave(actor, end)
        self.cluster.figures_of(actor.node).died += 1
        actor.slots = [next(self.numbers) for _ in range(self.slots)]
        self.by_slot |= dict.fromkeys(actor.slots, actor)
        for slot in actor.slots:
            self.dispatch.joined(slot)
        actor.starting = True

    def _lost(self, actor: Actor) -> None:
        """The actor itself is gone. Another is started where there is a core for it."""
        self._leave(actor, LOST)
        self.actors.remove(actor)
        self.cluster.ask(lambda: self.pool.end(actor.handle), self.run.check_interrupt)
        if actor.begun:
            self.cluster.figures_of(actor.node).lost += 1
            self.run.log.add(events.WorkerLost(actor.host))
            self._tell_workers()
