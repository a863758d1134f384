"""`--workers 0`: everything in this process, in order. For debuggers and notebooks."""

from __future__ import annotations

import contextlib
import time
from collections import deque

from tokenmill.engines import events, messages
from tokenmill.engines.loop import WorkerLoop
from tokenmill.engines.run import Run

WORKER = 0  # the number of the only one
WAIT_SECONDS = 0.05


def run_inline(run: Run) -> None:
    """A worker's loop, with the engine itself as its channel."""
    worker = run.open_worker()
    run.log.add(events.WorkersAtWork(1))
    run.dispatch.joined(WORKER)
    with contextlib.closing(worker):
        WorkerLoop(_DirectChannel(run), spill=None).run(worker)


class _DirectChannel:
    """A message is handled when it is sent; the next one is made when it is asked for."""

    def __init__(self, run: Run) -> None:
        self.run, self.dispatch = run, run.dispatch
        self._orders: deque[messages.ToWorker] = deque()

    def poll(self) -> bool:
        self.run.keep_up()
        self._orders.extend(order for _, order in self.dispatch.orders())
        if self.dispatch.finished and not self._orders:
            self._orders.append(messages.Stop())
        return bool(self._orders)

    def receive(self) -> bytes:
        self.run.report()
        while not self.poll():  # the next input is being downloaded
            time.sleep(WAIT_SECONDS)
            self.run.report()
        return messages.encode(self._orders.popleft())

    def send(self, message: bytes) -> None:
        self.dispatch.received(WORKER, messages.decode_report(message))
