"""Where separators stand in a text: leftmost and non-overlapping, as `str.split` finds them.

A separator that can overlap itself ("\\n\\n" in three line ends) is found rightly only by a search
that begins at the right place; `sync` goes back to one, so that a byte range can be searched
without all that comes before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import numpy as np

from tokenmill.texts import I64

Read = Callable[[int, int], bytes]  # [start, stop) of a file
BLOCK_BYTES = 4 << 20
OVERLAPPING_BLOCK_BYTES = 1 << 20


@functools.lru_cache(maxsize=8)
def separator_of(value: bytes | None) -> Separator | None:
    return Separator(value) if value else None


class Separator:
    def __init__(self, value: bytes) -> None:
        self.value = value
        self.length = len(value)
        self.overlaps = any(value.startswith(value[i:]) for i in range(1, len(value)))
        self._wanted = np.frombuffer(value, np.uint8)
        # Of one that overlaps itself a text may hold as many as it has bytes, each a number here.
        self.block_bytes = OVERLAPPING_BLOCK_BYTES if self.overlaps else BLOCK_BYTES

    def find_all(self, data: bytes | bytearray, start: int = 0) -> I64:
        """Where it occurs in data[start:], searched from there."""
        array = np.frombuffer(data, np.uint8)
        limit = len(array) - self.length + 1
        hits = np.flatnonzero(array[start : max(start, limit)] == self._wanted[0]) + start
        for i in range(1, self.length):
            hits = hits[array[hits + i] == self._wanted[i]]
        if self.overlaps and len(hits) > 1 and int(np.diff(hits).min()) < self.length:
            matches = re.finditer(re.escape(self.value), memoryview(data)[start:])
            return np.fromiter((start + match.start() for match in matches), np.int64)
        return hits

    def blocks(self, data: bytes) -> Iterator[I64]:
        """Where it occurs in the data, block by block."""
        for ends in self._ends(lambda start, stop: data[start:stop], 0, len(data)):
            yield ends - self.length

    def sync(self, read: Read, position: int) -> int:
        """A place at or before `position` from which a search finds what one from 0 would.

        No occurrence begins before it and ends behind it; one that ends at `position` begins at
        it or later.
        """
        place = max(0, position - self.length)
        if not self.overlaps:
            return place
        if len(set(self.value)) == 1:
            start = self._before_run(read, place)  # from there on, one follows the other
            return start + (place - start) // self.length * self.length
        while place > 0:
            begin = max(0, place - self.length + 1)
            found = read(begin, place + self.length - 1).find(self.value)
            if found < 0 or begin + found >= place:
                return place
            place = begin + found
        return 0

    def _before_run(self, read: Read, place: int) -> int:
        """Of one letter repeated: the beginning of the run of that letter."""
        while place > 0:
            begin = max(0, place - BLOCK_BYTES)
            kept = len(read(begin, place).rstrip(self.value[:1]))
            if kept:
                return begin + kept
            place = begin
        return 0

    def next_end(self, read: Read, start: int, least: int, stop: int) -> int:
        """The end of the first one that ends at `least` or later and at `stop` or before; or -1.

        The search begins at `start`, which must be a place that `sync` gave.
        """
        for ends in self._ends(read, start, stop):
            later = ends[ends >= least]
            if len(later):
                return int(later[0])
        return -1

    def _ends(self, read: Read, start: int, stop: int) -> Iterator[I64]:
        """Block by block, the ends of those in [start, stop)."""
        while start < stop:
            reach = min(start + self.block_bytes, stop)
            found = self.find_all(read(start, min(reach + self.length - 1, stop)))
            ends = found + (self.length + start)
            yield ends
            start = max(reach, int(ends[-1]) if len(ends) else 0)

    def last_end(self, read: Read, stop: int) -> int:
        """The end of the last one that ends at `stop` or before; 0 where there is none."""
        while stop > 0:
            start = self.sync(read, max(0, stop - self.block_bytes))
            ends = self.find_all(read(start, stop)) + self.length
            if len(ends):
                return start + int(ends[-1])
            stop = start
        return 0

    def count(self, read: Read, stop: int) -> int:
        """How many end at `stop` or before."""
        return sum(map(len, self._ends(read, 0, stop)))
