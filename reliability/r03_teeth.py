"""R3: R1 and R2, a damaged work folder and short writes notice every mutant of the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reliability.mutants import MUTANTS, install
from reliability.scorecard import Check

if TYPE_CHECKING:  # a mutant must be in place before the package is imported
    from reliability.small_job import Job

ID = "R3"
PROMISE = "the tests have teeth"
MARK = "at least 15 mutants, all caught"
POWER_STATES = 3000


def run(check: Check) -> str:
    from reliability.small_job import small_jobs

    small_jobs(check.scratch)  # by the real code: what the mutants must give
    names = list(MUTANTS)
    if check.fast:
        names = names[check.seed % 6 :: 6]

    def one(name: str, folder: Path) -> None:
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

    check.each(names, one, seconds=1000)
    return f"{check.cases - len(check.failures)} of {check.cases} mutants caught"


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
    for battery in (_damage, _kills, _power):
        caught = battery(jobs, folder, seed)
        if caught:
            print(f"caught by {battery.__name__.strip('_')}: {caught}")
            return 0
    print("survived")
    return 1


def _damage(jobs: list[Job], folder: Path, seed: int) -> str:
    from reliability import damage

    return damage.first_failure(jobs[:2], folder)


def _kills(jobs: list[Job], folder: Path, seed: int) -> str:
    from reliability.r01_kill_anywhere import faults, kill_case, operations

    for job in (jobs[0], jobs[2]):
        every = faults(operations(job, folder))
        for number, fault in enumerate(every):
            case = folder / f"kill-{number}"
            case.mkdir()
            try:
                kill_case(job, fault, case)
            except Exception as error:
                return f"{fault}: {error!r}"
    return ""


def _power(jobs: list[Job], folder: Path, seed: int) -> str:
    from reliability.power import MODELS
    from reliability.r02_power_loss import power_case, stories

    check = Check(folder, seed=seed)
    told = stories([jobs[0], jobs[2]], folder)
    for number in range(POWER_STATES):
        story = told[number % len(told)]
        name = f"{MODELS[number // len(told) % 2]} {story.name} {number}"
        case = folder / f"power-{number}"
        case.mkdir()
        try:
            power_case(check, story, name, case)
        except Exception as error:
            return f"{name}: {error!r}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
