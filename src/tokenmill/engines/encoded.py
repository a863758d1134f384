"""An encoded unit on its way to its place: what the coordinator learns, and the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.batch import Aside, BadRow
from tokenmill.manifest import Counts
from tokenmill.pack import Packed, StreamCounts
from tokenmill.plan import Segment, UnitId
from tokenmill.sources import Source
from tokenmill.steps import read_file, remove_file
from tokenmill.storage import write_spill


class UnitSummary(msgspec.Struct, frozen=True, array_like=True):
    """What the coordinator learns of an encoded unit: enough to give it its place."""

    unit: UnitId
    last: bool
    rows_before: int  # of its segment, in the units before it
    lines: int
    counts: Counts
    streams: tuple[StreamCounts, ...]


class Origin(msgspec.Struct, frozen=True):
    """What a unit was made of: to make a part of it again."""

    source: Source
    segment: Segment
    aside: Aside
    first_row: int  # of the unit, as its segment counts
    first_line: int = 0


class EncodedUnit:
    """A unit's tokens, in memory or spilled, until its place is known."""

    def __init__(
        self,
        summary: UnitSummary,
        packed: list[Packed],
        bad: list[BadRow],
        origin: Origin,
    ) -> None:
        self.summary = summary
        self.bad = bad
        self.origin = origin
        self._packed: list[Packed] | None = packed
        self._spill: Path | None = None
        self._dtypes = [packed.tokens.dtype for packed in packed]

    @property
    def held_bytes(self) -> int:
        if self._packed is None:
            return 0
        aside = sum(len(bad.content) for bad in self.bad)
        return aside + sum(array.nbytes for packed in self._packed for array in packed.arrays)

    def spill(self, path: Path) -> None:
        if self._packed is not None:
            aside = np.frombuffer(msgspec.msgpack.encode(self.bad), np.uint8)
            arrays = [array for packed in self._packed for array in packed.arrays]
            write_spill(path, [*arrays, aside])
            self._packed, self._spill, self.bad = None, path, []

    def packed(self) -> list[Packed]:
        if self._packed is not None:
            return self._packed
        assert self._spill is not None
        content, at = read_file(self._spill), 0

        def take(dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
            nonlocal at
            array = np.frombuffer(content, dtype, count, at)  # too short: it raises
            at += array.nbytes
            return array

        result = []
        for counts, dtype in zip(self.summary.streams, self._dtypes, strict=True):
            entries = counts.documents + counts.open
            tokens = take(dtype, counts.tokens)
            lengths, rows = take(np.int64, entries), take(np.int64, entries)
            result.append(Packed(tokens, lengths, rows, counts.continued, counts.open))
        self.bad = msgspec.msgpack.decode(content[at:], type=list[BadRow])
        return result

    def forget(self) -> None:
        if self._spill is not None:
            remove_file(self._spill)
        self._packed = None


def spill_path(folder: Path, unit: UnitId, pid: int) -> Path:
    """A worker's own: two of them may have had the same unit."""
    return folder / f"{unit}-{pid}"
