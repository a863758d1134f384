"""R6: the disk is full at every operation that needs space, and every write comes out short."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from reliability.faults import (
    check_answer,
    every,
    fault_case,
    outcome,
    share_of,
)
from reliability.scorecard import Check
from reliability.small_job import Job, in_child, small_jobs

ID = "R6"
PROMISE = "disk full, short writes"
MARK = "at every operation: path and bytes named, nothing half-visible, identical after resuming"


def run(check: Check) -> str:
    jobs = {job.name: job for job in small_jobs(check.scratch)}
    names: list[str] = []
    for job in jobs.values():
        for fault in ("enospc+", "short"):
            names += [f"{job.name} {one}" for one in every(job, fault, check.scratch)]
    names = share_of(names, check, 9)
    failpoints = len(names)
    names += [f"{name} limit {size}" for name in jobs for size in range(0, 4000, 500)]
    room = small_disk(check.scratch)
    names += [f"{name} tmpfs {pages}" for name in jobs for pages in range(4, 40, 6) if room]

    def one(name: str, folder: Path) -> str:
        job_name, kind, *number = name.split()
        job = jobs[job_name]
        if kind == "limit":
            return "real " + limited(job, int(number[0]), folder)
        if kind == "tmpfs":
            return "real " + on_small_disk(job, int(number[0]), folder)
        return fault_case(job, kind, folder)

    check.each(names, one)
    kinds = "RLIMIT_FSIZE, tmpfs" if room else "RLIMIT_FSIZE; no tmpfs here"
    return (
        f"{failpoints:,} failpoints; really full {check.outcomes['real reported']} times "
        f"({kinds}); {len(check.failures)} failures"
    )


def limited(job: Job, size: int, folder: Path) -> str:
    """No file may grow beyond `size`: the kernel says EFBIG, whatever the code expects."""
    output = folder / "o"
    job.before(output)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        job.run_first(output)

    code, said = in_child(run)
    check_answer(job, output, code, said, full=True)
    return outcome(code)


@contextlib.contextmanager
def mounted(folder: Path, pages: int) -> Iterator[Path]:
    """A file system of so many pages."""
    place = folder / "disk"
    place.mkdir()
    size = f"size={pages * 4}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)  # whatever a failed case holds open


def small_disk(folder: Path) -> bool:
    """Whether this user may mount one."""
    if os.geteuid() != 0:
        return False
    try:
        with mounted(folder, 4):
            pass
    except (OSError, subprocess.CalledProcessError):
        return False
    (folder / "disk").rmdir()
    return True


def on_small_disk(job: Job, pages: int, folder: Path) -> str:
    """Then the user makes room, and the same command goes on."""
    with mounted(folder, pages) as place:
        output = place / "o"
        try:
            job.before(output)
        except OSError:
            return "too small"  # even for what is there before
        code, said = in_child(lambda: job.run_first(output))
        if code:
            remount = f"remount,size={pages * 4 + 20_000}k"
            subprocess.run(["mount", "-o", remount, place], check=True)
        check_answer(job, output, code, said, full=True)
        return outcome(code)
