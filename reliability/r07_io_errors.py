"""R7: every single operation on the disk fails with EIO, and so does reading each input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reliability import no_reads
from reliability.faults import every, fault_case, share_of
from reliability.scorecard import Check
from reliability.small_job import Job, in_child, small_jobs
from tokenmill.engines import unit
from tokenmill.inputs.kinds import read_segment

ID = "R7"
PROMISE = "I/O errors"
MARK = "EIO at every operation: done all the same or reported, never a false success"


def run(check: Check) -> str:
    jobs = {job.name: job for job in small_jobs(check.scratch)}
    names = [
        f"{job.name} {fault}" for job in jobs.values() for fault in every(job, "eio", check.scratch)
    ]
    names = share_of(names, check, 9)
    inputs = len(jobs["llmc"].inputs) if no_reads.available() else 0
    names += [f"llmc input {number}" for number in range(inputs)]

    def one(name: str, folder: Path) -> str:
        job, fault = name.split(" ", 1)
        if fault.startswith("input"):
            return unreadable_input(jobs[job], int(fault.split()[1]), folder)
        return fault_case(jobs[job], fault, folder)

    check.each(names, one)
    reported, done = check.outcomes["reported"], check.outcomes["done all the same"]
    return (
        f"{reported:,} reported, {done:,} done all the same; {check.outcomes['input']} of {inputs} "
        f"unreadable inputs named; {len(check.failures)} failures"
    )


def unreadable_input(job: Job, number: int, folder: Path) -> str:
    """From this input on the kernel lets nothing be read."""
    output = folder / "o"

    def reading(source: Any, *rest: Any, **more: Any) -> Any:
        if source.number == number:
            no_reads.fail_all_reads()
        return read_segment(source, *rest, **more)

    def run() -> None:
        setattr(unit, "read_segment", reading)  # noqa: B010
        job.run(output)

    code, said = in_child(run)
    assert code == 1, f"ended with {code}: {said}"
    assert said.startswith("SourceError:"), said
    assert job.inputs[number].name in said, said
    assert "nput/output error" in said, said
    job.check_resume(output)
    return "input"
