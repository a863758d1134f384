"""What readers yield: documents of consecutive rows, and the bad rows among them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from tokenmill.texts import I64, Texts

FatalRows = Mapping[int, str]  # rows, counted like those of the batches, to the reason
SignOfLife = Callable[[], None]  # called now and then while nothing is yielded
LineAt = Callable[[int], int]  # the number of the line at a position of the file


def nobody_watches() -> None:
    pass


def no_line(position: int) -> int:
    return -1


class BadRow(NamedTuple):
    row: int  # counted like the rows of its batch
    line: int  # counted from the segment's first line; -1 where there are no lines
    reason: str
    content: bytes
    length: int = -1  # of the content before it was cut for keeping; -1: it was not
    sha256: str = ""
    fatal: bool = False  # good text, but encoding it kills or hangs a worker
    rows: int = 1  # more: a range of rows that cannot be read, from `row` on
    part: str = ""  # of the file, that this range is in

    def cut(self, limit: int) -> BadRow:
        """What is kept of a long one: its beginning, its length and its hash."""
        if len(self.content) <= limit:
            return self
        digest = hashlib.sha256(self.content).hexdigest()
        return self._replace(content=self.content[:limit], length=len(self.content), sha256=digest)

    def quarantine_line(self, source: str, rows_before: int, lines_before: int) -> bytes:
        """Its record in quarantine.jsonl."""
        record: dict[str, object] = {"source": source, "row": rows_before + self.row}
        if self.line >= 0:
            record["line"] = lines_before + self.line + 1
        if self.part:
            record |= {"rows": self.rows, "part": self.part}
        record["reason"] = self.reason
        record["bytes"] = base64.b64encode(self.content).decode()
        record["length"] = len(self.content) if self.length < 0 else self.length
        if self.sha256:
            record["sha256"] = self.sha256
        return msgspec.json.encode(record) + b"\n"


class Fragment(NamedTuple):
    """Which part of a document a batch of one piece holds; it counts as a row where it ends."""

    first: bool
    last: bool


class Batch(NamedTuple):
    """Documents of consecutive rows, counted from the source's first (parquet) or the segment's.

    In a line file only reading tells which row a segment begins with.
    """

    texts: Texts
    rows: I64
    positions: I64  # the row in the source, or the byte offset of its line: stable for hashing
    bad: list[BadRow]
    first_row: int
    row_count: int  # good and bad
    line_count: int
    fragment: Fragment | None = None  # a piece of one long document
    stands_for: int = -1  # bytes that it counts for; -1: what it holds

    @property
    def size(self) -> int:
        """What units are cut by: it must not depend on which rows are quarantined."""
        if self.stands_for >= 0:
            return self.stands_for
        return self.texts.size + sum(len(bad.content) for bad in self.bad)

    @property
    def filtered(self) -> int:
        """Rows that `--where` leaves out: neither documents nor bad."""
        if self.fragment is not None:
            return 0
        return self.row_count - len(self.rows) - self.bad_rows

    @property
    def bad_rows(self) -> int:
        return sum(bad.rows for bad in self.bad)

    def until(self, stop_row: int) -> Batch:
        """Its rows before one; lines of the rows behind it are not counted."""
        if self.first_row + self.row_count <= stop_row:
            return self
        return self.between(self.first_row, stop_row)._replace(line_count=stop_row - self.first_row)

    def between(self, first: int, stop: int) -> Batch:
        """Its rows [first, stop)."""
        low, high = np.searchsorted(self.rows, [first, stop]).tolist()
        return self._replace(
            texts=self.texts.slice(low, high),
            rows=self.rows[low:high],
            positions=self.positions[low:high],
            bad=[bad for bad in self.bad if first <= bad.row < stop],
            first_row=first,
            row_count=stop - first,
        )

    def document(self, index: int) -> Batch:
        """One document as a batch of its own."""
        one = slice(index, index + 1)
        rows = self.rows[one]
        texts = self.texts.slice(index, index + 1)
        return Batch(texts, rows, self.positions[one], [], int(rows[0]), 1, 0)

    def without(
        self, reasons: Mapping[int, str], line_at: LineAt = no_line, *, fatal: bool = False
    ) -> Batch:
        """The batch with some documents, by number, among its bad rows for the reason given."""
        if not reasons:
            return self
        content = self.texts.document
        bad = [
            BadRow(int(self.rows[i]), line_at(int(self.positions[i])), why, content(i), fatal=fatal)
            for i, why in reasons.items()
        ]
        keep = np.ones(len(self.rows), bool)
        keep[list(reasons)] = False
        return self._replace(
            texts=self.texts.only(keep),
            rows=self.rows[keep],
            positions=self.positions[keep],
            bad=sorted(self.bad + bad, key=lambda one: one.row),
        )


def set_aside(batch: Batch, aside: FatalRows, line_at: LineAt = no_line) -> Batch:
    """The batch without the rows that would end their worker: these are among its bad rows.

    Their content is the text, not the line it stood in: so the batch keeps its size, and the
    source is cut into the same units.
    """
    if not any(0 <= row - batch.first_row < batch.row_count for row in aside):
        return batch
    rows = batch.rows.tolist()
    reasons = {index: aside[row] for index, row in enumerate(rows) if row in aside}
    return batch.without(reasons, line_at, fatal=True)
