"""The hunt for the row that ends its worker, once two workers have died on one unit. No I/O.

The batch that was under way is known. A fresh worker encodes its rows one by one and says before
each which it is: the one it died on is the suspect. A suspect that ends a second worker, alone, is
found. Two deaths, where halving the batch would cost one for every second step, and each of them
the reading of the file up to there.

Workers are also killed from outside: by somebody, by a job scheduler, by the out-of-memory killer
for another process's sake. Such a death says little about the row that was under way. So a row is
only found by kills when they hit it four times running, and a unit none of whose rows does harm is
done again, up to its fifth kill. What only somebody else can do to a worker (SIGSTOP, SIGTERM)
never starts a hunt and never counts against a row.

In a unit the reference encoder checks few documents, and which depends on the worker. So a batch
of which no row does harm is walked a second time, with every row checked.
"""

from __future__ import annotations

from typing import Literal

from tokenmill.errors import WorkerError
from tokenmill.plan import Segment
from tokenmill.sources import Source

# How a worker ended: by a fault of its own (or hung), by SIGKILL, by what only others can do.
Cause = Literal["fault", "kill", "outside"]

MAX_DEATHS = 2
MAX_KILLS = 5
ROW_DEATHS: dict[Cause, int] = {"fault": 2, "kill": 4}  # the suspicion included
# Rows that kill are few. So many of them in one unit mean that something else is wrong.
MAX_ASIDE = 100


class Deaths:
    """Of workers, on one thing: are they no accident any more?"""

    def __init__(self, max_faults: int = MAX_DEATHS, max_kills: int = MAX_KILLS) -> None:
        self.max_faults, self.max_kills = max_faults, max_kills
        self.faults = self.kills = 0
        self.in_vain: Hunt | None = None  # no row was found in it

    def add(self, cause: Cause) -> None:
        if cause == "fault":
            self.faults += 1
        else:
            self.kills += 1

    @property
    def total(self) -> int:
        return self.faults + self.kills

    @property
    def too_many(self) -> bool:
        return self.faults >= self.max_faults or self.kills >= self.max_kills


class Hunt:
    """Rows [first, stop) of a batch are still to be tried, the suspect before them."""

    def __init__(self, part: int, first: int, stop: int, how: str, *, may_check: bool) -> None:
        self.part = part
        self.how = how  # the worker ended that gave rise to the hunt
        self.batch = (first, stop)
        self.first, self.stop = first, stop
        self.suspect: int | None = None
        self.found: dict[int, str] = {}
        self.check = False  # rows are checked in this walk
        self._may_check = may_check
        self._hits = 0  # on the suspect, running
        self.other_deaths = Deaths()  # while reading, not on a row

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
            # The rows behind it would not be checked in a unit: what became of them says nothing.
            self._pass_over(self.stop - 1 if self.check else row)

    def _pass_over(self, row: int) -> None:
        self.first, self.suspect, self._hits = row + 1, None, 0


def unit_error(
    source: Source, segment: Segment, part: int, how: str, deaths: int, more: str = ""
) -> WorkerError:
    """Workers died on this unit, and no row is to blame."""
    what = {"parquet": "row groups", "arrow": "record batches"}.get(source.kind, "bytes")
    return WorkerError(
        f"{source.name}: {deaths} workers died on unit {segment.number}.{part} "
        f"({what} {segment.start} to {segment.stop - 1}): the last one {how}{more}",
        hint="everything else done so far is kept; the same command resumes. More memory "
        "(--memory), fewer --workers or --encoder reference may help",
    )


def no_row_error(source: Source, segment: Segment, hunt: Hunt, deaths: int) -> WorkerError:
    first, stop = hunt.batch
    since = f" from byte {segment.start} on" if source.kind != "parquet" and segment.start else ""
    more = (
        f", with rows {first} to {stop - 1}{since} under way. Each of these was then encoded "
        "alone, and none ended its worker: it may be their memory together"
    )
    return unit_error(source, segment, hunt.part, hunt.how, deaths, more)


def too_many_error(source: Source, segment: Segment, hunt: Hunt) -> WorkerError:
    return WorkerError(
        f"{source.name}: more than {MAX_ASIDE} rows of unit {segment.number}.{hunt.part} end their "
        f"worker; of the last one: {hunt.found[max(hunt.found)]}",
        hint="rows are not the cause if so many do: try --encoder reference or more --memory",
    )
