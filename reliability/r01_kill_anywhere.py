"""R1: the process is killed before every single operation on the disk, and inside every write."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from reliability.faults import every
from reliability.scorecard import Check
from reliability.small_job import Job, died, in_child, small_jobs, using
from tokenmill.system.failpoints import FaultyDisk

ID = "R1"
PROMISE = "kill anywhere"
NO_LINKS = " without links"
ANOTHER = " then another"
MARK = (
    "before every operation of worker and coordinator: no reader sees a broken dataset, identical"
)


def kill_case(job: Job, fault: str, folder: Path, other: Job | None = None) -> bool:
    """Whether the fault struck (or the job was over before); raises where a promise is broken.

    With `other` the killed job is not resumed, but makes way for another.
    """
    output, fired = folder / "o", folder / "fired"
    job.before(output)
    kind = WithoutLinks if fault.endswith(NO_LINKS) else FaultyDisk
    with using(kind(fault.removesuffix(NO_LINKS), str(fired))):
        code, said = in_child(lambda: job.run_first(output))
    if not fired.exists():
        assert code == 0, said
        return False
    if fault.startswith("worker:"):
        assert code == 0, f"one killed worker ended the run: {said}"
        job.check_done(output)
        return True
    assert died(code), f"ended with {code}: {said}"
    with using(WithoutLinks("kill@1000000000") if kind is WithoutLinks else os):
        if other is None:
            job.check_resume(output)
        else:
            job.check_reader(output)
            other.run(output, workers=0, overwrite=True)
            other.check_done(output)
    return True


class WithoutLinks(FaultyDisk):
    """A file system that knows no hard links: renames must do."""

    def link(self, source: Any, target: Any) -> None:
        raise OSError(errno.EPERM, "no links here")


def faults(job: Job, folder: Path) -> list[str]:
    return [*every(job, "kill", folder), *every(job, "torn", folder)]


def run(check: Check) -> str:
    jobs = {job.name: job for job in small_jobs(check.scratch)}
    names = [f"{job.name} {fault}" for job in jobs.values() for fault in faults(job, check.scratch)]
    names += [
        name + NO_LINKS
        for name in names
        if name.startswith(("llmc coordinator:kill", "overwrite coordinator:kill"))
    ]
    names += [name + ANOTHER for name in names if name.startswith("llmc coordinator:kill")]
    if check.fast:
        names = names[check.seed % 9 :: 9]

    def one(name: str, folder: Path) -> str:
        job, fault = name.split(" ", 1)
        other = jobs["nanogpt"] if fault.endswith(ANOTHER) else None
        struck = kill_case(jobs[job], fault.removesuffix(ANOTHER), folder, other)
        return "killed" if struck else "over before"

    check.each(names, one)
    killed = check.outcomes["killed"]
    if not check.only and killed < 0.95 * check.cases - len(check.failures):
        check.fail("", f"only {killed} of {check.cases} kills struck")
    return f"{killed:,} kills resumed identical, {len(check.failures)} failures"
