"""R2: the power fails at any operation, and the disk keeps what it likes of what was not synced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reliability.corpus import durable_records
from reliability.power import MODELS, File, Trace, disk_at, lay_out, record
from reliability.scorecard import Check
from reliability.small_job import Job, died, in_child, small_jobs, using
from tokenmill.output.journal import JOURNAL_MAGIC, framed_records
from tokenmill.system.failpoints import FaultyDisk

ID = "R2"
PROMISE = "power loss"
MARK = "10,000 disk states, 0 failures"


OUTPUT = "new/out"  # below the root: the folders above an output must be durable too


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

    def promised(self, moment: int) -> int:
        """How many units the job had called durable by then: a record is written to the journal,
        synced by the next operation, and from then on relied upon."""
        path, promised, asked = f"{OUTPUT}/.tokenmill/journal", 0, False
        journal = File(self.start.get(path, b""))
        for role, operation in self.trace[:moment]:
            if asked and role == "coordinator":
                content, asked = journal.content(journal.since), False
                header = content.index(b"\n", len(JOURNAL_MAGIC)) + 1
                promised = sum(1 for _ in framed_records(content, header))
            if operation.path == str(self.root / path) and operation.kind in ("write", "truncate"):
                at = operation.offset if operation.kind == "write" else operation.size
                journal.since.append((operation.kind, at, operation.data))
                asked = operation.kind == "write"
        return promised


def stories(jobs: list[Job], folder: Path) -> list[Story]:
    """Each job from its beginning, and the first one resumed after a kill in its middle."""
    found = []
    for job in jobs:
        root = folder / "stories" / job.name
        root.mkdir(parents=True)
        job.before(root / OUTPUT)
        found.append(_story(job, root, job.run_first))
    job, root = jobs[0], folder / "stories" / "resumed"
    with using(FaultyDisk(f"kill@{len(found[0].trace) // 2}")):
        code, said = in_child(lambda: job.run_first(root / OUTPUT))
    assert died(code), said
    return [*found, _story(job, root, job.run)]


def _story(job: Job, root: Path, run: Callable[[Path], object]) -> Story:
    files = [path for path in root.rglob("*") if path.is_file()]
    start = {str(path.relative_to(root)): path.read_bytes() for path in files}
    return Story(job, root, start, record(lambda: run(root / OUTPUT), root.with_suffix(".trace")))


def power_case(check: Check, story: Story, name: str, folder: Path) -> None:
    """One state of the disk: seen by a reader, then by the same command again."""
    rng = check.rng(name)
    model = name.split()[0]
    # the end more often: all was done, and much of it not synced
    end = len(story.trace)
    moment = end if rng.random() < 0.05 else rng.randint(0, end)
    disk = disk_at(model, story.trace, moment, story.root, story.start)
    lay_out(disk.after_power_loss(rng), folder)
    try:
        check_kept(story, moment, folder / OUTPUT)
        story.job.check_resume(folder / OUTPUT)
    except Exception as error:
        at = story.trace[moment][1].name if moment < len(story.trace) else "the end"
        raise AssertionError(f"power lost before operation {moment} ({at}): {error!r}") from error


def check_kept(story: Story, moment: int, output: Path) -> None:
    """What the run could rely on at that moment is there: units called durable, a dataset."""
    manifest = output / "manifest.json"
    if moment == len(story.trace):
        assert manifest.exists(), "the run was over and its dataset is gone"
        story.job.check_done(output)
    elif not manifest.exists():
        promised, kept = story.promised(moment), len(durable_records(output))
        committed = (output / ".tokenmill/commit.json").exists()
        assert kept >= promised or committed, f"{promised} units were durable, {kept} are left"


def run(check: Check) -> str:
    told = {story.name: story for story in stories(small_jobs(check.scratch), check.scratch)}
    count = check.scale(10_000, 500) // (len(MODELS) * len(told))
    names = [f"{m} {s} {n}" for m in MODELS for s in told for n in range(count)]

    def one(name: str, folder: Path) -> None:
        power_case(check, told[name.split()[1]], name, folder)

    check.each(names, one)
    return f"{check.cases:,} disk states, {len(check.failures)} failures"
