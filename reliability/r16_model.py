"""R16: hypothesis draws runs, kills, faults, damage and other settings; a small model says what
must hold after each step."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reliability.corpus import dataset_bytes, durable_records, resumed
from reliability.faults import INTERNAL
from reliability.scorecard import Check
from reliability.small_job import Job, died, in_child, small_jobs, using
from tokenmill.dataset.verification import verify
from tokenmill.errors import RefusedError, StorageError, TokenmillError, VerificationError
from tokenmill.system.failpoints import FaultyDisk

ID = "R16"
PROMISE = "model test"
MARK = "300 runs x 30 steps"
STEPS = 30
RUNS_A_CASE = 10

JOBS = st.sampled_from(["nanogpt", "llmc"])
OPERATION = st.integers(1, 260)


class Machine(RuleBasedStateMachine):
    """One output folder. `bound` is the job whose plan it holds, "" for none known."""

    jobs: dict[str, Job]
    scratch: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=self.scratch))
        self.output = self.folder / "o"
        self.damaged = False
        self.nothing_to_do = False

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def empty(self) -> None:
        self.damaged = False

    # --- what is there -----------------------------------------------------------------------

    @property
    def finished(self) -> str:
        """The job whose dataset is there."""
        if not (self.output / "manifest.json").exists():
            return ""
        manifest = (self.output / "manifest.json").read_bytes()
        found = [n for n, job in self.jobs.items() if job.expected["manifest.json"] == manifest]
        return found[0] if found else "?"

    @property
    def working(self) -> bool:
        return (self.output / ".tokenmill/plan.json").exists()

    @invariant()
    def a_reader_sees_no_broken_dataset(self) -> None:
        if self.damaged or not self.output.exists():
            return
        if self.finished:
            report = verify(self.output)
            assert report.ok, report.problems[:3]
        for name, content in dataset_bytes(self.output).items():
            if not name.startswith("."):
                whole = [job.expected.get(name) for job in self.jobs.values()]
                assert content in whole, f"{name} is visible and not whole"

    # --- steps -------------------------------------------------------------------------------

    def _attempt(self, job: Job, disk: Any, overwrite: bool) -> tuple[int, str]:
        """A run in a process of its own that may be killed."""
        self.nothing_to_do = bool(self.finished) and not overwrite
        with using(disk):
            return in_child(lambda: job.run(self.output, overwrite=overwrite))

    def _after(self, job: Job, code: int, said: str, overwrite: bool) -> None:
        assert code != INTERNAL, said
        if code == 0 and not (self.damaged and self.nothing_to_do):
            self.damaged = False
            job.check_done(self.output)
        elif code == 2:
            assert not overwrite or self.damaged, f"--overwrite was refused: {said}"

    @rule(name=JOBS, operation=OPERATION, overwrite=st.booleans(), torn=st.booleans())
    def killed(self, name: str, operation: int, overwrite: bool, torn: bool) -> None:
        fault = f"torn@{operation // 4 + 1}" if torn else f"kill@{operation}"
        before = {record.unit for record in durable_records(self.output)}
        bound = self.working and not overwrite
        code, said = self._attempt(self.jobs[name], FaultyDisk(fault), overwrite)
        note(f"{name} {fault}: {code} {said}")
        if not died(code):
            self._after(self.jobs[name], code, said, overwrite)
        elif bound and self.working and not self.damaged:
            kept = {record.unit for record in durable_records(self.output)}
            assert before <= kept, "what was durable is not any more"

    @rule(
        name=JOBS,
        operation=OPERATION,
        kind=st.sampled_from(["eio", "enospc", "short"]),
        overwrite=st.booleans(),
    )
    def faulty(self, name: str, operation: int, kind: str, overwrite: bool) -> None:
        fault = f"{kind}@{operation}" + "+" * (kind == "enospc")
        code, said = self._attempt(self.jobs[name], FaultyDisk(fault), overwrite)
        note(f"{name} {fault}: {code} {said}")
        self._after(self.jobs[name], code, said, overwrite)

    @rule(name=JOBS)
    def run_again(self, name: str) -> None:
        """Undisturbed: done, or refused because of another plan, or because of the damage."""
        job, other = self.jobs[name], self.finished not in ("", name)
        durable, finished = durable_records(self.output), self.finished
        try:
            result = job.run(self.output)
        except TokenmillError as error:
            note(f"{name}: {error.message}")
            assert isinstance(error, RefusedError | StorageError | VerificationError)
            bound_to_another = other or "bound to another plan" in error.message
            assert bound_to_another or self.damaged, error.message
            return
        assert not other
        if finished and self.damaged:
            return  # found by `verify`, not by a command that has nothing to do
        job.check_done(self.output)
        if not finished and not self.damaged:
            assert resumed(result.run) == len(durable), "a durable unit was done again"
        self.damaged = False

    @rule(name=JOBS)
    def start_anew(self, name: str) -> None:
        try:
            self.jobs[name].run(self.output, overwrite=True)
        except TokenmillError as error:
            assert self.damaged, error.message
            shutil.rmtree(self.output)  # as the message says: by hand
            self.jobs[name].run(self.output)
        self.damaged = False
        self.jobs[name].check_done(self.output)

    @precondition(lambda self: self.output.exists())
    @rule(data=st.data(), cut=st.booleans())
    def corrupt(self, data: st.DataObject, cut: bool) -> None:
        files = [
            path
            for path in sorted(self.output.rglob("*"))
            if path.is_file() and path.stat().st_size and path.name not in ("lock", "run.json")
        ]
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content[:at] if cut else content)
        note(f"damaged {path.relative_to(self.output)} at {at}")
        self.damaged = True

    @rule()
    def verified(self) -> None:
        """Every damage of a finished dataset is found; a whole one passes."""
        if not (self.output / "manifest.json").exists():
            return
        whole = [job.expected for job in self.jobs.values()]
        visible = {
            name: content
            for name, content in dataset_bytes(self.output).items()
            if not name.startswith(".")
        }
        try:
            ok = verify(self.output).ok
        except TokenmillError:
            ok = False
        assert ok == (visible in whole)


def run(check: Check) -> str:
    Machine.jobs = {job.name: job for job in small_jobs(check.scratch) if not job.overwrites}
    Machine.jobs.pop("workers", None)
    Machine.scratch = check.scratch
    runs = check.scale(300, 20)
    names = [f"runs {number}" for number in range(runs // RUNS_A_CASE)]

    def one(name: str, folder: Path) -> None:
        chosen = settings(
            max_examples=RUNS_A_CASE,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        machine = seed(check.rng(name).getrandbits(32))(Machine)
        run_state_machine_as_test(machine, settings=chosen)

    check.each(names, one, seconds=1800)
    done = (check.cases - len(check.failures)) * RUNS_A_CASE
    return f"{done} runs of up to {STEPS} steps, {len(check.failures)} failures"
