"""The price of `--shuffle`: processor time with it and without it, in turns, on the same text.

    python benchmarks/shuffle.py [--megabytes 600] [--rounds 3] [--workers 2] [--inputs FILES...]

The ratio is of the processor time of all processes; the mark is 1.35. Without `--inputs` the text
of the bundled sample is repeated, each copy with a number of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from execute import cost

MARK = 1.35
FILE_BYTES = 64_000_000


def write_inputs(folder: Path, megabytes: int) -> list[Path]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.inputs import sample_texts

    texts = sample_texts()
    paths: list[Path] = []
    left, copy = megabytes * 1_000_000, 0
    while left > 0:
        path = folder / f"{len(paths):04d}.jsonl"
        paths.append(path)
        with path.open("w") as file:
            while file.tell() < min(FILE_BYTES, left):
                file.writelines(json.dumps({"text": f"{copy} {text}"}) + "\n" for text in texts)
                copy += 1
            left -= file.tell()
    return paths


def processor_seconds(inputs: list[Path], output: Path, workers: int, *options: str) -> float:
    took = cost(
        [sys.executable, "-m", "tokenmill", "prepare", *map(str, inputs), "-o", str(output),
         "--workers", str(workers), "--val", "0.01", "--quiet", *options]
    )  # fmt: skip
    told = f"{took.processor:7.2f} s of processor, {took.seconds:7.2f} s"
    print(f"  {' '.join(options) or 'plain':10} {told}")
    shutil.rmtree(output)
    return took.processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--inputs", nargs="*", type=Path)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        here = Path(folder)
        inputs = wanted.inputs or write_inputs(here, wanted.megabytes)
        print(f"{sum(path.stat().st_size for path in inputs) / 1e6:.0f} MB in {len(inputs)} files")
        ratios = []
        for _ in range(wanted.rounds):
            plain = processor_seconds(inputs, here / "plain", wanted.workers)
            ratios.append(
                processor_seconds(inputs, here / "shuffled", wanted.workers, "--shuffle") / plain
            )
        told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"--shuffle: {told}; median {statistics.median(ratios):.2f} times (mark {MARK})")


if __name__ == "__main__":
    main()
