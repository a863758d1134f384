"""How long it takes to make files of tokens that are there, with one worker and with two.

    python benchmarks/making.py --tokens 500 --work /dev/shm

The text is encoded once for each format, and the job stopped before its commit. From there on it
is resumed with one worker and with two, in turn, --repeats times; `seconds_making` of run.json is
the time that counts, the best of each. `export` makes the same formats of a finished dataset.
Processor time is that of the coordinator (with recovery), the workers and the fork server of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

from run import MB, corpus_files, english_table, resize, write_input  # noqa: E402

BYTES_A_TOKEN = 4.5
FILE_MB = 100
TICKS = os.sysconf("SC_CLK_TCK")
STOP_BEFORE_COMMIT = """
import sys
from tokenmill import assembly
from tokenmill.cli.main import main
def stop(*_, **__): raise SystemExit(0)
assembly.committing.commit = stop
sys.argv = ["tokenmill", *sys.argv[1:]]
sys.exit(main())
"""


# By workers: the seconds of each run, and the processor time of its processes.
Runs = dict[int, list[tuple[float, list[float]]]]


class ProcessorTime(threading.Thread):
    """Of all processes of a session, read from /proc while they live."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.session, self.ended, self.ticks = session, threading.Event(), dict[str, int]()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            for entry in filter(str.isdigit, os.listdir("/proc")):
                try:
                    stat = Path(f"/proc/{entry}/stat").read_text()
                except OSError:
                    continue
                fields = stat[stat.rindex(")") + 2 :].split()
                if int(fields[3]) == self.session:
                    self.ticks[entry] = int(fields[11]) + int(fields[12])

    @property
    def seconds(self) -> list[float]:
        """Of the coordinator, then of the others, the busiest first."""
        first = self.ticks.pop(str(self.session), 0)
        return [n / TICKS for n in (first, *sorted(self.ticks.values(), reverse=True)) if n > 9]


def tokenmill(*args: object, stop: bool = False) -> list[float]:
    """Run a command; returns the processor time of each process."""
    start = ["-c", STOP_BEFORE_COMMIT] if stop else ["-m", "tokenmill"]
    process = subprocess.Popen(
        [sys.executable, *start, *map(str, args)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    used = ProcessorTime(process.pid)
    used.start()
    _, told = process.communicate()
    used.ended.set()
    if process.returncode:
        raise SystemExit(told.decode())
    return used.seconds


def resumable(folder: Path, kept: Path) -> None:
    """The job as it was: token files by another link, everything that grows as a copy."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in kept.rglob("*"):
        target = folder / path.relative_to(kept)
        if path.is_dir():
            target.mkdir(parents=True)
        elif path.parent.name == "files":
            os.link(path, target)
        else:
            shutil.copy2(path, target)


def inputs(args: argparse.Namespace, folder: Path) -> list[Path]:
    """A file of text, under as many names as it takes."""
    first = folder / "000.parquet"
    write_input(resize(english_table(corpus_files(args.corpus)), FILE_MB * MB), first)
    count = max(1, round(args.tokens * BYTES_A_TOKEN / FILE_MB))
    paths = [first, *(folder / f"{i:03d}.parquet" for i in range(1, count))]
    for path in paths[1:]:
        os.link(first, path)
    return paths


def report(name: str, runs: Runs) -> None:
    best = {workers: min(seconds for seconds, _ in some) for workers, some in runs.items()}
    print(f"{name}: {best[1] / best[2]:.2f} times as fast with 2 workers")
    for workers, some in runs.items():
        each = ", ".join(f"{seconds:.2f}" for seconds, _ in some)
        used = "; ".join(" + ".join(f"{one:.1f}" for one in processor) for _, processor in some)
        print(f"  {workers} workers: best {best[workers]:.2f} s ({each}); processor time {used}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", type=Path, default=[ROOT / "sample"])
    parser.add_argument("--tokens", type=int, default=500, help="in millions, about")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"), help="for the output")
    parser.add_argument("--formats", nargs="+", default=["mds", "llmc,hf,parquet"])
    parser.add_argument("--export", nargs="+", default=["mds", "llmc,hf,parquet", "nanogpt"])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tokenmill-making-", dir=args.work))
    texts = Path(tempfile.mkdtemp(prefix="tokenmill-making-"))
    began = time.monotonic()
    try:
        paths, out = inputs(args, texts), work / "out"
        for formats in args.formats:
            options = ["--format", formats, "--quiet", "--name", "x", "--val", "docs:1000"]
            tokenmill("prepare", *paths, "-o", out, *options, stop=True)
            kept = out.rename(work / "kept")
            runs: Runs = {1: [], 2: []}
            for workers in [1, 2] * args.repeats:
                resumable(out, kept)
                used = tokenmill("prepare", *paths, "-o", out, *options, "--workers", workers)
                seconds = json.loads((out / "run.json").read_text())["seconds_making"]
                runs[workers].append((seconds, used))
            tokens = json.loads((out / "manifest.json").read_text())["counts"]["tokens"]
            report(f"prepare --format {formats}, {tokens / 1e6:.0f}M tokens", runs)
            shutil.rmtree(kept)
            shutil.rmtree(out)
        source = work / "source"
        if args.export:
            tokenmill(
                "prepare", *paths, "-o", source, "--format", "llmc", "--quiet", "--val", "docs:1000"
            )
        for formats in args.export:
            runs = {1: [], 2: []}
            for workers in [1, 2] * args.repeats:
                shutil.rmtree(out, ignore_errors=True)
                options = ["--format", formats, "--workers", workers, "--quiet"]
                used = tokenmill("export", source, "-o", out, *options)
                seconds = json.loads((out / "run.json").read_text())["seconds"]
                runs[workers].append((seconds, used))
            report(f"export --format {formats}", runs)
    finally:
        shutil.rmtree(work)
        shutil.rmtree(texts)
    print(f"(all of it: {time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
