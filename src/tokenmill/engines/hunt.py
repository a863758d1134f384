"""The search for the row that ends its worker, once two workers have died on one unit. No I/O.

The batch that was being encoded is known. A fresh worker encodes its rows one by one and says
before each row which one it is. The row it dies on is the suspect. A suspect that ends a second
worker, alone, is found: two deaths for a row. Halving the batch instead would cost a death for
every second step, and each time the file must be read up to there.

Workers are also killed from outside: by a person, by a job scheduler, by the out-of-memory killer
because of another process. Such a death says little about the row that was being encoded. So kills
only count as found when they hit the same row four times in a row, and a unit without a fatal row
is encoded again, up to its fifth kill. Signals that only somebody else sends (SIGSTOP, SIGTERM)
never start a search and never count against a row.

In a unit the reference encoder checks few documents, and which ones depends on the worker. So a
batch without a fatal row is searched a second time, with every row checked.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# How a worker ended: by a fault of its own (or hung), by SIGKILL, by a signal from outside; or its
# machine is gone, which says nothing about the work and may happen any number of times.
Cause = Literal["fault", "kill", "outside", "lost"]

MAX_DEATHS = 2
MAX_KILLS = 5
ROW_DEATHS: dict[Cause, int] = {"fault": 2, "kill": 4}  # the suspicion included
# Fatal rows are rare. So many of them in one unit mean that something else is wrong.
MAX_ASIDE = 100


class WorkerEnd(NamedTuple):
    """How a worker ended, in words, and whether its work may be the cause."""

    how: str
    cause: Cause
    fault: str  # without anything that differs from run to run: for the record of a row


class DeathCount:
    """How many workers died on one unit (or at their start), and how many deaths are too many."""

    def __init__(self, max_faults: int = MAX_DEATHS, max_kills: int = MAX_KILLS) -> None:
        self.max_faults, self.max_kills = max_faults, max_kills
        self.faults = self.kills = 0
        self.fruitless: FatalRowSearch | None = None  # it found no row
        self.rows_found = 0

    def add(self, cause: Cause) -> None:
        if cause == "fault":
            self.faults += 1
        elif cause != "lost":
            self.kills += 1

    def end_search(self, search: FatalRowSearch) -> None:
        self.rows_found += len(search.found)
        if search.found:  # the unit is known to be bad: one more death starts the next search
            self.faults, self.kills = MAX_DEATHS - 1, 0
        else:  # the deaths may have been accidents: the unit gets another chance
            self.fruitless, self.max_faults = search, self.faults + 1

    @property
    def total(self) -> int:
        return self.faults + self.kills

    @property
    def too_many(self) -> bool:
        return self.faults >= self.max_faults or self.kills >= self.max_kills


class FatalRowSearch:
    """Rows [first, stop) of a batch are still to be tried, the suspect before them."""

    def __init__(self, part: int, first: int, stop: int, how: str, *, may_check: bool) -> None:
        self.part = part
        self.how = how  # the last worker ended before the search
        self.batch = (first, stop)
        self.first, self.stop = first, stop
        self.suspect: int | None = None
        self.found: dict[int, str] = {}
        self.check = False  # the second pass: every row is checked
        self._may_check = may_check
        self._hits = 0  # on the suspect, in a row
        self.other_deaths = DeathCount()  # while reading, not on a row

    def next_rows(self) -> tuple[int, int]:
        if self.suspect is not None:
            return self.suspect, self.suspect + 1
        return self.first, self.stop

    @property
    def exhausted(self) -> bool:
        return self.suspect is None and self.first >= self.stop

    def survived(self) -> None:
        """The rows were tried and the worker lives."""
        self._pass_over(self.stop - 1 if self.suspect is None else self.suspect)
        if self.exhausted and not self.found and self._may_check and not self.check:
            self.first, self.check = self.batch[0], True

    def died(self, row: int, fault: str, cause: Cause) -> None:
        """The worker that tried this row is gone."""
        self.suspect, self._hits = row, self._hits + 1
        if self._hits >= ROW_DEATHS[cause]:
            times = "twice" if self._hits == 2 else f"{self._hits} times"
            self.found[row] = f"encoding it alone {fault}, {times}"
            # In a unit the later rows would not be checked: their result would mean nothing.
            self._pass_over(self.stop - 1 if self.check else row)

    def _pass_over(self, row: int) -> None:
        self.first, self.suspect, self._hits = row + 1, None, 0
