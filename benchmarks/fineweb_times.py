"""How long FineWeb takes and what disk it needs, from a rate measured here and FineWeb's facts.

    python benchmarks/fineweb_times.py --corpus DIR --english-mb 600

The rate is that of `tokenmill prepare --format llmc` on English parquet on this machine, less the
start. Times on other numbers of cores are computed from it, in proportion; nobody ran them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

from run import MB, corpus_files, english_table, resize, write_input  # noqa: E402

START_SECONDS = 0.6
BYTES_PER_TOKEN = 45.97e9 / 9_972_918_177  # FineWeb-Edu's 10BT sample
# Parquet bytes and tokens (separators included); of the larger ones as the cards say.
PARTS = {
    "10B edu": (28_518_193_415, 9_982_590_278),
    "10B classic": (30_639_384_917, 10_386_358_700),
    "100B edu": (286e9, 100e9),
    "350B classic": (362_000_915_768 / 0.339, 362_000_915_768),
    "a dump, on average": (43_056.6e9 / 96, 15_835.2e9 / 96),
}
CORES = (2, 8, 64)
LINES = {"1 Gbit/s": 125e6, "10 Gbit/s": 1250e6}


def measured_rate(corpus: list[Path], size: int, repeats: int, cores: int) -> float:
    """Bytes of text a second and core, best of several."""
    work = Path(tempfile.mkdtemp(prefix="tokenmill-times-"))
    try:
        text = write_input(resize(english_table(corpus), size), work / "a.parquet")
        best = 1e9
        for _ in range(repeats):
            shutil.rmtree(work / "out", ignore_errors=True)
            command = [sys.executable, "-m", "tokenmill", "prepare", str(work / "a.parquet")]
            began = time.monotonic()
            subprocess.run(
                [*command, "-o", str(work / "out"), "--format", "llmc", "--quiet"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            best = min(best, time.monotonic() - began)
    finally:
        shutil.rmtree(work)
    return text / (best - START_SECONDS) / cores


def span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def main() -> None:
    from tokenmill.system.limits import available_cores

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", type=Path, default=[ROOT / "sample"])
    parser.add_argument("--english-mb", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=4)
    args = parser.parse_args()
    cores = available_cores()
    size = args.english_mb * MB
    rate = measured_rate(corpus_files(args.corpus), size, args.repeats, cores)
    print(f"measured: {rate / 1e6:.0f} MB/s of text a core, on {cores} cores\n")
    head = [
        "part",
        "to fetch",
        *LINES,
        *(f"{n} cores" for n in CORES),
        "tokens",
        "kept",
        "not kept",
    ]
    print("| " + " | ".join(head) + " |")
    print("| --- |" + " ---: |" * (len(head) - 1))
    for part, (fetch, tokens) in PARTS.items():
        text = tokens * BYTES_PER_TOKEN
        few = min(fetch, 6 * 2.15e9)  # four files on their way and two ahead
        cells = [part, f"{fetch / 1e9:,.0f} GB"]
        cells += [span(fetch / line) for line in LINES.values()]
        cells += [span(START_SECONDS + text / rate / n) for n in CORES]
        cells += [f"{2 * tokens / 1e9:,.0f} GB"]
        cells += [f"{(fetch + 2 * tokens) / 1e9:,.0f} GB", f"{(few + 2 * tokens) / 1e9:,.0f} GB"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
