"""A unit that is encoded and has no place yet: in memory, or spilled."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.engines.messages import EncodeTask, UnitSummary
from tokenmill.inputs.batch import BadRow
from tokenmill.system.spill import SpillFolder, spill_name
from tokenmill.tokens.packing import PackedStream


@dataclasses.dataclass
class EncodedUnit:
    """A unit's tokens, in memory or spilled; with what it was made of, to make it again."""

    summary: UnitSummary
    streams: list[PackedStream]  # none once it is spilled; so with `bad`
    bad: list[BadRow]
    work: EncodeTask
    first_row: int  # as its segment counts
    first_line: int
    spilled: tuple[SpillFolder, str] | None = None

    @property
    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [array for stream in self.streams for array in stream.arrays]

    @property
    def held_bytes(self) -> int:
        bad_bytes = sum(len(bad.content) for bad in self.bad)
        return bad_bytes + sum(array.nbytes for array in self._arrays)

    def spill(self, folder: SpillFolder) -> None:
        if self.spilled is None:
            name = spill_name(self.summary.unit, os.getpid())
            bad = np.frombuffer(msgspec.msgpack.encode(self.bad), np.uint8)
            folder.put(name, [*self._arrays, bad])
            self._shapes = [(array.dtype, len(array)) for array in self._arrays]
            self._cut = [(stream.continued, stream.open) for stream in self.streams]
            self.spilled, self.streams, self.bad = (folder, name), [], []

    def forget_spilled(self) -> None:
        if self.spilled is not None:
            folder, name = self.spilled
            folder.forget(name)

    def packed(self) -> list[PackedStream]:
        if self.spilled is None:
            return self.streams
        folder, name = self.spilled
        content, at = folder.take(name), 0
        arrays: list[npt.NDArray[Any]] = []
        for dtype, count in self._shapes:
            arrays.append(np.frombuffer(content, dtype, count, at))  # too short: it raises
            at += arrays[-1].nbytes
        self.bad = msgspec.msgpack.decode(content[at:], type=list[BadRow])
        return [
            PackedStream(arrays[at], arrays[at + 1], arrays[at + 2], *cut, *arrays[at + 3 : at + 6])
            for at, cut in zip(range(0, len(arrays), 6), self._cut, strict=True)
        ]
