"""Run the plan on this machine: worker processes under a supervisor of our own.

A pool of the standard library loses a killed worker's task and waits for ever, or gives up all
remaining work. Here the supervisor waits on the workers' pipes and on their deaths, gives a lost
unit to a fresh worker, and after the second death on one unit says which file and which rows.
"""

from __future__ import annotations

import contextlib
import heapq
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import connection as mp_connection
from typing import Any

import msgspec

from tokenmill.config import RunSettings
from tokenmill.engines import messages
from tokenmill.engines.books import Books
from tokenmill.engines.frontier import SegmentJob
from tokenmill.engines.messages import (
    Encoded,
    Failed,
    Place,
    Progress,
    Ready,
    SegmentDone,
    Stop,
    Work,
    Written,
)
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.engines.unit import Job
from tokenmill.errors import UsageError, WorkerError, from_wire
from tokenmill.manifest import State
from tokenmill.plan import Plan, UnitId

TICK_SECONDS = 0.2
STOPPED_SECONDS = 3.0  # a worker in the state "stopped" for so long is replaced
# A batch of so many bytes may take `stuck_seconds` (60 s), a larger one in proportion: 50 times
# what the reference encoder needs at its slowest, 5 MB/s.
PATIENT_BYTES = 6e6
MAX_DEATHS = 2
STOP_SECONDS = 2.0
START_SECONDS = 5.0
MAX_PLACING = 16


