"""Kinds that are read row by row, from the first byte to the last: batches and places."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenmill.inputs.batch import BadRow, Batch
from tokenmill.inputs.kind import InputKind
from tokenmill.inputs.segments import BATCH_BYTES, Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.texts import from_bytes

ROW_BYTES = 16  # a row counts for as much at least: a batch of a million empty rows is large


class RowFile(InputKind):
    """A file is one segment, a chain of units: only reading tells where a row ends."""

    typical = (0.95, 0.21)
    numbers_rows = True
    sequential = True

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        yield Segment(source.number, 0, 0, source.size, source.size)

    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        line = f" (line {bad.line + 1})" if bad.line >= 0 else ""
        return f"row {bad.row}{line}"


class BatchBuilder:
    """Collects rows into batches of about BATCH_BYTES."""

    def __init__(self) -> None:
        self.row = 0  # the next row
        self._begin(0)

    def _begin(self, line: int) -> None:
        self._texts: list[bytes] = []
        self._rows: list[int] = []
        self._positions: list[int] = []
        self._bad: list[BadRow] = []
        self._first_row, self._first_line = self.row, line
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= BATCH_BYTES

    def add(self, text: bytes, position: int) -> None:
        self._texts.append(text)
        self._rows.append(self.row)
        self._positions.append(position)
        self.skip(len(text))

    def add_bad(self, reason: str, content: bytes, line: int = -1) -> None:
        self._bad.append(BadRow(self.row, line, reason, content))
        self.skip(len(content))

    def skip(self, size: int = 0) -> None:
        """A row that is not wanted; the last step for every row."""
        self._size += size + ROW_BYTES
        self.row += 1

    def take(self, line: int = 0) -> Batch | None:
        """What was collected; None where there is nothing. `line`: the next line of the file."""
        if self.row == self._first_row:
            return None
        texts = from_bytes(self._texts)
        batch = Batch(
            texts,
            np.array(self._rows, np.int64),
            np.array(self._positions, np.int64),
            self._bad,
            self._first_row,
            self.row - self._first_row,
            line - self._first_line,
        )
        self._begin(line)
        return batch.without(texts.faults())
