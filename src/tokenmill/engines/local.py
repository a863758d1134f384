"""Run the plan on this machine: worker processes under a supervisor of our own.

A pool of the standard library loses a killed worker's task and waits for ever, or gives up all
remaining work. Here the supervisor waits on the workers' pipes and on their deaths, gives a lost
unit to a fresh worker, and after the second death on one unit looks for the row that did it.
"""

from __future__ import annotations

import contextlib
import heapq
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import connection as mp_connection
from multiprocessing import resource_tracker
from typing import Any

import msgspec

from tokenmill.config import RunSettings
from tokenmill.engines import messages
from tokenmill.engines.books import Books
from tokenmill.engines.encoded import spill_path
from tokenmill.engines.frontier import SegmentJob
from tokenmill.engines.hunt import (
    MAX_ASIDE,
    MAX_DEATHS,
    Cause,
    Deaths,
    Hunt,
    no_row_error,
    too_many_error,
    unit_error,
)
from tokenmill.engines.messages import (
    Encoded,
    Failed,
    Probe,
    Probed,
    Progress,
    Ready,
    SegmentDone,
    Stop,
    Work,
    Written,
)
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.engines.processes import (
    HUNG,
    STOPPED,
    STOPPED_SECONDS,
    Worker,
    cause_of,
    fault_of,
    forget_process,
    fork_server_watched,
    how_it_ended,
    main_module_hidden,
    process_state,
    reap,
    worker_main,
)
from tokenmill.engines.unit import Job
from tokenmill.errors import UsageError, WorkerError, from_wire
from tokenmill.interrupts import signals_held
from tokenmill.plan import Plan
from tokenmill.steps import remove_file

TICK_SECONDS = 0.2
STOP_SECONDS = 2.0
START_SECONDS = 5.0
UNKILLABLE_SECONDS = 5.0


