"""Units that were written before their places were known: made absolute when they are read.

    tokens           as they are in every file of the stream
    ends             where each document ends, from the unit's first token on
    runs             first document, source and row, both counted in the unit
    bad rows         with their places in the segment; in quarantine.jsonl, in the source

The lengths of these are the same before and after, but for bad rows, which are last.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tokenmill.inputs.batch import BadRow
from tokenmill.tokens.counts import State
from tokenmill.tokens.placement import StreamState

BAD_ROWS = "bad-rows"


class BadRows(msgspec.Struct, frozen=True, array_like=True):
    """The quarantined rows of a unit."""

    source: str
    first_row: int  # of the unit, as its segment counts
    first_line: int
    rows: list[BadRow]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def lines(self, before: State) -> bytes:
        """As they are in quarantine.jsonl."""
        rows, lines = before.rows - self.first_row, before.lines - self.first_line
        return b"".join(row.quarantine_line(self.source, rows, lines) for row in self.rows)


decode_bad_rows = msgspec.msgpack.Decoder(BadRows).decode


class Shift(NamedTuple):
    """How a piece of a unit is made absolute: its kind, and what is before the unit."""

    kind: str  # ends, runs or quarantine
    before: State
    stream: StreamState | None = None

    def apply(self, content: bytes) -> bytes:
        if self.kind == "quarantine":
            return decode_bad_rows(content).lines(self.before)
        assert self.stream is not None
        if self.kind == "ends":
            return (np.frombuffer(content, "<u8") + np.uint64(self.stream.tokens)).tobytes()
        runs = np.frombuffer(content, "<u8").reshape(-1, 3).copy()
        runs[:, 0] += np.uint64(self.stream.documents)
        runs[:, 2] += np.uint64(self.before.rows)
        return runs.tobytes()


def shift_of(file: str, before: State) -> Shift | None:
    """How a piece of this file is made absolute; None: it is the same everywhere."""
    if file == "quarantine":
        return Shift("quarantine", before)
    stream, _, kind = file.rpartition(".")
    if kind not in ("ends", "runs"):
        return None
    # Of two streams the second one is the validation split (`tokens.splits.streams_of`).
    return Shift(kind, before, before.streams[-1 if stream == "val" else 0])
