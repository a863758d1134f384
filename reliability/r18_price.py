"""R18: what safety costs: fsync, `verify`, and the resume of what is done already.

Timings are of one machine at one moment, so with and without fsync are run in turn and the best of
each is compared; `verify` is measured in seconds of a core. In CI only what does not depend on the
clock is asserted: how often is synced, and how much is read.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet

import tokenmill
from reliability.command import ROOT, argv, environment, in_process
from reliability.corpus import documents, write_jsonl
from reliability.scorecard import Check
from tokenmill.inputs.opening.identify import FINGERPRINT_BYTES

ID = "R18"
PROMISE = "price of safety"
MARK = (
    "with and without fsync: at least 98 % of the speed; verify at 1 GB/s a core; resume of a "
    "finished job under 1 s"
)

TEXT_BYTES = 330_000_000
PAIRS, MOST_PAIRS = 4, 10
LEAST_SPEED = 0.98
VERIFY_BYTES_A_SECOND = 1e9
RESUME_SECONDS = 1.0
# A job of one short sync: plan, journal, files, commit, manifest, run.json and their folders.
MOST_SYNCS = 60

# In the place of fsync: counted, timed, and left out where that is asked for. Python imports this
# before anything else in every process, the fork server and the workers among them.
COUNTED = """
import os, time

