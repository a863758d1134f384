"""R23: whole jobs in a store without places: no rename, no lock, no append. Killed at every change,
damaged, given up and shared with a second coordinator, they end with the files of a folder."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from reliability.mutants import STORE_MUTANTS, install_change
from reliability.scorecard import Check

if TYPE_CHECKING:  # a mutant must be in place before the package is imported
    from reliability.object_jobs import ObjectJob

ID = "R23"
PROMISE = "a store without places"
MARK = (
    "every format, killed at every change: the bytes of a folder, nothing left over; all mutants "
    "caught"
)
KINDS = ("kill", "damage", "another", "second", "behind")
TOLD = {"kill": "killed", "damage": "damaged", "storm": "storms", "answers": "lost answers"}
MUTANT_JOBS = ("llmc", "overwrite", "several", "shuffled", "mixed")
UNIT_TESTS = "tests/unit/output/test_objects.py"


def store_case(check: Check, jobs: dict[str, ObjectJob], name: str, folder: Path) -> str:
    from reliability.object_jobs import TestStore

    job_name, kind, number = name.split()
    job, at, rng = jobs[job_name], int(number), check.rng(name)
    files, scratch = job.before(), folder / "scratch"
    if kind == "answers":
        store = TestStore(files)
        store.lost_answers = True
        job.run_first(store, scratch)
        job.check_done(files)
    elif kind == "storm":
        finished = False
        while not finished:
            finished = not job.until_killed(files, rng.randint(1, 40), scratch)
            job.check_reader(files)
        job.check_resume(files, scratch, undamaged=False)
    elif kind in ("second", "behind"):
        _two(job, files, at, scratch, whole=kind == "second")
    else:
        if not job.until_killed(files, at, scratch):
            return "over before"
        job.check_reader(files)
        if kind == "another":
            other = jobs["nanogpt" if job_name != "nanogpt" else "llmc"]
            other.run(TestStore(files), scratch, overwrite=True)
            other.check_done(files)
            return "given up"
        if kind == "damage" and not _damage_one(files, rng):
            return "nothing to damage"
        job.check_resume(files, scratch, undamaged=kind == "kill")
    return TOLD.get(kind, "second coordinators")


def _damage_one(files: dict[str, bytes], rng: random.Random) -> bool:
    """An object of an unfinished job is gone, cut off, or has a wrong bit. Not its plan."""
    work = (".tokenmill/driver/", ".tokenmill/plan.json", ".tokenmill/removing.json")
    names = sorted(name for name in files if not name.startswith(work))
    unfinished = ".tokenmill/plan.json" in files and "manifest.json" not in files
    if not unfinished or not names:
        return False
    name, how = rng.choice(names), rng.randrange(3)
    content = files[name]
    if how == 0 or not content:
        del files[name]
    elif how == 1:
        files[name] = content[: len(content) // 2]
    else:
        middle = len(content) // 2
        files[name] = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return True


def _two(
    job: ObjectJob, files: dict[str, bytes], number: int, scratch: Path, *, whole: bool
) -> None:
    """Before one change of a coordinator, another one does the whole job, or dies in its midst."""
    from reliability.object_jobs import NEVER, Killed, TestStore, killed_at
    from tokenmill.errors import RefusedError, StorageError

    def second(change: int) -> None:
        if change == number:
            at = killed_at(NEVER if whole else 9)
            with contextlib.suppress(Killed, RefusedError):
                job.run(TestStore(files, at), scratch / "second")

    # It was taken over: it is told so, or finds objects gone.
    with contextlib.suppress(RefusedError, StorageError):
        job.run_first(TestStore(files, second), scratch)
    job.check_reader(files)
    job.check_resume(files, scratch, undamaged=False)


def cases(jobs: dict[str, ObjectJob], scratch: Path, kinds: tuple[str, ...]) -> Iterator[str]:
    from reliability.object_jobs import changes_of

    for name, job in jobs.items():
        changes = changes_of(job, scratch)
        for kind in kinds:
            if kind in ("second", "behind") and job.overwrites is not None:
                continue  # not promised: docs/reliability.md
            yield from (f"{name} {kind} {n}" for n in range(1, changes + 1))
        yield f"{name} answers 0"
        if job.overwrites is None:  # to overwrite is to begin again each time
            yield from (f"{name} storm {n}" for n in range(10))


def run(check: Check) -> str:
    from reliability.object_jobs import object_jobs

    jobs = {job.name: job for job in object_jobs(check.scratch)}
    names = list(cases(jobs, check.scratch / "counted", KINDS))
    mutants = [f"mutant: {name}" for name in STORE_MUTANTS]
    if check.fast and not check.only:
        names, mutants = names[check.seed % 23 :: 23], []  # a mutant takes a minute

    def one(name: str, folder: Path) -> str:
        if name.startswith("mutant: "):
            return _mutant(name.partition(": ")[2], folder, check.seed)
        return store_case(check, jobs, name, folder)

    check.each([*names, *mutants], one, seconds=1800)
    done = check.outcomes
    told = [
        f"{done[what]:,} {what}"
        for what in (
            "killed", "storms", "damaged", "given up", "second coordinators", "lost answers",
        )
    ]  # fmt: skip
    by_row, by_tests = done["mutants by R23"], done["mutants by unit tests"]
    return (
        f"{len(jobs)} jobs: {', '.join(told)}: {len(check.failures)} failures; "
        f"{by_row + by_tests} of {len(mutants)} mutants caught ({by_tests} by {UNIT_TESTS})"
    )


def _mutant(name: str, folder: Path, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reliability.r23_store", name, str(folder), str(seed)],
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]
    return done.stdout.strip().splitlines()[-1]


def main(name: str, folder: Path, seed: int) -> int:
    """In a process of its own: put the mutant in place and see what notices it."""
    if name != "none":
        install_change(*STORE_MUTANTS[name])
    from reliability.object_jobs import object_jobs

    check = Check(folder, seed=seed)
    try:
        jobs = {one.name: one for one in object_jobs(folder)}
        mine = {one: jobs[one] for one in MUTANT_JOBS}
        for case in cases(mine, folder / "counted", KINDS):
            store_case(check, jobs, case, folder)
    except Exception as error:
        print(f"{error!r}\nmutants by R23")
        return 0
    import pytest

    if pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", UNIT_TESTS]):
        print("\nmutants by unit tests")
        return 0
    print("survived")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
