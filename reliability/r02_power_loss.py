"""R2: the power fails at any operation, and the disk keeps what it likes of what was not synced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reliability.power import MODELS, Trace, disk_at, lay_out, record
from reliability.scorecard import Check
from reliability.small_job import Job, died, in_child, small_jobs, using
from tokenmill.failpoints import FaultyDisk

ID = "R2"
PROMISE = "power loss"
MARK = "10,000 disk states, 0 failures"


@dataclass
class Story:
    """A job's operations, from what was on the disk before them."""

    job: Job
    root: Path
    start: dict[str, bytes]
    trace: Trace

    @property
    def name(self) -> str:
        return self.root.name


def stories(jobs: list[Job], folder: Path) -> list[Story]:
    """Each job from its beginning, and the first one resumed after a kill in its middle."""
    found = []
    for job in jobs:
        root = folder / "stories" / job.name
        job.before(root)
        start = _content(root)
        trace = record(lambda job=job, root=root: job.run_first(root), folder / "trace")  # type: ignore[misc]
        found.append(Story(job, root, start, trace))
    job, root = jobs[0], folder / "stories" / "resumed"
    with using(FaultyDisk(f"kill@{len(found[0].trace) // 2}")):
        code, said = in_child(lambda: job.run_first(root))
    assert died(code), said
    start = _content(root)
    found.append(Story(job, root, start, record(lambda: job.run(root), folder / "trace")))
    return found


def _content(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def power_case(check: Check, story: Story, name: str, folder: Path) -> None:
    """One state of the disk: seen by a reader, then by the same command again."""
    rng = check.rng(name)
    model = name.split()[0]
    # the last moment too: all was done, and much of it not synced
    moment = rng.randint(0, len(story.trace))
    disk = disk_at(model, story.trace, moment, story.root, story.start)
    state = disk.after_power_loss(rng)
    output = folder / "o"
    lay_out(state, output)
    try:
        story.job.check_resume(output)
    except Exception as error:
        at = story.trace[moment][1].name if moment < len(story.trace) else "the end"
        raise AssertionError(f"power lost before operation {moment} ({at}): {error}") from error


def run(check: Check) -> str:
    told = {story.name: story for story in stories(small_jobs(check.scratch), check.scratch)}
    count = check.scale(10_000, 500) // (len(MODELS) * len(told))
    names = [f"{m} {s} {n}" for m in MODELS for s in told for n in range(count)]
    check.each(names, lambda name, folder: power_case(check, told[name.split()[1]], name, folder))
    return f"{check.cases:,} disk states, {len(check.failures)} failures"
