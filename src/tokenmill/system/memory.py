"""The memory of a run: how workers divide it, and what a worker may hold whole.

Text passes in small batches, so most inputs need no room at all. Some things are read or encoded
in one piece, however large: a page of a parquet file, a compressed record batch, a document that
may not be cut. What these take is estimated before they are touched, and where a worker's share
does not hold it, the run stops with the `--memory` that does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from tokenmill.amounts import show_bytes
from tokenmill.errors import TooLargeError, UsageError, warning
from tokenmill.system.limits import available_cores, memory_allowed

# What the parts need, measured as PSS (docs/log.md): the coordinator and the fork server with its
# own copy of the encoders, and a worker with its encoder, one batch and one unit.
COORDINATOR_BYTES = 300_000_000
WORKER_MIN_BYTES = 350_000_000
WORKER_FLOOR_BYTES = 200_000_000  # without what it must hold whole
WORKER_BYTES = 500_000_000
MEMORY_BASE_BYTES = 500_000_000

LONG_WORD_BYTES = 1 << 20  # what the encoder takes for shorter ones is in every worker's share
STEP_BYTES = 10_000_000  # the memory that is asked for is rounded up to this

# Measured, in bytes of memory for a byte of text (docs/log.md).
PARQUET_FACTOR = 2  # a page as decompressed, and its largest value once more
READ_FACTOR = 2  # a document as read, and a copy of it
# A JSON line, its text as Python holds it (4 bytes per letter at worst), and as UTF-8.
LINE_FACTOR = 6
# Encoding: the text, its ids and tokens; at worst there is one for every byte.
WORDS_FACTOR = 14
UNBROKEN_FACTOR = 30  # a text without white space is one word to most encoders


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers the memory allows, and what each may use."""

    workers: int
    wanted: int  # workers there would be with more memory
    memory: int
    worker_bytes: int
    note: str = ""

    @property
    def share(self) -> MemoryShare:
        """What a worker may hold whole."""
        return MemoryShare(self.worker_bytes, self.wanted)


def fit_budget(workers: int | None, memory: int | None) -> Budget:
    """Workers and memory that agree with each other; fewer workers when memory is short."""
    wanted = available_cores() if workers is None else workers
    if wanted < 0:
        raise UsageError(f"--workers {wanted}: must be 0 or more")
    processes = max(1, wanted)
    if memory is None:
        memory = min(MEMORY_BASE_BYTES + WORKER_BYTES * processes, memory_allowed() // 2)
    minimum = COORDINATOR_BYTES + WORKER_MIN_BYTES
    if memory < minimum:
        raise UsageError(
            f"--memory {memory // 10**6}MB is below the minimum of {minimum // 10**6}MB",
            hint=f"give --memory {minimum // 10**6}MB or more",
        )
    fits = max(1, (memory - COORDINATOR_BYTES) // WORKER_MIN_BYTES)
    note = warning(
        f"{fits} workers instead of {processes}: --memory {memory // 10**6}MB holds no more "
        f"(each needs {show_bytes(WORKER_MIN_BYTES)})"
    )
    return Budget(
        workers=min(wanted, fits),
        wanted=wanted,
        memory=memory,
        worker_bytes=worker_share(memory, min(processes, fits)),
        note=note if processes > fits else "",
    )


def worker_share(memory: int, workers: int) -> int:
    """What each of so many workers may use."""
    return (memory - COORDINATOR_BYTES) // max(1, workers)


@dataclasses.dataclass(eq=False)
class MemoryShare:
    """A worker's share of the memory; the default one has no limit."""

    share: int = 0
    workers: int = 1  # as many as there would be with more memory
    whole_factor: int = WORDS_FACTOR  # of a document that may not be cut
    unbroken_factor: int = UNBROKEN_FACTOR  # of a word in it, beside that
    relieve: Callable[[int], None] | None = None  # frees memory for so many bytes
    held: int = 0  # what is being read takes so much already

    def leave(self) -> None:
        """What was read last is not held any more."""
        self.held = 0

    def most(self, factor: int) -> int:
        """The most bytes that may be held whole where each takes `factor` bytes."""
        if not self.share:
            return 1 << 62
        return max(0, self.share - WORKER_FLOOR_BYTES) // factor

    def whole_need(self, size: int, word: int = 0) -> int:
        """What it takes to encode so much text at once, its longest word being that long."""
        unbroken = self.unbroken_factor * word if word > LONG_WORD_BYTES else 0
        return self.whole_factor * size + unbroken

    def take(self, need: int, where: str, what: str, *, held: int | None = None) -> None:
        """Make room for `need` bytes; refuse where there can be none.

        `where` and `what` say which thing it is, and how large. It counts as held from now on,
        or as much of it as is held while documents are encoded.
        """
        if not self.share:
            return
        if need > self.most(1):
            raise self._refusal(need, where, what)
        self.held = need if held is None else held
        if self.relieve is not None:
            self.relieve(need)

    def _refusal(self, need: int, where: str, what: str) -> TooLargeError:
        hint = f"run the same command with --memory {memory_for(need, self.workers) // 10**6}MB"
        if self.workers > 1:
            hint += f", or with --workers 1 --memory {memory_for(need, 1) // 10**6}MB"
        return TooLargeError(
            f"{where}: {what}; that takes {show_bytes(need)} of memory, and a worker has "
            f"{show_bytes(self.most(1))} for it",
            hint=f"{hint}; what is done so far is kept",
        )


def memory_for(need: int, workers: int) -> int:
    """The `--memory` with which each of so many workers has that much room."""
    each = max(WORKER_MIN_BYTES, WORKER_FLOOR_BYTES + need)
    least = COORDINATOR_BYTES + max(1, workers) * each
    return -(-least // STEP_BYTES) * STEP_BYTES


NO_LIMIT = MemoryShare()
