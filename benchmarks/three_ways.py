"""The three ways to train.bin on the same text: one process, `datasets.map`, straight on parquet.

    python benchmarks/three_ways.py --corpus DIR --english-mb 300

The scripts are those of data/fineweb/, each in a process of its own with an empty cache of
`datasets`, best of --repeats. Needs the package `datasets`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

from run import MB, corpus_files, english_table, resize, write_input  # noqa: E402

SCRIPTS = ROOT / "data" / "fineweb"


def timed(work: Path, script: str, *options: str) -> tuple[float, int]:
    """Seconds, and bytes on disk besides the tokens."""
    env = {**os.environ, "HF_HOME": str(work / "hf"), "HF_DATASETS_OFFLINE": "1"}
    out = work / "out"
    for folder in (out, work / "hf"):
        shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    subprocess.run(
        [sys.executable, str(SCRIPTS / script), *options, "-o", str(out)],
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - began
    return seconds, sum(p.stat().st_size for p in (work / "hf").rglob("*") if p.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", type=Path, default=[ROOT / "sample"])
    parser.add_argument("--english-mb", type=int, default=140, help="of text")
    parser.add_argument("--num-proc", default=str(os.cpu_count()))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tokenmill-three-"))
    text = work / "english.parquet"
    size = write_input(resize(english_table(corpus_files(args.corpus)), args.english_mb * MB), text)
    many = ("prepare.py", "--input", str(text), "--num-proc", args.num_proc)
    ways = {
        "one process: prepare.py --num-proc 1": (*many[:-1], "1"),
        f"datasets.map: prepare.py --num-proc {args.num_proc}": many,
        "straight on parquet: prepare_fineweb.py": ("prepare_fineweb.py", "--input", str(text)),
    }
    try:
        runs = {way: [timed(work, *command) for _ in range(args.repeats)]
                for way, command in ways.items()}  # fmt: skip
    finally:
        shutil.rmtree(work)
    best = {way: min(seconds for seconds, _ in found) for way, found in runs.items()}
    fastest = min(best.values())
    print(f"{size / 1e6:.0f} MB of text")
    for way, seconds in best.items():
        cache = runs[way][0][1]
        print(
            f"  {way:42} {seconds:6.1f} s  {size / seconds / 1e6:4.0f} MB/s  "
            f"{seconds / fastest:4.1f} x  {cache / 1e6:5.0f} MB of cache"
        )


if __name__ == "__main__":
    main()
