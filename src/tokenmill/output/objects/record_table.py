"""Records of millions of units: some 40 bytes of each in memory, the rest in a scratch file.

A record is some 1.7 kB as Python objects and 150 bytes as it is stored. So its stored form goes to
a file without a name on this machine, and it is decoded when it is asked for.
"""

from __future__ import annotations

import os
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import xxhash

from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import UnitRecord, unit_record
from tokenmill.system.disk import explained, nameless_file
from tokenmill.tokens.splits import U64

# Which of several different records of a unit counts; raises if that is an error.
ChooseRecord = Callable[[list[UnitRecord]], UnitRecord]
SEGMENT_BITS = 32
COLUMNS = ("_segments", "_parts", "_lasts", "_starts", "_lengths")
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class CompleteSegments(NamedTuple):
    """The segments whose units are all recorded."""

    keys: array[int]  # source and segment in one number, sorted

    def __contains__(self, key: Any) -> bool:
        number = key[0] << SEGMENT_BITS | key[1]
        at = bisect_left(self.keys, number)
        return at < len(self.keys) and self.keys[at] == number

    def sources(self) -> list[int]:
        found: list[int] = np.unique(np.frombuffer(self.keys, np.uint64) >> SEGMENT_BITS).tolist()
        return found


class RecordTable(Mapping[UnitId, UnitRecord]):
    """In document order, each unit once."""

    _whole: RecordTable | None = None  # of which this is a part: it holds the file open

    def __init__(
        self, records: Iterable[tuple[UnitRecord, bytes]], choose: ChooseRecord, folder: Path
    ) -> None:
        """`records`: each with its stored form; `folder`: of this machine."""
        self._where = folder
        self._file = nameless_file(folder)
        weakref.finalize(self, self._file.close)
        segments, parts, places, digests = array("Q"), array("I"), array("Q"), array("Q")
        lasts, at = bytearray(), 0
        with explained("write a scratch file to", folder):
            for record, body in records:
                segments.append(record.unit.source << SEGMENT_BITS | record.unit.segment)
                parts.append(record.unit.part)
                lasts.append(record.last)
                places.append(at)
                digests.append(xxhash.xxh3_64_intdigest(body))
                self._file.write(body)
                at += len(body)
            self._file.flush()
        places.append(at)
        starts = np.frombuffer(places, np.uint64)
        self._segments, self._parts = np.frombuffer(segments, np.uint64), np.array(parts, "u4")
        self._lasts = np.frombuffer(bytes(lasts), bool)
        self._starts, self._lengths = starts[:-1], np.diff(starts).astype("u4")
        self._take(np.lexsort((self._parts, self._segments)))
        self._leave_one_of_each(np.frombuffer(digests, np.uint64)[self._order], choose)

    def _take(self, order: Any) -> None:
        self._order = order
        for name in COLUMNS:
            setattr(self, name, getattr(self, name)[order])

    def _leave_one_of_each(self, digests: U64, choose: ChooseRecord) -> None:
        new = np.ones(len(digests), bool)
        new[1:] = (np.diff(self._segments) != 0) | (np.diff(self._parts) != 0)
        other = ~new
        other[1:] &= digests[1:] != digests[:-1]
        kept = np.flatnonzero(new)
        for rank in np.unique(np.searchsorted(kept, np.flatnonzero(other), "right") - 1).tolist():
            first = int(kept[rank])
            stop = int(kept[rank + 1]) if rank + 1 < len(kept) else len(new)
            found = [self._record(row) for row in range(first, stop)]
            kept[rank] = first + found.index(choose(found))
        self._take(kept)
        del self._order

    def _record(self, row: int) -> UnitRecord:
        length, start = int(self._lengths[row]), int(self._starts[row])
        with explained("read a scratch file in", self._where):
            return unit_record(os.pread(self._file.fileno(), length, start))

    def _unit(self, row: int) -> UnitId:
        segment = int(self._segments[row])
        number = segment & (1 << SEGMENT_BITS) - 1
        return UnitId(segment >> SEGMENT_BITS, number, int(self._parts[row]))

    def _rows_of(self, source: int, segment: int) -> tuple[int, int]:
        key = np.uint64(source << SEGMENT_BITS | segment)
        first = int(np.searchsorted(self._segments, key, "left"))
        return first, int(np.searchsorted(self._segments, key, "right"))

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[UnitId]:
        return map(self._unit, range(len(self)))

    def __getitem__(self, unit: UnitId) -> UnitRecord:
        first, stop = self._rows_of(unit.source, unit.segment)
        row = first + int(np.searchsorted(self._parts[first:stop], unit.part))
        if row >= stop or self._parts[row] != unit.part:
            raise KeyError(unit)
        return self._record(row)

    def records(self) -> Iterator[UnitRecord]:
        """In document order."""
        return map(self._record, range(len(self)))

    def of_segment(self, source: int, segment: int) -> list[UnitRecord]:
        """What is recorded of a segment, in order."""
        key = np.uint64(source << SEGMENT_BITS | segment)
        first, stop = (
            int(np.searchsorted(self._segments, key, side)) for side in ("left", "right")
        )
        return [self._record(row) for row in range(first, stop)]

    def in_sources(self, wanted: Callable[[int], bool]) -> Mask:
        """Which units are of these sources."""
        sources = self._segments >> np.uint64(SEGMENT_BITS)
        found = [number for number in np.unique(sources).tolist() if wanted(number)]
        return np.isin(sources, np.array(found, np.uint64))

    def in_segments(self, wanted: Iterable[tuple[int, int]]) -> Mask:
        keys = array("Q", (source << SEGMENT_BITS | segment for source, segment in wanted))
        return np.isin(self._segments, np.frombuffer(keys, np.uint64))

    def where(self, mask: Mask) -> RecordTable:
        """Some of the units."""
        found = object.__new__(RecordTable)
        found._where, found._file, found._whole = self._where, self._file, self
        for name in COLUMNS:
            setattr(found, name, getattr(self, name)[mask])
        return found

    def complete_segments(self) -> CompleteSegments:
        keys, first, counts = np.unique(self._segments, return_index=True, return_counts=True)
        whole = np.zeros(len(keys), bool)
        if len(keys):
            ends = first + counts - 1  # the last unit that is recorded of each
            whole = self._lasts[ends] & (self._parts[ends] + 1 == counts)
        return CompleteSegments(array("Q", keys[whole].tobytes()))


class RecordRows(Sequence[UnitRecord]):
    """The records of a table in document order, each decoded when it is asked for."""

    def __init__(self, table: RecordTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[UnitRecord]:
        return self.table.records()

    @overload
    def __getitem__(self, row: int) -> UnitRecord: ...
    @overload
    def __getitem__(self, row: slice) -> list[UnitRecord]: ...
    def __getitem__(self, row: int | slice) -> UnitRecord | list[UnitRecord]:
        if isinstance(row, slice):
            return [self.table._record(one) for one in range(*row.indices(len(self)))]
        return self.table._record(range(len(self))[row])