def counted(real):
    def sync(fd):
        began = time.perf_counter()
        if not os.environ.get("R18_WITHOUT"):
            real(fd)
        line = b"%.6f\\n" % (time.perf_counter() - began)
        log = os.open(os.environ["R18_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(log, line)
        os.close(log)
    return sync

os.fsync, os.fdatasync = counted(os.fsync), counted(os.fdatasync)
"""


class Bench:
    """The command with its fsyncs counted, or without them.

    `seldom`: one sync at the end. How many there are by the clock depends on the machine.
    """

    def __init__(self, folder: Path, seldom: bool = False) -> None:
        self.folder, self.seldom = folder, seldom
        (folder / "patch").mkdir()
        (folder / "patch" / "sitecustomize.py").write_text(COUNTED)

    def prepare(
        self, inputs: list[Path], output: Path, *options: str, without: bool = False
    ) -> Run:
        log = self.folder / f"syncs-{output.name}"
        log.unlink(missing_ok=True)
        path = os.pathsep.join((str(self.folder / "patch"), environment()["PYTHONPATH"]))
        env = {"PYTHONPATH": path, "R18_LOG": str(log), "R18_WITHOUT": "1" if without else ""}
        if self.seldom:
            env["TOKENMILL_SYNC_SECONDS"] = "600"
        began = time.perf_counter()
        done = subprocess.run(
            argv("prepare", *inputs, "-o", output, "--quiet", *options),
            env=environment(env), check=False, capture_output=True, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        assert done.returncode == 0, done.stderr[-1000:]
        times = [float(line) for line in log.read_text().split()] if log.exists() else []
        return Run(seconds, times)


class Run:
    def __init__(self, seconds: float, syncs: list[float]) -> None:
        self.seconds, self.syncs = seconds, syncs


# --- whole: the clock ------------------------------------------------------------------------


def real_disk() -> Path:
    """A folder that is not in memory, where fsync costs something."""
    for folder in (Path(tempfile.gettempdir()), ROOT):
        if file_system(folder) not in ("tmpfs", "ramfs") and os.access(folder, os.W_OK):
            return folder
    raise RuntimeError("no folder on a disk: set TMPDIR to one")


def file_system(folder: Path) -> str:
    """The type of the file system that holds a folder."""
    best, found = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split()[4]
        inside = str(folder.resolve()).startswith(mount.rstrip("/") + "/") or mount == str(folder)
        if inside and len(mount) > len(best):
            best, found = mount, rest.split()[0]
    return found


def sample_corpus(folder: Path, size: int) -> list[Path]:
    """The bundled sample, over and over, in four parquet files."""
    tables = [
        pyarrow.parquet.read_table(path, columns=["text"])
        for path in sorted((ROOT / "sample").glob("*.parquet"))
    ]
    once = pyarrow.concat_tables(tables)
    text = sum(len(value.as_py().encode()) for value in once.column(0))
    each = pyarrow.concat_tables([once] * (size // text // 4 + 1))
    paths = [folder / f"{number}.parquet" for number in range(4)]
    for path in paths:
        pyarrow.parquet.write_table(each, path, row_group_size=1000, compression="snappy")
    return paths


def with_and_without(bench: Bench, inputs: list[Path], output: Path) -> tuple[float, str]:
    """Speed with fsync as a share of the speed without: the best of each, run in turn."""
    bests = {False: float("inf"), True: float("inf")}
    blocked, pairs = 1.0, 0
    while pairs < PAIRS or (bests[True] / bests[False] < LEAST_SPEED and pairs < MOST_PAIRS):
        pairs += 1
        for without in ((False, True), (True, False))[pairs % 2]:
            shutil.rmtree(output, ignore_errors=True)
            os.sync()  # what one run left in memory is not the next one's to write
            run = bench.prepare(inputs, output, without=without)
            assert run.syncs, "the patch was not in use"
            bests[without] = min(bests[without], run.seconds)
            if not without:
                blocked = min(blocked, sum(run.syncs) / run.seconds)
    share = bests[True] / bests[False]
    said = (
        f"{100 * min(share, 1.0):.1f} % of the speed ({bests[False]:.2f} s with fsync, "
        f"{bests[True]:.2f} s without, best of {pairs}; fsync itself {100 * blocked:.1f} %)"
    )
    assert share >= LEAST_SPEED, said
    return share, said


def verify_speed(output: Path) -> str:
    """Bytes checked in a second of one core, from the page cache."""
    best = 0.0
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF)
        report = tokenmill.verify(output, threads=1)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert report.ok, report.problems
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = max(best, report.bytes / seconds)
    assert best >= VERIFY_BYTES_A_SECOND, f"verify: {best / 1e9:.2f} GB/s a core"
    return f"verify {best / 1e9:.1f} GB/s a core"


def resume_speed(bench: Bench, inputs: list[Path], output: Path) -> str:
    best = float("inf")
    for _ in range(10):
        best = min(best, bench.prepare(inputs, output).seconds)
        if best < RESUME_SECONDS * 0.8:
            break
    assert best < RESUME_SECONDS, f"resume of a finished job: {best:.2f} s"
    return f"resume of a finished job {best:.2f} s"


def timed(check: Check) -> list[str]:
    """All on one corpus on a disk, one after the other, nothing else at work."""
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tokenmill-R18-", dir=real_disk()) as name:
        folder = Path(name)
        bench, output = Bench(folder), folder / "o"
        inputs = sample_corpus(folder, TEXT_BYTES)
        bench.prepare(inputs, output)  # the page cache is warm from here on
        if check.wants("fsync"):
            with check.case("fsync"):
                said.append(with_and_without(bench, inputs, output)[1])
        if check.wants("verify"):
            with check.case("verify"):
                said.append(verify_speed(output))
        if check.wants("resume"):
            with check.case("resume"):
                said.append(resume_speed(bench, inputs, output))
    return said


# --- always: what the clock has no part in ---------------------------------------------------


def few_syncs(folder: Path) -> str:
    """Few fsyncs a run, and no more of them for forty units than for one."""
    bench = Bench(folder, seldom=True)
    counts = []
    for files in (1, 40):
        inputs = [write_jsonl(folder / f"{i}.jsonl", documents(20, i)) for i in range(files)]
        run = bench.prepare(inputs, folder / str(files), "--workers", "1", "--val", "none")
        counts.append(len(run.syncs))
    assert 8 <= counts[0] <= MOST_SYNCS, f"{counts[0]} fsyncs in a run of one unit"
    assert counts[1] <= counts[0] + 2, f"{counts[0]} fsyncs for 1 unit, {counts[1]} for 40"
    return f"{counts[1]} fsyncs for 40 units"


def bytes_read() -> int:
    """What this process has read so far, from the page cache or the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def little_read(folder: Path) -> str:
    """The resume of a finished job reads samples of a large input and no token; verify reads
    each byte once."""
    texts = documents(200, "r18", 300)
    path = write_jsonl(folder / "large.jsonl", texts * 120)
    size = path.stat().st_size
    assert size > 2 * FINGERPRINT_BYTES, "too small to tell"
    output = folder / "o"
    command = ("prepare", path, "-o", output, "--workers", "0", "--quiet")
    code, printed = in_process(*command)
    assert code == 0, printed
    before = bytes_read()
    code, printed = in_process(*command)
    assert code == 0, printed
    assert "already complete" in printed
    resumed = bytes_read() - before
    limit = FINGERPRINT_BYTES + (4 << 20)
    assert resumed < limit, f"a finished job read {resumed:,} bytes of {size:,} to find out"
    before = bytes_read()
    report = tokenmill.verify(output)
    verified = bytes_read() - before
    assert report.ok
    assert verified < 1.05 * report.bytes + (1 << 20), f"{verified:,} read of {report.bytes:,}"
    return f"a finished job's resume reads {resumed / size:.0%} of a {size / 1e6:.0f} MB input"


def run(check: Check) -> str:
    said: list[str] = [] if check.fast else timed(check)
    for name, action in (("syncs", few_syncs), ("reads", little_read)):
        if check.wants(name):
            with check.case(name) as folder:
                said.append(action(folder))
    return "; ".join(said) or "not measured"
