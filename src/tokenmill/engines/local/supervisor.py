"""Run the plan on this machine: worker processes under a supervisor of our own.

A pool of the standard library loses a killed worker's task and waits for ever, or gives up all
remaining work. Here the supervisor waits on the workers' pipes and on their deaths, gives a lost
unit to a fresh worker, and after the second death on one unit searches for the fatal row.
"""

from __future__ import annotations

import heapq
import multiprocessing
import time
import warnings
from multiprocessing import connection as mp_connection
from multiprocessing import resource_tracker
from typing import Any

import msgspec

from tokenmill.engines import messages
from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.hunt import MAX_ASIDE, MAX_DEATHS, DeathCount, FatalRowSearch
from tokenmill.engines.local.processes import (
    STOPPED,
    STOPPED_SECONDS,
    Worker,
    WorkerEnd,
    main_module_hidden,
    reap,
    worker_end,
)
from tokenmill.engines.local.worker import run_worker
from tokenmill.engines.run import EncodingRun
from tokenmill.engines.unit import spill_path
from tokenmill.errors import UsageError, WorkerError, from_wire
from tokenmill.system.disk import remove_file
from tokenmill.system.interrupts import signals_held
from tokenmill.system.proc import read_stat

TICK_SECONDS = 0.2
STOP_SECONDS = 2.0
START_SECONDS = 5.0
UNKILLABLE_SECONDS = 5.0


