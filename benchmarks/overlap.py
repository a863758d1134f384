"""Does the job end when the download ends? A Hub on loopback behind a line of a given speed.

    python benchmarks/overlap.py --corpus DIR --english-mb 800 --line 40

Measured, each in a process of its own, best of --repeats: fetching alone (--download-only),
preparing alone (all of it in the cache), and both in one command. Without overlap the last would
take the sum of the two; with it, hardly more than the longer.
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
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from loopback_hub import Hub, running_hub  # noqa: E402

from run import MB, corpus_files, english_table, resize, write_input  # noqa: E402

FILES = 8


def fill(hub: Hub, corpus: list[Path], size: int, work: Path) -> int:
    """Files of English on the Hub; returns their bytes."""
    table = resize(english_table(corpus), size)
    step = -(-table.num_rows // FILES)
    contents = {}
    for i in range(FILES):
        path = work / f"{i}.parquet"
        write_input(table.slice(i * step, step), path)
        contents[f"data/{i:03d}.parquet"] = path.read_bytes()
    hub.repo("org/text").commit(contents)
    return sum(map(len, contents.values()))


def timed(hub: Hub, work: Path, *options: str) -> float:
    command = [sys.executable, "-m", "tokenmill", "prepare", "hf://datasets/org/text/data"]
    env = {**os.environ, **hub.environment(work / "hf"), "XDG_CACHE_HOME": str(work / "cache")}
    shutil.rmtree(work / "out", ignore_errors=True)
    began = time.monotonic()
    subprocess.run(
        [*command, "-o", str(work / "out"), "--quiet", *options],
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", type=Path, default=[ROOT / "sample"])
    parser.add_argument("--english-mb", type=int, default=400, help="of text, in eight files")
    parser.add_argument("--line", type=float, default=40.0, help="MB/s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--downloads", default="4", help="files on their way at a time")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tokenmill-overlap-"))
    try:
        with running_hub() as hub:
            size = fill(hub, corpus_files(args.corpus), args.english_mb * MB, work)
            hub.bytes_per_second = args.line * 1e6
            best = {"fetch": 1e9, "prepare": 1e9, "both": 1e9}
            for _ in range(args.repeats):
                shutil.rmtree(work / "hf", ignore_errors=True)
                best["fetch"] = min(best["fetch"], timed(hub, work, "--download-only"))
                best["prepare"] = min(best["prepare"], timed(hub, work))
                shutil.rmtree(work / "hf")
                both = timed(hub, work, "--downloads", args.downloads)
                best["both"] = min(best["both"], both)
    finally:
        shutil.rmtree(work)
    print(f"{size / 1e6:.0f} MB of parquet in {FILES} files, a line of {args.line:.0f} MB/s")
    print(f"  fetching alone         {best['fetch']:6.2f} s")
    print(f"  preparing alone        {best['prepare']:6.2f} s")
    print(f"  both, in one command   {best['both']:6.2f} s", end="")
    longer = max(best["fetch"], best["prepare"])
    print(f"  ({best['both'] / longer:.2f} x the longer of the two)")


if __name__ == "__main__":
    main()
