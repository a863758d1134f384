"""R3: R1 and R2, a damaged work folder and short writes notice every mutant of the protocol."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reliability.mutants import MUTANTS, install
from reliability.scorecard import Check

if TYPE_CHECKING:  # a mutant must be in place before the package is imported
    from reliability.small_job import Job

ID = "R3"
PROMISE = "the tests have teeth"
MARK = "at least 15 mutants, all caught"
POWER_STATES = 1500
EXPORT_STATES = 300


def run(check: Check) -> str:
    from reliability.small_job import small_jobs

    small_jobs(check.scratch)  # by the real code: what the mutants must give
    names = list(MUTANTS)
    if check.fast:
        names = names[check.seed % 6 :: 6]

    def one(name: str, folder: Path) -> str:
        command = [sys.executable, "-m", "reliability.r03_teeth", name, str(check.scratch)]
        done = subprocess.run(
            [*command, str(folder), str(check.seed)],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]
        return done.stdout.partition(":")[0]

    check.each(names, one, seconds=1000)
    how = ", ".join(f"{count} by {what}" for what, count in sorted(check.outcomes.items()))
    return f"{check.cases - len(check.failures)} of {check.cases} mutants caught ({how})"


def main(name: str, clean: Path, folder: Path, seed: int) -> int:
    """In a process of its own: put the mutant in place and see what notices it."""
    if name != "none":
        install(name)
    from reliability.small_job import small_jobs

    jobs = small_jobs(clean)
    for job in jobs:
        output = folder / f"plain-{job.name}"
        job.before(output)
        job.run_first(output)
        job.check_reader(output)  # undisturbed, a mutant does its work
    for battery in (_power, _damage, _kills):
        for case, run in battery(jobs, folder, seed):
            place = folder / "case"
            place.mkdir()
            try:
                run(place)
            except Exception as error:
                print(f"{battery.__doc__}: {case}: {error!r}")
                return 0
            shutil.rmtree(place)
    print("survived")
    return 1


def by_key(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if job.name in ("shuffled", "mixed")]


Cases = Iterator[tuple[str, Callable[[Path], object]]]


def _damage(jobs: list[Job], folder: Path, seed: int) -> Cases:
    """damage and short writes"""
    from reliability.damage import cases, sorted_cases

    for job in jobs[:2]:
        yield from cases(job, folder)
    for job in by_key(jobs):
        yield from sorted_cases(job, folder)


def _power(jobs: list[Job], folder: Path, seed: int) -> Cases:
    """R2"""
    from reliability.power import MODELS
    from reliability.r02_power_loss import power_case, stories

    check = Check(folder, seed=seed)
    told = stories([*jobs[:4], *by_key(jobs)], folder)
    exported = stories([jobs[-1]], folder / "exports")
    for number in range(POWER_STATES + EXPORT_STATES):
        if number == POWER_STATES:
            told = exported
        story = told[number % len(told)]
        name = f"{MODELS[number // len(told) % 2]} {story.name} {number}"
        yield name, partial(power_case, check, story, name)


def _kills(jobs: list[Job], folder: Path, seed: int) -> Cases:
    """R1"""
    from reliability.r01_kill_anywhere import faults, kill_case

    nanogpt, llmc, overwrite = jobs[:3]
    for fault in faults(llmc, folder)[::-1]:  # the commit is near the end
        if ":kill" in fault:
            yield f"{fault}, then another", partial(kill_case, llmc, fault, other=nanogpt)
    for job in (nanogpt, overwrite, *by_key(jobs)[:1]):
        for fault in faults(job, folder):
            yield f"{job.name} {fault}", partial(kill_case, job, fault)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
