"""How fast a dataset is made in a bucket, beside a folder, and in how much memory.

    python benchmarks/bucket_speed.py --mb 600 --repeats 3 --work /dev/shm

The bucket is `fast_bucket.py` on loopback. Folder and bucket take turns. Each line has the wall
time, the processor time of the command and all its processes (not of the server), and the peak of
the sum of their PSS. A job of one document is the start, which the ratio leaves out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

from making import ProcessorTime  # noqa: E402
from reliability.r12_memory import _pss, _tree  # noqa: E402
from run import MB, corpus_files, english_table, resize, write_input  # noqa: E402

FILE_MB = 100


class Cost(NamedTuple):
    wall: float
    processor: float
    peak: int


class Memory(threading.Thread):
    """The peak of the sum of PSS over a tree of processes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.ended, self.peak = pid, threading.Event(), 0

    def run(self) -> None:
        pause = 0.05
        while not self.ended.wait(pause):
            began = time.monotonic()
            self.peak = max(self.peak, sum(map(_pss, _tree(self.pid))))
            pause = max(0.05, 4 * (time.monotonic() - began))


def prepare(inputs: list[Path], output: str, memory: str, env: dict[str, str]) -> Cost:
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "prepare", *map(str, inputs), "-o", output, "--quiet",
         "--format", "llmc", "--name", "x", "--val", "none", "--workers", "2", "--memory", memory],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **env},
    )  # fmt: skip
    watchers = ProcessorTime(process.pid), Memory(process.pid)
    for watcher in watchers:
        watcher.start()
    _, told = process.communicate()
    for watcher in watchers:
        watcher.ended.set()
    if process.returncode not in (0, 4):
        raise SystemExit(told.decode())
    return Cost(time.monotonic() - began, sum(watchers[0].seconds), watchers[1].peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", type=Path, default=[ROOT / "sample"])
    parser.add_argument("--mb", type=int, default=600, help="of text")
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tokenmill-bucket-", dir=args.work))
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/fast_bucket.py"), str(work / "server")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    env = {
        "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(work / "cache"),
    }
    try:
        first = work / "in/000.parquet"
        write_input(resize(english_table(corpus_files(args.corpus)), FILE_MB * MB), first)
        inputs = [first, *(work / f"in/{n:03}.parquet" for n in range(1, args.mb // FILE_MB))]
        for path in inputs[1:]:
            os.link(first, path)
        small = work / "in/one.txt"
        small.write_text("one document\n")
        runs: dict[str, list[Cost]] = {}
        for number in range(args.repeats):
            for kind in ("folder", "bucket"):
                for what, given in (("start", [small]), ("job", inputs)):
                    name = f"{what}-{number}"
                    to = str(work / name) if kind == "folder" else f"s3://bucket/{name}"
                    cost = prepare(given, to, args.memory, env)
                    runs.setdefault(f"{kind} {what}", []).append(cost)
                    print(f"{kind} {what}: {cost.wall:.1f} s, processor {cost.processor:.1f} s, "
                          f"peak {cost.peak / 1e6:.0f} MB; load {os.getloadavg()[0]:.0f}",
                          flush=True)  # fmt: skip
                    shutil.rmtree(work / name, ignore_errors=True)
                    shutil.rmtree(work / "server/objects")
                    (work / "server/objects").mkdir()
        for field in ("wall", "processor"):
            best = {name: min(getattr(one, field) for one in some) for name, some in runs.items()}
            folder = best["folder job"] - best["folder start"]
            bucket = best["bucket job"] - best["bucket start"]
            print(f"{field}, best, after the start: {folder:.1f} and {bucket:.1f} s: "
                  f"{folder / bucket:.2f} of the speed")  # fmt: skip
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
