"""Room for what must be held whole: how much a worker has, what a thing takes, and the refusal.

Text passes in small batches, so most inputs need no room at all. Some things are read or encoded
in one piece, however large: a page of a parquet file, a compressed record batch, a document that
may not be cut. What these take is estimated before they are touched, and where a worker's share
does not hold it, the run stops with the `--memory` that does.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

from tokenmill.config import COORDINATOR_BYTES, WORKER_FLOOR_BYTES, WORKER_MIN_BYTES
from tokenmill.errors import TooLargeError

LONG_WORD_BYTES = 1 << 20  # what the encoder takes for shorter ones is in every worker's share
STEP_BYTES = 10_000_000  # the memory that is asked for is rounded up to this

# Measured, in bytes of memory for a byte of text (docs/log.md).
PARQUET_FACTOR = 2  # a page as decompressed, and its largest value once more
READ_FACTOR = 2  # a document as read, and a copy of it
# Encoding: the text, its ids and tokens; at worst there is one for every byte.
WORDS_FACTOR = 14
# A text without white space is one word to the encoder.
UNBROKEN_FACTORS = {"tiktoken": 30, "tokenizer.json": 30, "sentencepiece": 50}
# The reference where it cannot cut: it keeps an object for every token.
REFERENCE_FACTORS = {"tiktoken": 60, "tokenizer.json": 220, "sentencepiece": 70}


class Room:
    """A worker's share of the memory; the default one has no limit."""

    def __init__(
        self,
        share: int = 0,
        workers: int = 1,
        whole_factor: int = WORDS_FACTOR,
        unbroken_factor: int = UNBROKEN_FACTORS["tiktoken"],
        relieve: Callable[[int], None] | None = None,
    ) -> None:
        self.share = share
        self.workers = max(1, workers)  # as many as there would be with more memory
        self.whole_factor = whole_factor  # of a document that may not be cut
        self.unbroken_factor = unbroken_factor  # of a word in it, beside that
        self._relieve = relieve
        self.held = 0  # what is being read takes so much already

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
        if self._relieve is not None:
            self._relieve(need)

    def _refusal(self, need: int, where: str, what: str) -> TooLargeError:
        alone = memory_for(need, 1)
        hint = f"run the same command with --memory {memory_for(need, self.workers) // 10**6}MB"
        if self.workers > 1:
            hint += f", or with --workers 1 --memory {alone // 10**6}MB"
        return TooLargeError(
            f"{where}: {what}; that takes {need / 1e6:,.0f} MB of memory, and a worker has "
            f"{self.most(1) / 1e6:,.0f} MB for it",
            hint=f"{hint}; what is done so far is kept",
        )


def memory_for(need: int, workers: int) -> int:
    """The `--memory` with which each of so many workers has that much room."""
    least = COORDINATOR_BYTES + workers * max(WORKER_MIN_BYTES, WORKER_FLOOR_BYTES + need)
    return -(-least // STEP_BYTES) * STEP_BYTES


NO_LIMIT = Room()


def resident_bytes() -> int:
    """Memory of this process that is not file-backed."""
    try:
        with open("/proc/self/statm") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