class LocalEngine:
    def __init__(self, run: EncodingRun) -> None:
        self.run, self.settings = run, run.settings
        self.frontier, self.observer, self.snapshot = run.frontier, run.observer, run.snapshot
        self.context: Any = multiprocessing.get_context(run.settings.start_method)
        self.workers: list[Worker] = []
        self.retry: list[tuple[int, int]] = []  # keys of segments, a heap
        self.failed_starts = DeathCount(max_faults=3, max_kills=10)
        self.began = time.monotonic()

    # --- the loop ----------------------------------------------------------------------------

    def work(self) -> None:
        """Until every unit is written. Workers never outlive this call."""
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "a daemonic process may not start workers", hint="use workers=0 in here"
            )
        try:
            for _ in range(self.settings.workers):
                self._start_worker()
            last_look = time.monotonic()
            while not self._finished():
                self._wait()
                self.run.keep_up()
                now = time.monotonic()
                if now - last_look > 10 * TICK_SECONDS:
                    self._forgive(now)  # this process itself was stopped: no worker is late
                if now - last_look > TICK_SECONDS:
                    self._look_for_stuck(now)
                    last_look = now
                    self.run.report()
            self._stop_workers()
        finally:
            self._kill_workers()

    def _finished(self) -> bool:
        """Hand out what can be handed out; True when nothing is left to do or to wait for."""
        for worker in sorted(self.workers, key=lambda worker: len(worker.held)):
            if worker.ready and worker.segment is None:  # first those that have least to lose
                segment = self._next_segment()
                if segment is None:
                    break
                worker.begin(segment)
                self.snapshot.probes += worker.searching
        self._place_ready()
        if self.frontier.failure is not None:
            raise self.frontier.failure
        return self.run.finished

    def _next_segment(self) -> SegmentProgress | None:
        while self.retry:
            segment = self.run.begun.get(heapq.heappop(self.retry))
            if segment is not None:
                return segment
        return self.run.next_segment()

    def _wait(self) -> None:
        handles = {worker.pipe: worker for worker in self.workers}
        sentinels = [worker.process.sentinel for worker in self.workers]
        ready = mp_connection.wait([*handles, *sentinels], TICK_SECONDS)
        for handle in ready:
            if handle in handles:
                self._receive(handles[handle])
        for worker in list(self.workers):
            if worker.hung_up or worker.process.sentinel in ready:
                self._replace(worker)

    def _receive(self, worker: Worker) -> None:
        """Everything in the pipe; a dead worker's last messages count too."""
        try:
            while worker.pipe.poll(0):
                self._handle(worker, messages.decode_from_worker(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            worker.hung_up = True

    def _handle(self, worker: Worker, message: messages.FromWorker) -> None:
        worker.heard = time.monotonic()
        match message:
            case messages.Activity():
                worker.note(message)
            case messages.UnitSummary():
                worker.held.add(message.unit)
                placed = self.frontier.encoded(message)
                if placed is not None:
                    worker.place(*placed)
                self._place_ready()
            case messages.UnitWritten():
                worker.stats = message.stats
                worker.placed(message.record.unit)
                self.run.written(message.record)
                self._place_ready()
            case messages.SegmentDone():
                worker.stats = message.stats
                worker.segment = None  # its last units may still wait for their place
            case messages.RowsSurvived():
                segment, search = worker.end_search()
                search.survived()
                self._go_on_searching(segment, search)
            case messages.Ready():
                worker.ready = True
                self.run.seconds_starting = self.run.seconds_starting or worker.heard - self.began
                self.failed_starts = DeathCount(max_faults=3, max_kills=10)
            case messages.Failure():
                self._failed(worker, message)

    def _failed(self, worker: Worker, message: messages.Failure) -> None:
        """At once; but under a limit only when the work gets there: it may end before."""
        error = from_wire(message.error)
        if not self.run.plan.settings.limited or worker.segment is None or message.placing:
            raise error
        worker.segment.failure, worker.segment = error, None

    def _place_ready(self) -> None:
        for unit, before in self.frontier.ready():
            for worker in self.workers:
                if unit in worker.held:
                    worker.place(unit, before)
                    break

    # --- workers -----------------------------------------------------------------------------

    def _start_worker(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._launch()
                return
            except (EOFError, OSError) as error:
                self.run.check_interrupt()
                # The fork server itself was killed: once its end is known another is started.
                if time.monotonic() > deadline:
                    raise WorkerError(f"no worker can be started: {error!r}") from None
                time.sleep(0.05)

    def _launch(self) -> None:
        forked = self.settings.start_method == "fork"
        here, there = self.context.Pipe()
        inherited = [*(worker.pipe for worker in self.workers), here] if forked else []
        job = msgspec.msgpack.encode(self.run.job)
        process = self.context.Process(target=run_worker, args=(there, job, inherited), daemon=True)
        if not forked:
            resource_tracker.ensure_running()  # its start would end the hold
        with main_module_hidden(), warnings.catch_warnings(), signals_held():
            # fork from a process with threads warns since 3.12; the user chose it
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        self.workers.append(Worker(process, here))
        self.snapshot.workers = len(self.workers)

    def _replace(self, worker: Worker) -> None:
        """A worker has ended: read its last messages, give its units to others, replace it."""
        self.run.check_interrupt()  # the signal that stops us may have stopped it too
        self._receive(worker)
        self.workers.remove(worker)
        reap(worker)
        self.run.stats.update(worker.stats)
        self.snapshot.retries += 1
        end = worker_end(worker)
        if not worker.ready:
            self.failed_starts.add(end.cause)
            if self.failed_starts.too_many:
                raise WorkerError(
                    f"workers do not start: {end.how}", hint="try --workers 0 to see the reason"
                )
        if not worker.searching:  # a search expects such an end
            self.observer.note(f"a worker {end.how}; replaced, its work is done again")
        again = {(unit.source, unit.segment) for unit in worker.held}
        for unit in worker.held:
            self.frontier.lost(unit)
            remove_file(spill_path(self.run.books.workspace.spill, unit, worker.process.pid))
        segment = worker.segment
        if segment is not None:
            again.add(segment.key)
        if worker.placing and (segment is None or worker.doing.step == "write"):
            unit = worker.placing[0]
            self._count_death(self.run.begun[unit.source, unit.segment], unit.part, end)
        elif segment is not None and worker.searching:
            again.remove(segment.key)  # the search asks for it again
            self._died_searching(worker, end)
        elif segment is not None:
            self._died_at_work(worker, segment, end)
        for key in again:
            heapq.heappush(self.retry, key)
        self._start_worker()

    def _count_death(self, progress: SegmentProgress, part: int, end: WorkerEnd) -> None:
        deaths = progress.deaths[part]
        deaths.add(end.cause)
        if deaths.too_many:
            raise progress.unit_error(part, end.how, deaths)

    # --- the search for a row that ends its worker -------------------------------------------

    def _died_at_work(self, worker: Worker, progress: SegmentProgress, end: WorkerEnd) -> None:
        doing, deaths = worker.doing, progress.deaths[worker.doing.part]
        may_be_row = doing.step == "encode" and doing.rows > 0 and end.cause != "outside"
        if not may_be_row or deaths.fruitless is not None or deaths.total + 1 < MAX_DEATHS:
            self._count_death(progress, doing.part, end)
            return
        deaths.add(end.cause)
        settings, stop = self.settings, doing.first_row + doing.rows
        may_check = settings.encoder_check != "none" and settings.encoder != "reference"
        progress.search = FatalRowSearch(
            doing.part, doing.first_row, stop, end.how, may_check=may_check
        )
        self.observer.note(
            f"{progress.source.name}: {deaths.total} workers died on unit "
            f"{progress.segment.number}.{doing.part}; its rows under way, {doing.rows} of them, "
            "are tried one by one"
        )

    def _died_searching(self, worker: Worker, end: WorkerEnd) -> None:
        progress, search = worker.end_search()
        if worker.doing.step == "encode" and end.cause != "outside":
            search.died(worker.doing.first_row, end.fault, end.cause)
        else:
            search.other_deaths.add(end.cause)
            if search.other_deaths.too_many:
                raise progress.unit_error(search.part, end.how, search.other_deaths)
        self._go_on_searching(progress, search)

    def _go_on_searching(self, progress: SegmentProgress, search: FatalRowSearch) -> None:
        """Try the next rows; or do the work itself, now that the fatal rows are known.

        If bad rows stop the run, the worker that meets the first of them names its place.
        """
        deaths = progress.deaths[search.part]
        if deaths.rows_found + len(search.found) > MAX_ASIDE:
            raise progress.too_many_error(search)
        if search.exhausted or (search.found and self.settings.on_bad_row == "stop"):
            deaths.end_search(search)
            progress.aside.update(search.found)
            progress.search = None
            self.observer.note(
                f"{progress.source.name}: rows that end their worker: {len(search.found)} found"
            )
        heapq.heappush(self.retry, progress.key)

    # --- hung and stopped workers, and the end -----------------------------------------------

    def _look_for_stuck(self, now: float) -> None:
        for worker in list(self.workers):
            if worker.killed_because and now - worker.killed_at > UNKILLABLE_SECONDS:
                self._give_up(worker)
                continue
            stat = read_stat(worker.process.pid)
            if stat is not None and stat.resident:  # of a dead process it is 0
                worker.resident = stat.resident
            if stat is None or stat.state != "T":
                worker.stopped_since = None
            elif worker.stopped_since is None:
                worker.stopped_since = now
            elif now - worker.stopped_since > STOPPED_SECONDS:
                worker.kill(STOPPED)
                continue
            silent = now - worker.heard
            if worker.busy and silent > worker.patience(self.settings.stuck_seconds):
                worker.kill(f"did nothing for {silent:.0f} s")

    def _give_up(self, worker: Worker) -> None:
        """The kernel does not end a process that waits for a dead disk. If that process ever
        writes, it writes the same bytes to the same place. Our exit does not wait for it."""
        worker.killed_because += " and cannot be ended"
        getattr(multiprocessing.process, "_children", set()).discard(worker.process)
        self._replace(worker)

    def _forgive(self, now: float) -> None:
        for worker in self.workers:
            worker.heard = now
            worker.stopped_since = None

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.send(messages.Stop())
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))

    def _kill_workers(self) -> None:
        for worker in self.workers:
            if worker.process.is_alive():
                worker.process.kill()
        for worker in self.workers:
            reap(worker)
            self.run.stats.update(worker.stats)
        self.workers.clear()
