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
from collections.abc import Iterator
from typing import Any

from tokenmill.amounts import show_bytes
from tokenmill.engines import messages
from tokenmill.engines.hunt import Cause, WorkerEnd
from tokenmill.engines.messages import Activity
from tokenmill.system.limits import memory_allowed
from tokenmill.system.proc import available_memory, killed_for_memory, oom_kills, signal_name

STOPPED_SECONDS = 3.0  # a process in the state "stopped" for so long is replaced
# A batch of so many bytes may take `stuck_seconds` (60 s), a larger one in proportion: 50 times
# what the reference encoder needs at its slowest, 5 MB/s.
PATIENT_BYTES = 6e6
ROW_SECONDS = 2.0  # a row that is tried alone may always take so long
CAUSES: dict[int, Cause] = {  # of an end by a signal; by any other it is a fault
    signal.SIGKILL: "kill",
    **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT), "outside"),
}
UNSEEN = 255  # the exit code that multiprocessing gives a worker whose fork server ended too
STOPPED = "was stopped (SIGSTOP) and not continued"


class Worker:
    def __init__(self, number: int, process: Any, pipe: Any) -> None:
        self.number = number  # as Dispatch knows it
        self.process = process
        self.pipe = pipe
        self.doing = Activity("read", 0)
        self.searching = False  # for a row that ends its worker
        self.batch_bytes = 0
        self.heard = time.monotonic()
        self.stopped_since: float | None = None
        self.resident = 0
        self.killed_because = ""
        self.killed_at = 0.0
        self.hung_up = False
        self.oom_kills = oom_kills()  # of the kernel, when it was started

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

    def order(self, message: messages.ToWorker) -> None:
        if not isinstance(message, messages.Place):
            self.searching = isinstance(message, messages.TryRows)
            self.doing, self.batch_bytes = Activity("read", 0), 0
        self.heard = time.monotonic()  # the silence of an idle worker counts from here
        self.send(message)

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
    if cause != "kill":
        return WorkerEnd(f"was ended by {name}{used}", cause, f"ended its worker by {name}")
    # The fault is said of a row that was alone with its worker, again and again, and is part of
    # the manifest: it holds no number of this run.
    fault = f"ended its worker by {name} (probably by the out-of-memory killer)"
    return WorkerEnd(f"was ended by {name}, {_killer(worker)}", cause, fault)


def _killer(worker: Worker) -> str:
    """Who sent a worker SIGKILL. Its memory is free again by now: before, there was less."""
    now = oom_kills()
    kills = max(now[who] - worker.oom_kills[who] for who in now)
    available = available_memory()
    if available >= 0:
        available = max(0, available - worker.resident)
    return killed_for_memory(worker.resident, available, memory_allowed(), kills)[1]


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
