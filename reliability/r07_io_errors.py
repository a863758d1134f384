"""R7: every single operation on the disk, reading included, fails with EIO."""

from __future__ import annotations

from pathlib import Path

from reliability.faults import every, fault_case, operations, share_of
from reliability.scorecard import Check
from reliability.small_job import small_jobs

ID = "R7"
PROMISE = "I/O errors"
MARK = "EIO at every operation: done all the same or reported, never a false success"


def run(check: Check) -> str:
    jobs = {job.name: job for job in small_jobs(check.scratch)}
    names = [
        f"{job.name} {fault}"
        for job in jobs.values()
        for fault in every(operations(job, check.scratch), "eio")
    ]
    names = share_of(names, check, 9)

    def one(name: str, folder: Path) -> str:
        job, fault = name.split(" ", 1)
        return fault_case(jobs[job], fault, folder)

    check.each(names, one)
    reported, done = check.outcomes["reported"], check.outcomes["done all the same"]
    return f"{reported:,} reported, {done:,} done all the same, {len(check.failures)} failures"