class _Worker:
    """A worker process as the supervisor sees it."""

    def __init__(self, process: Any, pipe: Any) -> None:
        self.process = process
        self.pipe = pipe
        self.job: SegmentJob | None = None
        self.ready = False
        self.held: set[UnitId] = set()
        self.part = 0
        self.batch_bytes = 0
        self.heard = time.monotonic()
        self.stopped_since: float | None = None
        self.resident = 0
        self.killed_because = ""
        self.hung_up = False
        self.stats: dict[str, int] = {}
        self._to_place: deque[Place] = deque()
        self.placing: deque[UnitId] = deque()  # sent and not yet written, in order

    def place(self, unit: UnitId, before: State) -> None:
        if not self.placing:
            self.heard = time.monotonic()  # an idle worker's silence counts from here
        self._to_place.append(Place(unit, before))
        self._send_places()

    def placed(self, unit: UnitId) -> None:
        self.held.discard(unit)
        self.placing.remove(unit)
        self._send_places()

    def _send_places(self) -> None:
        # Few at a time: with both pipes full, each side would wait for the other for ever.
        while self._to_place and len(self.placing) < MAX_PLACING:
            place = self._to_place.popleft()
            self.placing.append(place.unit)
            self.send(place)

    def send(self, message: messages.ToWorker) -> None:
        # A dead worker's pipe is broken; its death is handled when its sentinel fires.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(messages.encode(message))


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
        self.workers: list[_Worker] = []
        self.jobs: dict[tuple[int, int], SegmentJob] = {}
        self.retry: list[tuple[int, int]] = []
        self.stats: dict[str, int] = {}
        self.failed_starts = 0
        self.exhausted = False

    # --- the loop ----------------------------------------------------------------------------

    def run(self, jobs: Iterator[SegmentJob]) -> dict[str, int]:
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

    def _finished(self, jobs: Iterator[SegmentJob]) -> bool:
        """Hand out what can be handed out; True when nothing is left to do or to wait for."""
        for worker in self.workers:
            if worker.ready and worker.job is None:
                job = self._next_job(jobs)
                if job is None:
                    break
                worker.job, worker.part, worker.batch_bytes = job, 0, 0
                worker.heard = time.monotonic()
                source = self.plan.sources[job.segment.source]
                worker.send(Work(source, job.segment, sorted(job.written)))
        self._place_ready()
        return self.exhausted and not self.jobs and self.books.frontier.idle

    def _next_job(self, jobs: Iterator[SegmentJob]) -> SegmentJob | None:
        while self.retry:
            job = self.jobs.get(heapq.heappop(self.retry))
            if job is not None:
                return job
        while not self.exhausted:
            job = next(jobs, None)
            if job is None:
                self.exhausted = True
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

    def _receive(self, worker: _Worker) -> None:
        """Everything in the pipe; a dead worker's last words count too."""
        try:
            while worker.pipe.poll(0):
                self._handle(worker, messages.decode_from_worker(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            worker.hung_up = True

    def _handle(self, worker: _Worker, message: messages.FromWorker) -> None:
        worker.heard = time.monotonic()
        match message:
            case Progress():
                worker.part, worker.batch_bytes = message.part, message.size
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
            case Ready():
                worker.ready = True
                self.failed_starts = 0
            case Failed():
                raise from_wire(message.error)

    def _written(self, worker: _Worker, message: Written) -> None:
        record = message.record
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
                # The fork server itself was killed: once its end is known another is started.
                if time.monotonic() > deadline:
                    raise WorkerError(f"no worker can be started: {error!r}") from None
                time.sleep(0.05)

    def _launch(self) -> None:
        here, there = self.context.Pipe()
        inherited = [w.pipe for w in self.workers] + [here]
        process = self.context.Process(
            target=_worker_main,
            args=(
                there,
                msgspec.msgpack.encode(self.job),
                inherited if self.run_settings.start_method == "fork" else [],
            ),
            daemon=True,
        )
        forkserver = self.run_settings.start_method == "forkserver"
        watched = _fork_server_watched() if forkserver else contextlib.nullcontext()
        with watched, _main_module_hidden(), warnings.catch_warnings():
            # fork from a process with threads warns since 3.12; the user chose it
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        self.workers.append(_Worker(process, here))
        self.snapshot.workers = len(self.workers)

    def _bury(self, worker: _Worker) -> None:
        """A worker has ended: take its last words, give its units to others, replace it."""
        self._receive(worker)
        self.workers.remove(worker)
        _reap(worker)
        self._add_stats(worker)
        self.snapshot.retries += 1
        how = worker.killed_because or _how_it_ended(worker)
        if not worker.ready:
            self.failed_starts += 1
            if self.failed_starts >= 3:
                raise WorkerError(
                    f"workers do not start: {how}", hint="try --workers 0 to see the reason"
                )
        lost = {(unit.source, unit.segment) for unit in worker.held}
        for unit in worker.held:
            self.books.frontier.lost(unit)
        if worker.job is not None:
            lost.add(worker.job.key)
            self._count_death(worker.job, worker.part, how)
        elif worker.placing:
            unit = worker.placing[0]
            self._count_death(self.jobs[(unit.source, unit.segment)], unit.part, how)
        for key in lost:
            heapq.heappush(self.retry, key)
        self.observer.note(f"a worker {how}; replaced, its work is done again")
        self._start_worker()

    def _count_death(self, job: SegmentJob, part: int, how: str) -> None:
        job.deaths[part] = job.deaths.get(part, 0) + 1
        if job.deaths[part] >= MAX_DEATHS:
            segment = job.segment
            source = self.plan.sources[segment.source]
            what = {"parquet": "row groups", "arrow": "record batches"}.get(source.kind, "bytes")
            raise WorkerError(
                f"{source.name}: a worker died twice on unit {segment.number}.{part} "
                f"({what} {segment.start} to {segment.stop - 1}): it {how}",
                hint="everything else done so far is kept; the same command resumes. More memory "
                "(--memory), fewer --workers or --encoder reference may help",
            )

    def _look_for_stuck(self, now: float) -> None:
        for worker in list(self.workers):
            state, worker.resident = _process_state(worker.process.pid, worker.resident)
            if state != "T":
                worker.stopped_since = None
            elif worker.stopped_since is None:
                worker.stopped_since = now
            elif now - worker.stopped_since > STOPPED_SECONDS:
                self._kill(worker, "was stopped (SIGSTOP) and not continued")
                continue
            busy = worker.job is not None or not worker.ready or bool(worker.placing)
            patience = self.run_settings.stuck_seconds * max(1, worker.batch_bytes / PATIENT_BYTES)
            if busy and now - worker.heard > patience:
                self._kill(worker, f"did nothing for {now - worker.heard:.0f} s")

    def _kill(self, worker: _Worker, why: str) -> None:
        worker.killed_because = why
        worker.process.kill()

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
            _reap(worker)
            self._add_stats(worker)
        self.workers.clear()

    def _add_stats(self, worker: _Worker) -> None:
        for key, value in worker.stats.items():
            self.stats[key] = self.stats.get(key, 0) + value


def _reap(worker: _Worker) -> None:
    """Wait for a worker's end, not for ever: the fork server that tells of it may be gone too."""
    worker.process.join(1.0)
    if worker.process.exitcode is None:
        with contextlib.suppress(OSError):
            os.kill(worker.process.pid, signal.SIGKILL)
        _end_stopped_fork_server()
        worker.process.join(1.0)
    worker.pipe.close()


def _end_stopped_fork_server() -> None:
    """It would never tell of a worker's end, neither to us nor to the interpreter's own exit."""
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None and _process_state(pid, 0)[0] == "T":
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _fork_server_watched() -> Iterator[None]:
    """While a worker is asked for: end a fork server that is stopped, or we wait for ever.

    Its end breaks the connection, the start fails, and the next attempt makes another server.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(STOPPED_SECONDS):
            _end_stopped_fork_server()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _worker_main(*args: Any) -> None:
    """Imported by name in the child, so that a spawned one imports no more than it needs."""
    from tokenmill.engines import worker

    worker.main(*args)


def _how_it_ended(worker: _Worker) -> str:
    code = worker.process.exitcode
    used = f", it used {worker.resident / 1e9:.1f} GB" if worker.resident else ""
    if code is None or code >= 0:
        return f"ended with exit code {code}{used}"
    name = signal.Signals(-code).name
    cause = " (probably by the out-of-memory killer)" if name == "SIGKILL" else ""
    return f"was ended by {name}{cause}{used}"


def _process_state(pid: int, resident: int) -> tuple[str, int]:
    """The kernel's letter for a process ('T' is stopped) and its resident bytes."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[21]) * os.sysconf("SC_PAGE_SIZE") or resident
    except (OSError, IndexError, ValueError):
        return "", resident


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep spawn and forkserver from importing the caller's script in every worker.

    A worker needs nothing of it, and a script without an `if __name__ == "__main__"` guard would
    start itself again in each.
    """
    with _main_lock:  # or two threads would put back each other's stand-in
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


_main_lock = threading.Lock()
