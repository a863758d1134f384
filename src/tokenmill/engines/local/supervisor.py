"""Run the plan on this machine: worker processes under a supervisor of our own.

A pool of the standard library loses a killed worker's task and waits for ever, or gives up all
remaining work. Here the supervisor waits on the workers' pipes and on their deaths, gives a lost
unit to a fresh worker, and after the second death on one unit searches for the fatal row.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from multiprocessing import connection as mp_connection
from multiprocessing import resource_tracker
from typing import Any

import msgspec

from tokenmill.engines import events, messages
from tokenmill.engines.local.processes import (
    STOPPED,
    STOPPED_SECONDS,
    Worker,
    main_module_hidden,
    reap,
    worker_end,
)
from tokenmill.engines.local.worker import run_worker
from tokenmill.engines.run import Run
from tokenmill.errors import UsageError, WorkerError, from_wire
from tokenmill.system.buckets.environment import bucket_variables
from tokenmill.system.interrupts import signals_held
from tokenmill.system.proc import read_stat

TICK_SECONDS = 0.2
STOP_SECONDS = 2.0
START_SECONDS = 5.0
UNKILLABLE_SECONDS = 5.0


class LocalEngine:
    def __init__(self, run: Run) -> None:
        self.run, self.settings, self.dispatch = run, run.settings, run.dispatch
        self.context: Any = multiprocessing.get_context(run.settings.start_method)
        self.workers: dict[int, Worker] = {}
        self.started = 0  # workers, ever
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
        for number, order in self.dispatch.orders():
            self.workers[number].order(order)
        return self.dispatch.finished

    def _wait(self) -> None:
        handles = {worker.pipe: worker for worker in self.workers.values()}
        sentinels = [worker.process.sentinel for worker in self.workers.values()]
        ready = mp_connection.wait([*handles, *sentinels], TICK_SECONDS)
        for handle in ready:
            if handle in handles:
                self._receive(handles[handle])
        for worker in list(self.workers.values()):
            if worker.hung_up or worker.process.sentinel in ready:
                self._replace(worker)

    def _receive(self, worker: Worker) -> None:
        """Everything in the pipe; a dead worker's last messages count too."""
        try:
            while worker.pipe.poll(0):
                self._handle(worker, messages.decode_report(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            worker.hung_up = True

    def _handle(self, worker: Worker, report: messages.Report) -> None:
        if not isinstance(report.message, messages.UnitsSynced):  # a thread's: no sign of progress
            worker.heard = time.monotonic()
        if isinstance(report.message, messages.Activity):
            worker.note(report.message)
        elif isinstance(report.message, messages.Ready):
            self.run.seconds_starting = self.run.seconds_starting or worker.heard - self.began
        elif isinstance(report.message, messages.Failure) and report.message.step == "sync":
            self.run.sync_failed(from_wire(report.message.error))
        self.dispatch.received(worker.number, report)

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
        inherited = [*(worker.pipe for worker in self.workers.values()), here] if forked else []
        job = msgspec.msgpack.encode(self.run.job)
        given = there, job, inherited, bucket_variables()
        process = self.context.Process(target=run_worker, args=given, daemon=True)
        if not forked:
            resource_tracker.ensure_running()  # its start would end the hold
        with main_module_hidden(), warnings.catch_warnings(), signals_held():
            # fork from a process with threads warns since 3.12; the user chose it
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        self.started += 1
        self.workers[self.started] = Worker(self.started, process, here)
        self.dispatch.joined(self.started)
        self.run.log.add(events.WorkersAtWork(len(self.workers)))

    def _replace(self, worker: Worker) -> None:
        """A worker has ended: read its last messages, give its units to others, replace it."""
        self.run.check_interrupt()  # the signal that stops us may have stopped it too
        self._receive(worker)
        del self.workers[worker.number]
        reap(worker)
        for unit in self.dispatch.died(worker.number, worker_end(worker)):
            self.run.forget_spilled(unit, worker.process.pid)
        self._start_worker()

    # --- hung and stopped workers, and the end -----------------------------------------------

    def _look_for_stuck(self, now: float) -> None:
        for worker in list(self.workers.values()):
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
            busy = self.dispatch.workers[worker.number].busy
            if busy and silent > worker.patience(self.settings.stuck_seconds):
                worker.kill(f"did nothing for {silent:.0f} s")

    def _give_up(self, worker: Worker) -> None:
        """The kernel does not end a process that waits for a dead disk. If that process ever
        writes, it writes the same bytes to the same place. Our exit does not wait for it."""
        worker.killed_because += " and cannot be ended"
        getattr(multiprocessing.process, "_children", set()).discard(worker.process)
        self._replace(worker)

    def _forgive(self, now: float) -> None:
        for worker in self.workers.values():
            worker.heard = now
            worker.stopped_since = None

    def _stop_workers(self) -> None:
        for worker in self.workers.values():
            worker.send(messages.Stop())
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))

    def _kill_workers(self) -> None:
        for worker in self.workers.values():
            if worker.process.is_alive():
                worker.process.kill()
        for worker in self.workers.values():
            reap(worker)
        self.workers.clear()
