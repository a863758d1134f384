"""A worker process as the supervisor sees it: its pipe, what it is at, how it ended.

With what it takes to start processes and to wait for their end under every start method.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from tokenmill.engines import messages
from tokenmill.engines.frontier import SegmentJob
from tokenmill.engines.hunt import Cause
from tokenmill.engines.messages import Place
from tokenmill.engines.unit import Doing
from tokenmill.manifest import State
from tokenmill.plan import UnitId

STOPPED_SECONDS = 3.0  # a process in the state "stopped" for so long is replaced
# A batch of so many bytes may take `stuck_seconds` (60 s), a larger one in proportion: 50 times
# what the reference encoder needs at its slowest, 5 MB/s.
PATIENT_BYTES = 6e6
PROBE_SECONDS = 2.0  # the least that a row may take which is tried alone
MAX_PLACING = 16
HUNG = "did nothing for"
FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
UNSEEN = 255  # what multiprocessing says of a worker whose fork server ended too
STOPPED = "was stopped (SIGSTOP) and not continued"


class Worker:
    """A worker process as the supervisor sees it."""

    def __init__(self, process: Any, pipe: Any) -> None:
        self.process = process
        self.pipe = pipe
        self.job: SegmentJob | None = None
        self.probing = False
        self.ready = False
        self.held: set[UnitId] = set()
        self.doing = Doing("read", 0)
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

    def begin(self, job: SegmentJob, message: messages.Work | messages.Probe) -> None:
        self.job, self.probing = job, isinstance(message, messages.Probe)
        self.doing, self.batch_bytes = Doing("read", 0), 0
        self.heard = time.monotonic()
        self.send(message)

    def note(self, doing: Doing) -> None:
        self.doing = doing
        if doing.size:  # else a sign of life: what it makes of its last batch may take as long
            self.batch_bytes = doing.size

    def patience(self, stuck_seconds: float) -> float:
        """For how long this worker may be silent."""
        share = self.batch_bytes / PATIENT_BYTES
        if self.probing and self.doing.step == "encode":  # one row, in a unit known to be bad
            floor = min(stuck_seconds, max(PROBE_SECONDS, stuck_seconds / 6))
            return max(floor, stuck_seconds * share)
        return stuck_seconds * max(1, share)

    def place(self, unit: UnitId, before: State) -> None:
        if not self.placing:
            self.heard = time.monotonic()  # an idle worker's silence counts from here
        self._to_place.append(Place(unit, before))
        self._send_places()

    def placed(self, unit: UnitId) -> None:
        self.doing = Doing("read", self.doing.part)
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


def reap(worker: Worker) -> None:
    """Wait for a worker's end, not for ever: the fork server that tells of it may be gone too."""
    worker.process.join(1.0)
    if worker.process.exitcode is None:
        with contextlib.suppress(OSError):
            os.kill(worker.process.pid, signal.SIGKILL)
        _end_stopped_fork_server()
        worker.process.join(1.0)
    worker.pipe.close()


def forget_process(process: Any) -> None:
    """The interpreter waits for its children when it exits; not for this one."""
    getattr(multiprocessing.process, "_children", set()).discard(process)


def _end_stopped_fork_server() -> None:
    """It would never tell of a worker's end, neither to us nor to the interpreter's own exit."""
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None and process_state(pid, 0)[0] == "T":
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def fork_server_watched() -> Iterator[None]:
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


def worker_main(*args: Any) -> None:
    """Imported by name in the child, so that a spawned one imports no more than it needs."""
    from tokenmill.engines import worker

    worker.main(*args)


def how_it_ended(worker: Worker) -> str:
    code = worker.process.exitcode
    if worker.killed_because:
        return worker.killed_because
    if code == UNSEEN:
        return "ended unseen (with the fork server that starts the workers, or with exit code 255)"
    used = f", it used {worker.resident / 1e9:.1f} GB" if worker.resident else ""
    if code is None or code >= 0:
        return f"ended with exit code {code}{used}"
    return f"was ended by {_signal_name(-code)}{used}"


def cause_of(worker: Worker) -> Cause:
    """Whether it may have been what it was at, or was certainly somebody else."""
    if worker.killed_because:
        return "outside" if worker.killed_because.startswith(STOPPED) else "fault"
    code = worker.process.exitcode
    if code in (None, UNSEEN, -signal.SIGKILL):
        return "kill"
    return "outside" if -code in FROM_OUTSIDE else "fault"


def fault_of(worker: Worker) -> str:
    """The same without anything that differs from run to run: for the record of a row."""
    code = worker.process.exitcode
    if worker.killed_because:
        return "hung its worker"
    if code is None or code >= 0:
        return f"ended its worker with exit code {code}"
    return f"ended its worker by {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
    return f"{name} (probably by the out-of-memory killer)" if name == "SIGKILL" else name


def process_state(pid: int, resident: int) -> tuple[str, int]:
    """The kernel's letter for a process ('T' is stopped) and its resident bytes."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[21]) * os.sysconf("SC_PAGE_SIZE") or resident
    except (OSError, IndexError, ValueError):
        return "", resident


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
