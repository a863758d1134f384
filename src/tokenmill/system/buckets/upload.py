"""One upload in parts: the caller's thread makes the parts, another one sends them.

The library may not be called from within an upload of its own, and what makes the parts may read
from the same bucket. So the two are apart, and few parts are in memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import xxhash

from tokenmill.system.buckets.client import pause_seconds
from tokenmill.system.buckets.faults import passes
from tokenmill.system.disk import Buffer

WAITING = 1  # buffers that wait to be sent; each of at most 8 MB
TICK_SECONDS = 0.2


class PartsFailed(BaseException):
    """What gives the parts of a file has failed, not the store."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _StopError(Exception):
    """Ends the upload, which is aborted then."""


class Upload:
    """Sends what `send` is called with; `length` and `digest` are of all that was given to it."""

    def __init__(self, put: Callable[[Iterator[Buffer]], Any], begins: int = 1) -> None:
        """`begins`: how often it is begun, while nothing was sent. The library repeats a request
        that got no answer, but not one whose answer was cut off in its midst."""
        self._put, self._begins = put, begins
        self._begun = False
        self.all_taken = False  # it only had to be ended
        self._queue: queue.Queue[memoryview | type[_StopError] | None] = queue.Queue(WAITING)
        self._error: BaseException | None = None
        self.length, self._digest = 0, xxhash.xxh3_128()

    @property
    def digest(self) -> bytes:
        return bytes(self._digest.digest())

    def send(self, parts: Iterable[Buffer]) -> None:
        """Raises PartsFailed for an error of `parts`, else what the library raises."""
        thread = threading.Thread(target=self._run, name="upload", daemon=True)
        thread.start()
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                self.length += view.nbytes
                self._digest.update(view)
                if view.nbytes and not self._give(view, thread):
                    break
            else:
                self._give(None, thread)
        except BaseException as error:
            self._give(_StopError, thread)
            thread.join()
            raise PartsFailed(error) from None
        thread.join()
        if self._error is not None:
            raise self._error

    def _give(self, one: memoryview | type[_StopError] | None, thread: threading.Thread) -> bool:
        """False: nobody sends any more."""
        while thread.is_alive():
            try:
                self._queue.put(one, timeout=TICK_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def _run(self) -> None:
        for attempt in range(self._begins):
            if attempt:
                time.sleep(pause_seconds() * 2 ** (attempt - 1))
            self._error = None
            try:
                self._put(self._taken())
                return
            except BaseException as error:  # a panic of the library is no Exception
                self._error = error
                if self._begun or not passes(error):
                    return

    def _taken(self) -> Iterator[Buffer]:
        self._begun = True
        while (one := self._queue.get()) is not None:
            if isinstance(one, type):
                raise _StopError
            yield one
        self.all_taken = True
