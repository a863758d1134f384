"""An actor: it holds one worker process, passes orders to it, and collects its reports. Beside
that it looks at input files for the driver.

The work is done in a process of its own. So a row that ends its worker ends only that process, and
the actor still says what it was doing and how it ended. An actor itself ends with its node.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import platform
import threading
import time
from collections import deque
from multiprocessing import connection as mp_connection
from typing import Any

import msgspec

from tokenmill.engines import messages
from tokenmill.engines.hunt import WorkerEnd
from tokenmill.engines.local.processes import Worker, main_module_hidden, reap, worker_end
from tokenmill.engines.local.worker import run_worker
from tokenmill.engines.ray.cluster import versions
from tokenmill.engines.ray.requests import answer
from tokenmill.inputs.segments import UnitId
from tokenmill.system.buckets.environment import bucket_variables

LOOK_SECONDS = 0.2


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What an actor has to tell: reports of its worker in order, and the worker's end."""

    reports: list[bytes]
    end: WorkerEnd | None = None


class WorkerHolder:
    """One worker process, as an actor."""

    def __init__(self) -> None:
        self._context: Any = multiprocessing.get_context("spawn")
        self._change = threading.Condition()
        self._worker: Worker | None = None
        self._job = b""
        self._stuck_seconds = 60.0
        # What the reader's thread has found; read and changed only while `_change` is held.
        self._reports: list[bytes] = []
        self._pending = 0  # orders that are not done
        self._placing: set[UnitId] = set()  # of these: units that are to be placed
        self._queue: deque[messages.ToWorker] = deque()  # and tasks that the worker has not yet
        self._at_work = True  # the worker has a task, or is not ready
        self._urgent = False  # something is to be told at once
        self._ended = False

    def greet(self) -> dict[str, Any]:
        """Says where it is, and what it has: the driver compares that before it gives out work."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return {"host": platform.node(), "node": node, "versions": versions()}

    def look(self, request: bytes) -> bytes:
        """Look at input files, for the driver. In a thread beside those of the worker."""
        return answer(request)

    def begin(self, job: bytes, stuck_seconds: float) -> dict[str, Any]:
        """Start a worker for a job; one of an earlier job ends."""
        self.stop()
        self._job, self._stuck_seconds = job, stuck_seconds
        self._start()
        return self.greet()

    def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.process.kill()
            reap(worker)

    def exchange(self, orders: list[bytes], few: int, seconds: float) -> bytes:
        """Pass on orders; returns when something urgent is to be told, when at most `few` orders
        are left to do, or after some time."""
        if self._worker is None:
            self._start()
        worker = self._worker
        assert worker is not None
        for content in orders:
            order = messages.decode_to_worker(content)
            with self._change:
                self._pending += 1
                if isinstance(order, messages.Place):
                    self._placing.add(order.unit)
                    worker.order(order)
                else:
                    self._queue.append(order)
                    self._feed(worker)
        deadline = time.monotonic() + seconds
        with self._change:
            while not (self._urgent or self._ended or self._pending <= few):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._change.wait(min(left, LOOK_SECONDS))
                self._look_for_stuck(worker)
            reports, self._reports, self._urgent = self._reports, [], False
            ended = self._ended
        end = None
        if ended:
            reap(worker)
            end, self._worker = worker_end(worker), None
        return msgspec.msgpack.encode(Reply(reports, end))

    # --- the worker --------------------------------------------------------------------------

    def _start(self) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=run_worker, args=(there, self._job, [], bucket_variables()), daemon=True
        )
        with main_module_hidden():
            process.start()
        there.close()
        self._reports, self._pending, self._urgent, self._ended = [], 1, False, False
        self._placing, self._queue, self._at_work = set(), deque(), True
        self._worker = Worker(0, process, here)
        threading.Thread(target=self._read, args=(self._worker,), daemon=True).start()

    def _read(self, worker: Worker) -> None:
        while True:
            ready = mp_connection.wait([worker.pipe, worker.process.sentinel])
            try:
                while worker.pipe.poll(0):
                    self._note(worker, worker.pipe.recv_bytes())
            except (EOFError, OSError):
                break
            if worker.process.sentinel in ready:
                with contextlib.suppress(EOFError, OSError):
                    while worker.pipe.poll(0):
                        self._note(worker, worker.pipe.recv_bytes())
                break
        with self._change:
            if worker is self._worker:
                self._ended = True
            self._change.notify_all()

    def _note(self, worker: Worker, content: bytes) -> None:
        message = messages.decode_report(content).message
        with self._change:
            if not isinstance(message, messages.UnitsSynced):
                worker.heard = time.monotonic()
            match message:
                case messages.Activity():
                    worker.note(message)
                    if len(self._reports) and _is_activity(self._reports[-1]):
                        self._reports[-1] = content  # only the last one matters
                        return
                case messages.Ready() | messages.TaskDone() | messages.FileMade():
                    self._pending -= 1
                    self._at_work = False
                    self._feed(worker)
                case messages.UnitWritten(record=record) if record.unit in self._placing:
                    self._placing.discard(record.unit)
                    self._pending -= 1
                case messages.UnitSummary():
                    self._urgent = True
                case messages.Failure():
                    self._urgent = True
                    if message.step == "task":
                        self._pending -= 1
                        self._at_work = False
                        self._feed(worker)
            self._reports.append(content)
            self._change.notify_all()

    def _feed(self, worker: Worker) -> None:
        """One task at a time: a worker that found the next one in its pipe while it waits for a
        place would begin that inside of the first."""
        if self._queue and not self._at_work:
            self._at_work = True
            worker.order(self._queue.popleft())

    def _look_for_stuck(self, worker: Worker) -> None:
        silent = time.monotonic() - worker.heard
        if self._pending and silent > worker.patience(self._stuck_seconds):
            worker.kill(f"did nothing for {silent:.0f} s")


def _is_activity(content: bytes) -> bool:
    message = messages.decode_report(content).message
    return isinstance(message, messages.Activity) and message.step != "make"