class LocalEngine:
    def __init__(
        self,
        plan: Plan,
        job: Job,
        run: RunSettings,
        books: Books,
        observer: Observer,
        snapshot: Snapshot,
        check_interrupt: Callable[[], None],
    ) -> None:
        self.plan, self.job, self.run_settings, self.books = plan, job, run, books
        self.observer, self.snapshot, self.check_interrupt = observer, snapshot, check_interrupt
        self.context: Any = multiprocessing.get_context(run.start_method)
        self.workers: list[Worker] = []
        self.jobs: dict[tuple[int, int], SegmentJob] = {}
        self.retry: list[tuple[int, int]] = []
        self.stats: dict[str, int] = {}
        self.failed_starts = Deaths(max_faults=3, max_kills=10)
        self.exhausted = False
        self.began = time.monotonic()
        self.first_ready = 0.0

    @property
    def seconds_starting(self) -> float:
        """Until the first worker had its encoder open."""
        return max(0.0, self.first_ready - self.began)

    # --- the loop ----------------------------------------------------------------------------

    def run(self, jobs: Iterator[SegmentJob | None]) -> dict[str, int]:
        """Until every unit is written. Workers never outlive this call."""
        if multiprocessing.current_process().daemon:
            raise UsageError(
                "a daemonic process may not start workers", hint="use workers=0 in here"
            )
        try:
            for _ in range(self.run_settings.workers):
                self._start_worker()
            last_look = time.monotonic()
            while not self._finished(jobs):
                self._wait()
                self.check_interrupt()
                self.books.sync_if_due()
                now = time.monotonic()
                if now - last_look > 10 * TICK_SECONDS:
                    self._forgive(now)  # this process itself was stopped: no worker is late
                if now - last_look > TICK_SECONDS:
                    self._look_for_stuck(now)
                    last_look = now
                    self.observer.update(self.snapshot)
            self._stop_workers()
        finally:
            self._kill_workers()
        return self.stats

    def _finished(self, jobs: Iterator[SegmentJob | None]) -> bool:
        """Hand out what can be handed out; True when nothing is left to do or to wait for."""
        for worker in sorted(self.workers, key=lambda worker: len(worker.held)):
            if worker.ready and worker.job is None:  # first those that have least to lose
                job = self._next_job(jobs)
                if job is None:
                    break
                worker.begin(job, self._task(job))
        self._place_ready()
        frontier = self.books.frontier
        if frontier.failure is not None:
            raise frontier.failure
        return frontier.done or (self.exhausted and not self.jobs and frontier.idle)

    def _task(self, job: SegmentJob) -> Work | Probe:
        source = job.source
        if job.hunt is None:
            return Work(source, job.segment, sorted(job.written), job.aside)
        self.snapshot.probes += 1
        hunt = job.hunt
        return Probe(source, job.segment, hunt.part, *hunt.next_rows(), hunt.check, job.aside)

    def _next_job(self, jobs: Iterator[SegmentJob | None]) -> SegmentJob | None:
        while self.retry:
            job = self.jobs.get(heapq.heappop(self.retry))
            if job is not None:
                return job
        while not self.exhausted and not self.books.frontier.limit_reached:
            try:
                job = next(jobs)
            except StopIteration:
                self.exhausted = True
                return None
            if job is None:  # the next input is on its way
                return None
            self.books.frontier.add_segment(job)
            if not job.complete:
                self.jobs[job.key] = job
                return job
            self.snapshot.bytes_done += job.segment.size
            self.snapshot.resumed_bytes += job.segment.size
        return None

    def _wait(self) -> None:
        handles = {worker.pipe: worker for worker in self.workers}
        sentinels = [worker.process.sentinel for worker in self.workers]
        ready = mp_connection.wait([*handles, *sentinels], TICK_SECONDS)
        for handle in ready:
            if handle in handles:
                self._receive(handles[handle])
        for worker in list(self.workers):
            if worker.hung_up or worker.process.sentinel in ready:
                self._bury(worker)

    def _receive(self, worker: Worker) -> None:
        """Everything in the pipe; a dead worker's last words count too."""
        try:
            while worker.pipe.poll(0):
                self._handle(worker, messages.decode_from_worker(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            worker.hung_up = True

    def _handle(self, worker: Worker, message: messages.FromWorker) -> None:
        worker.heard = time.monotonic()
        match message:
            case Progress():
                worker.note(message.doing)
            case Encoded():
                unit = message.summary.unit
                worker.held.add(unit)
                placed = self.books.frontier.encoded(message.summary)
                if placed is not None:
                    worker.place(*placed)
                self._place_ready()
            case Written():
                self._written(worker, message)
            case SegmentDone():
                worker.stats = message.stats
                worker.job = None  # its last units may still be held; the job closes with them
            case Probed():
                job, worker.job, worker.probing = worker.job, None, False
                assert job is not None
                assert job.hunt is not None
                job.hunt.survived()
                self._go_on_hunting(job)
            case Ready():
                worker.ready = True
                self.first_ready = self.first_ready or time.monotonic()
                self.failed_starts = Deaths(max_faults=3, max_kills=10)
            case Failed():
                self._failed(worker, message)

    def _failed(self, worker: Worker, message: Failed) -> None:
        """At once; but under a limit only when the work gets there: it may end before."""
        error = from_wire(message.error)
        if not self.plan.settings.limited or worker.job is None or message.placing:
            raise error
        worker.job.failure, worker.job = error, None

    def _written(self, worker: Worker, message: Written) -> None:
        record = message.record
        worker.stats = message.stats
        worker.placed(record.unit)
        job = self.jobs[(record.unit.source, record.unit.segment)]
        self.books.written(record)
        job.note_written(record.unit, record.last)
        self.snapshot.add_unit(record.counts)
        if job.complete:
            del self.jobs[job.key]
            self.snapshot.bytes_done += job.segment.size
        self._place_ready()

    def _place_ready(self) -> None:
        for unit, before in self.books.frontier.ready():
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
                self.check_interrupt()
                # The fork server itself was killed: once its end is known another is started.
                if time.monotonic() > deadline:
                    raise WorkerError(f"no worker can be started: {error!r}") from None
                time.sleep(0.05)

    def _launch(self) -> None:
        here, there = self.context.Pipe()
        inherited = [w.pipe for w in self.workers] + [here]
        process = self.context.Process(
            target=worker_main,
            args=(
                there,
                msgspec.msgpack.encode(self.job),
                inherited if self.run_settings.start_method == "fork" else [],
            ),
            daemon=True,
        )
        forkserver = self.run_settings.start_method == "forkserver"
        watched = fork_server_watched() if forkserver else contextlib.nullcontext()
        if self.run_settings.start_method != "fork":
            resource_tracker.ensure_running()  # its start would end the hold
        with watched, main_module_hidden(), warnings.catch_warnings(), signals_held():
            # fork from a process with threads warns since 3.12; the user chose it
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        self.workers.append(Worker(process, here))
        self.snapshot.workers = len(self.workers)

    def _bury(self, worker: Worker) -> None:
        """A worker has ended: take its last words, give its units to others, replace it."""
        self.check_interrupt()  # whoever stops us may have stopped it too
        self._receive(worker)
        self.workers.remove(worker)
        reap(worker)
        self._add_stats(worker)
        self.snapshot.retries += 1
        how, cause = how_it_ended(worker), cause_of(worker)
        if not worker.ready:
            self.failed_starts.add(cause)
            if self.failed_starts.too_many:
                raise WorkerError(
                    f"workers do not start: {how}", hint="try --workers 0 to see the reason"
                )
        lost = {(unit.source, unit.segment) for unit in worker.held}
        for unit in worker.held:
            self.books.frontier.lost(unit)
            remove_file(spill_path(self.books.workspace.spill, unit, worker.process.pid))
        if not worker.probing:  # a probe is expected to end so
            self.observer.note(f"a worker {how}; replaced, its work is done again")
        job = worker.job
        if job is not None:
            lost.add(job.key)
        if worker.placing and (job is None or worker.doing.step == "write"):
            unit = worker.placing[0]
            self._count_death(self.jobs[(unit.source, unit.segment)], unit.part, how, cause)
        elif job is not None and worker.probing:
            lost.remove(job.key)
            self._died_probing(worker, job, cause)
        elif job is not None:
            self._died_at_work(worker, job, how, cause)
        for key in lost:
            heapq.heappush(self.retry, key)
        self._start_worker()

    def _count_death(self, job: SegmentJob, part: int, how: str, cause: Cause) -> None:
        deaths = job.deaths.setdefault(part, Deaths())
        deaths.add(cause)
        source = job.source
        if deaths.too_many and deaths.in_vain is not None:
            raise no_row_error(source, job.segment, deaths.in_vain, deaths.total)
        if deaths.too_many:
            raise unit_error(source, job.segment, part, how, deaths.total)

    # --- the hunt for a row that ends its worker ----------------------------------------------

    def _died_at_work(self, worker: Worker, job: SegmentJob, how: str, cause: Cause) -> None:
        doing = worker.doing
        deaths = job.deaths.setdefault(doing.part, Deaths())
        may_be_row = doing.step == "encode" and doing.rows > 0 and cause != "outside"
        if not may_be_row or deaths.in_vain is not None or deaths.total + 1 < MAX_DEATHS:
            self._count_death(job, doing.part, how, cause)
            return
        deaths.add(cause)
        first, stop = doing.first_row, doing.first_row + doing.rows
        may_check = self.job.encoder_check and self.job.encoder != "reference"
        job.hunt = Hunt(doing.part, first, stop, how, may_check=may_check)
        name = job.source.name
        self.observer.note(
            f"{name}: {deaths.total} workers died on unit {job.segment.number}.{doing.part}; its "
            f"rows under way, {doing.rows} of them, are tried one by one"
        )

    def _died_probing(self, worker: Worker, job: SegmentJob, cause: Cause) -> None:
        hunt, source = job.hunt, job.source
        assert hunt is not None
        if worker.doing.step == "encode" and cause != "outside":
            hunt.died(worker.doing.first_row, fault_of(worker), cause)
        else:
            others = hunt.other_deaths
            others.add(cause)
            if others.too_many:
                how = how_it_ended(worker)
                raise unit_error(source, job.segment, hunt.part, how, others.total)
        self._go_on_hunting(job)

    def _go_on_hunting(self, job: SegmentJob) -> None:
        """The next probe; or the work itself, now that the rows to set aside are known.

        Where bad rows stop the run, the worker that meets the first of them says where it is.
        """
        hunt, source = job.hunt, job.source
        assert hunt is not None
        found = job.found.get(hunt.part, 0) + len(hunt.found)
        if found > MAX_ASIDE:
            raise too_many_error(source, job.segment, hunt)
        if hunt.exhausted or (hunt.found and self.run_settings.on_bad_row == "stop"):
            deaths = job.deaths[hunt.part]
            if hunt.found:
                deaths.faults, deaths.kills = (
                    MAX_DEATHS - 1,
                    0,
                )  # known to be bad: one more suffices
            else:  # it may have been an accident: the unit gets another chance
                deaths.in_vain, deaths.max_faults = hunt, deaths.faults + 1
            job.aside.update(hunt.found)
            job.found[hunt.part] = found
            job.hunt = None
            self.observer.note(
                f"{source.name}: rows that end their worker: {len(hunt.found)} found"
            )
        heapq.heappush(self.retry, job.key)

    def _look_for_stuck(self, now: float) -> None:
        for worker in list(self.workers):
            if worker.killed_because and now - worker.killed_at > UNKILLABLE_SECONDS:
                self._give_up(worker)
                continue
            state, worker.resident = process_state(worker.process.pid, worker.resident)
            if state != "T":
                worker.stopped_since = None
            elif worker.stopped_since is None:
                worker.stopped_since = now
            elif now - worker.stopped_since > STOPPED_SECONDS:
                self._kill(worker, STOPPED)
                continue
            busy = worker.job is not None or not worker.ready or bool(worker.placing)
            patience = worker.patience(self.run_settings.stuck_seconds)
            if busy and now - worker.heard > patience:
                self._kill(worker, f"{HUNG} {now - worker.heard:.0f} s")

    def _kill(self, worker: Worker, why: str) -> None:
        if not worker.killed_because:
            worker.killed_because, worker.killed_at = why, time.monotonic()
        worker.process.kill()

    def _give_up(self, worker: Worker) -> None:
        """The kernel does not end a process that waits for a dead disk. If that one ever writes,
        it writes the same bytes to the same place."""
        worker.killed_because += " and cannot be ended"
        forget_process(worker.process)
        self._bury(worker)

    def _forgive(self, now: float) -> None:
        for worker in self.workers:
            worker.heard = now
            worker.stopped_since = None

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.send(Stop())
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))

    def _kill_workers(self) -> None:
        for worker in self.workers:
            if worker.process.is_alive():
                worker.process.kill()
        for worker in self.workers:
            reap(worker)
            self._add_stats(worker)
        self.workers.clear()

    def _add_stats(self, worker: Worker) -> None:
        for key, value in worker.stats.items():
            self.stats[key] = self.stats.get(key, 0) + value
