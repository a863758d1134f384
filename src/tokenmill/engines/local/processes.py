"""A worker process as the supervisor sees it: its pipe, what it is doing, how it ended.

Also: starting processes, and waiting for their end, under every start method.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokenmill.amounts import show_bytes
from tokenmill.engines import messages
from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.hunt import Cause, FatalRowSearch
from tokenmill.engines.messages import Activity, Place
from tokenmill.inputs.segments import UnitId
from tokenmill.system.proc import signal_name
from tokenmill.tokens.counts import State

STOPPED_SECONDS = 3.0  # a process in the state "stopped" for so long is replaced
# A batch of so many bytes may take `stuck_seconds` (60 s), a larger one in proportion: 50 times
# what the reference encoder needs at its slowest, 5 MB/s.
PATIENT_BYTES = 6e6
ROW_SECONDS = 2.0  # a row that is tried alone may always take so long
MAX_PLACING = 16
CAUSES: dict[int, Cause] = {  # of an end by a signal; by any other it is a fault
    signal.SIGKILL: "kill",
    **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT), "outside"),
}
UNSEEN = 255  # the exit code that multiprocessing gives a worker whose fork server ended too
STOPPED = "was stopped (SIGSTOP) and not continued"


class Worker:
    def __init__(self, process: Any, pipe: Any) -> None:
        self.process = process
        self.pipe = pipe
        self.segment: SegmentProgress | None = None
        self.searching = False  # for a row of its segment that ends its worker
        self.ready = False
        self.held: set[UnitId] = set()  # encoded and not yet written
        self.doing = Activity("read", 0)
        self.batch_bytes = 0
        self.heard = time.monotonic()
        self.stopped_since: float | None = None
        self.resident = 0
        self.killed_because = ""
        self.killed_at = 0.0
        self.hung_up = False
        self.stats: dict[str, int] = {}
        self._to_place: deque[Place] = deque()
        self.placing: deque[UnitId] = deque()  # sent and not yet written, in order

    @property
    def busy(self) -> bool:
        return self.segment is not None or not self.ready or bool(self.placing)

    def begin(self, segment: SegmentProgress) -> None:
        self.segment, self.searching = segment, segment.search is not None
        self.doing, self.batch_bytes = Activity("read", 0), 0
        self.heard = time.monotonic()
        self.send(segment.task)

    def end_search(self) -> tuple[SegmentProgress, FatalRowSearch]:
        """The rows were tried, or this worker died trying them."""
        segment, self.segment, self.searching = self.segment, None, False
        assert segment is not None
        assert segment.search is not None
        return segment, segment.search

    def note(self, doing: Activity) -> None:
        self.doing = doing
        if doing.size:  # else a sign of life: it may still be busy with its last batch
            self.batch_bytes = doing.size

    def patience(self, stuck_seconds: float) -> float:
        """For how long this worker may be silent."""
        share = self.batch_bytes / PATIENT_BYTES
        if self.searching and self.doing.step == "encode":  # one row, in a unit known to be bad
            floor = min(stuck_seconds, max(ROW_SECONDS, stuck_seconds / 6))
            return max(floor, stuck_seconds * share)
        return stuck_seconds * max(1, share)

    def place(self, unit: UnitId, before: State) -> None:
        if not self.placing:
            self.heard = time.monotonic()  # an idle worker's silence counts from here
        self._to_place.append(Place(unit, before))
        self._send_places()

    def placed(self, unit: UnitId) -> None:
        self.doing = Activity("read", self.doing.part)
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

    def kill(self, why: str) -> None:
        if not self.killed_because:
            self.killed_because, self.killed_at = why, time.monotonic()
        self.process.kill()


def reap(worker: Worker) -> None:
    """Wait for a worker's end, but not for ever: the fork server that reports it may be gone."""
    worker.process.join(1.0)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join(1.0)
    worker.pipe.close()


class WorkerEnd(NamedTuple):
    """How a worker ended, in words, and whether its work may be the cause."""

    how: str
    cause: Cause
    fault: str  # without anything that differs from run to run: for the record of a row


def worker_end(worker: Worker) -> WorkerEnd:
    code, why = worker.process.exitcode, worker.killed_because
    if why:
        return WorkerEnd(why, "outside" if why.startswith(STOPPED) else "fault", "hung its worker")
    used = f", it used {show_bytes(worker.resident)}" if worker.resident else ""
    if code is None or code >= 0:
        fault = f"ended its worker with exit code {code}"
        if code == UNSEEN:
            how = "ended unseen (with the fork server that starts the workers, or with exit code "
            return WorkerEnd(f"{how}{UNSEEN})", "kill", fault)
        how = f"ended with exit code {code}{used}"
        return WorkerEnd(how, "kill" if code is None else "fault", fault)
    name, cause = signal_name(-code), CAUSES.get(-code, "fault")
    if cause == "kill":
        name += " (probably by the out-of-memory killer)"
    return WorkerEnd(f"was ended by {name}{used}", cause, f"ended its worker by {name}")


@contextlib.contextmanager
def main_module_hidden() -> Iterator[None]:
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
