"""A disk that says no: what a run must answer, and that the next one ends identical."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from reliability.small_job import Job, in_child, using
from tokenmill.system.failpoints import FaultyDisk as OneFault
from tokenmill.system.failpoints import Operation

NEVER = 1_000_000_000
INTERNAL = 99  # of `in_child`: something that is no error of ours


class FaultyDisk(OneFault):
    """Also tells how often the fault could have happened: a byte a time, from all processes."""

    def __init__(self, fault: str, fired: str = "", counting: str = "") -> None:
        super().__init__(fault, fired)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.counter = os.open(counting, flags) if counting else -1

    def _due(self, operation: Operation) -> bool:
        before, process = self._count, self._process
        due = super()._due(operation)
        if self.counter >= 0 and (self._count, self._process) != (before, process):
            os.write(self.counter, b".")
        return due


def fault_case(job: Job, fault: str, folder: Path) -> str:
    """A fault of the disk: done all the same, or reported with the path; then resumed."""
    output, fired = folder / "o", folder / "fired"
    job.before(output)
    with using(FaultyDisk(fault, str(fired))):
        code, said = in_child(lambda: job.run_first(output))
    hit = fired.read_text() if fired.exists() else ""
    check_answer(job, output, code, said, full="enospc" in fault, hit=hit)
    if "short" in fault:
        assert code == 0, f"a short write is no error: {said}"
    return outcome(code, hit)


def outcome(code: int, hit: str = "?") -> str:
    return "reported" if code else "done all the same" if hit else "over before"


def check_answer(
    job: Job, output: Path, code: int, said: str, *, full: bool, hit: str = "?"
) -> None:
    """Never success with something missing, never half a dataset; identical after resuming."""
    try:
        assert code != INTERNAL, "not an error of ours"
        assert code >= 0, "the process died"
        if code == 0:
            job.check_done(output)
            return
        assert hit, "an error without a fault"
        # `export` verifies its source first: what cannot be read there is a line of that report.
        unreadable = said.startswith("VerificationError:") and "cannot be read: " in said
        assert said.startswith("StorageError:") or unreadable, "not reported as a fault of the disk"
        named = any(str(path) in said for path in job.touched(output))
        assert named, "the error does not name the path"
        assert not full or "bytes were needed" in said, "the error does not say what is needed"
    except AssertionError as error:
        raise AssertionError(f"at {hit or 'no fault'}: {error} (exit {code}: {said})") from None
    job.check_resume(output)


def every(job: Job, fault: str, folder: Path) -> list[str]:
    """The fault at every operation of coordinator and worker at which it can happen."""
    lasting = "+" * fault.endswith("+")
    fault = fault.rstrip("+")
    found = []
    for role in ("coordinator", "worker") if job.workers else ("coordinator",):
        output = folder / f"count-{job.name}-{role}-{fault}"
        job.before(output)
        disk = FaultyDisk(f"{role}:{fault}@{NEVER}", counting=str(output) + ".count")
        with using(disk):
            job.run_first(output)
        count = len(Path(str(output) + ".count").read_bytes())
        found += [f"{role}:{fault}@{n}{lasting}" for n in range(1, count + 1)]
    return found


def share_of(names: list[str], check: Any, share: int) -> list[str]:
    """In the fast subset one case in so many, others for another seed."""
    return names[check.seed % share :: share] if check.fast and not check.only else names
