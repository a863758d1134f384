"""A disk that says no: what a run must answer, and that the next one ends identical."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliability.power import Trace, record
from reliability.small_job import Job, in_child, using
from tokenmill.failpoints import NEEDS_SPACE, FaultyDisk, Operation

INTERNAL = 99  # of `in_child`: something that is no error of ours


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
        assert said.startswith("StorageError:"), "not reported as a fault of the disk"
        assert str(output.parent) in said, "the error does not name the path"
        assert not full or "bytes were needed" in said, "the error does not say what is needed"
    except AssertionError as error:
        raise AssertionError(f"at {hit or 'no fault'}: {error} (exit {code}: {said})") from None
    job.check_resume(output)


def operations(job: Job, folder: Path) -> Trace:
    output = folder / f"count-{job.name}"
    job.before(output)
    return record(lambda: job.run_first(output), folder / "trace")


def every(
    trace: Trace, fault: str, which: Callable[[Operation], bool] = lambda _: True
) -> list[str]:
    """The fault at every operation of coordinator and worker."""
    counts: dict[str, int] = {}
    for role, operation in trace:
        if which(operation):
            counts[role] = counts.get(role, 0) + 1
    spec, lasting = fault.rstrip("+"), "+" * fault.endswith("+")
    return [f"{role}:{spec}@{n}{lasting}" for role in counts for n in range(1, counts[role] + 1)]


def needs_space(operation: Operation) -> bool:
    return operation.kind in NEEDS_SPACE


def is_write(operation: Operation) -> bool:
    return operation.kind == "write"


def share_of(names: list[str], check: Any, share: int) -> list[str]:
    """In the fast subset one case in so many, others for another seed."""
    return names[check.seed % share :: share] if check.fast and not check.only else names
