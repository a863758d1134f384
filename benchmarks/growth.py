"""What a dataset of many small files costs: seconds and memory of the commands around `prepare`.

Makes FILES inputs of some lines each, a unit for each line (units are 16 MB else), and prepares
them. Then it measures `plan`, the same `prepare` again (nothing is left to do), `verify`,
`inspect`, `status` and `open_dataset`, each in a process of its own. Marks: 5 s and 500 MB.

    python benchmarks/growth.py [--files 10000] [--units 10] [--format nanogpt] [--work DIR]
    python benchmarks/growth.py --profile plan
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK_SECONDS, MARK_MB = 5.0, 500
PR_SET_CHILD_SUBREAPER = 36
LINE_BYTES = 64
COMMAND = f"""
import sys
from tokenmill.cli.main import main
from tokenmill.inputs import segments
segments.SEGMENT_BYTES = {LINE_BYTES}
main()
"""
PROFILE = """
import atexit, cProfile, pstats, sys
profile = cProfile.Profile()
profile.enable()
def tell():
    profile.disable()
    pstats.Stats(profile, stream=sys.stderr).sort_stats("cumtime").print_stats(60)
atexit.register(tell)
"""
OPEN = "import sys, tokenmill; print(tokenmill.open_dataset(sys.argv[1])['train'].tokens[-1])"


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds by the clock, processor seconds of the tree, MB of its largest process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            start = time.monotonic()
            status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
            seconds = time.monotonic() - start
            while True:
                try:
                    os.wait()
                except ChildProcessError:
                    break
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            told = f"{seconds} {used.ru_utime + used.ru_stime} {used.ru_maxrss / 1000}"
            os.write(write, told.encode())
        finally:
            os._exit(status)
    os.close(write)
    found = os.read(read, 200).decode().split()
    os.close(read)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"failed: {' '.join(command)}")
    seconds, processor, memory = map(float, found)
    return seconds, processor, memory


def make_inputs(folder: Path, files: int, units: int) -> None:
    for number in range(files):
        place = folder / f"{number // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        lines = (f'{{"text": "line {line} of {number}"}}' for line in range(units))
        content = "".join(f"{line:{LINE_BYTES - 1}}\n" for line in lines)
        (place / f"{number:07d}.jsonl").write_text(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--units", type=int, default=1, help="in each file")
    parser.add_argument("--format", default="nanogpt")
    parser.add_argument("--work", type=Path, help="where inputs and outputs go")
    parser.add_argument("--profile", help="the step whose profile is printed: plan, resume ...")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        inputs, out = Path(name) / "in", Path(name) / "out"
        make_inputs(inputs, options.files, options.units)
        tokenmill = [sys.executable, "-c", COMMAND]
        settings = [str(inputs), "-o", str(out), "--format", options.format, "--val", "0.1"]
        prepare = ["prepare", *settings, "--quiet", "--workers", "0"]
        steps = {
            "plan": [*tokenmill, "plan", *settings],
            "prepare": [*tokenmill, *prepare],
            "resume": [*tokenmill, *prepare],
            "verify": [*tokenmill, "verify", str(out)],
            "inspect": [*tokenmill, "inspect", str(out)],
            "status": [*tokenmill, "status", str(out)],
            "open": [sys.executable, "-c", OPEN, str(out)],
        }
        print(f"{options.files:,} files, {options.units} units each")
        print(f"{'step':10}{'seconds':>10}{'processor':>12}{'MB':>8}")
        for step, command in steps.items():
            if step == options.profile:
                profiled = [*command[:2], PROFILE + command[2], *command[3:]]
                subprocess.run(profiled, stdout=subprocess.DEVNULL, check=True)
                continue
            seconds, processor, memory = measure(command)
            over = processor > MARK_SECONDS or memory > MARK_MB
            told = "  over the mark" if over and step != "prepare" else ""
            print(f"{step:10}{seconds:>10.2f}{processor:>12.2f}{memory:>8.0f}{told}", flush=True)


if __name__ == "__main__":
    main()
