"""Which file is made next, and how often workers died on it. No I/O.

A file is complete or not there: one that its worker did not finish is made again by another.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from tokenmill.engines.hunt import DeathCount, WorkerEnd
from tokenmill.errors import WorkerError
from tokenmill.output.file_maker import FileTask


class FilesToMake:
    def __init__(self, tasks: Iterable[FileTask]) -> None:
        """`tasks`: in the order in which they are handed out."""
        self._waiting = deque(tasks)
        self._left = len(self._waiting)
        self._deaths: defaultdict[str, DeathCount] = defaultdict(DeathCount)  # by name

    @property
    def finished(self) -> bool:
        return not self._left

    def next(self) -> FileTask | None:
        """The next file that needs a worker."""
        return self._waiting.popleft() if self._waiting else None

    def made(self) -> None:
        self._left -= 1

    def again(self, task: FileTask) -> None:
        """The worker that had it is gone: the next free one gets it."""
        self._waiting.appendleft(task)

    def died(self, task: FileTask, end: WorkerEnd) -> None:
        """A worker died while it made this file."""
        deaths = self._deaths[task.name]
        deaths.add(end.cause)
        if deaths.too_many:
            raise WorkerError(
                f"{task.working}: {deaths.total} workers died while they made it; the last one "
                f"{end.how}",
                hint="run the same command again: what is made so far is kept; --workers 0 shows "
                "what happens",
            )
