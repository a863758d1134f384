"""`--shuffle` on more and more text: memory and the rate of processor time must stay as they are.

    python benchmarks/shuffle_growth.py [--megabytes 75] [--times 1 4 16 64] [--workers 2]

Prints the peak of the memory of all processes (PSS) and the megabytes of text for each second of
processor time. The text is that of the bundled sample, repeated, each copy with its own number.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import sys
import tempfile
from pathlib import Path

from execute import PR_SET_CHILD_SUBREAPER
from shuffle import write_inputs

sys.path.insert(0, str(Path(__file__).parents[1]))
from reliability.r12_memory import run_measured


def processor_seconds() -> float:
    """Of all processes that have ended below this one."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # fork servers and workers: orphans of the command
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=75)
    parser.add_argument("--times", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for times in wanted.times:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            inputs = write_inputs(Path(folder), wanted.megabytes * times)
            size = sum(path.stat().st_size for path in inputs) / 1e6
            before = processor_seconds()
            ran = run_measured(
                ["prepare", *map(str, inputs), "-o", f"{folder}/out", "--shuffle", "--val", "0.01",
                 "--workers", str(wanted.workers), "--quiet"]
            )  # fmt: skip
            if ran.code:
                raise SystemExit(ran.said)
            took = processor_seconds() - before
            told = f"{took:7.1f} s of processor, {size / took:5.1f} MB/s, {ran.peak / 1e6:4.0f} MB"
            print(f"{times:3} x: {size:6.0f} MB of text, {told}", flush=True)


if __name__ == "__main__":
    main()
