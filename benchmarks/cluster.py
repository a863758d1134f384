"""A Ray cluster with some cores beside the local engine with as many workers: the same job.

Both make the same llm.c shards of the same English parquet, in turns. A job of a few documents is
run first: what it takes is the start-up of each engine, and is taken off. Processor seconds of Ray
are too low: its workers are not waited for, so they are missing. Compare the clock, on a quiet
machine. Ray gives its workers a niceness of 15, so that on a busy machine they hardly get a turn:
here it is 0.

    python benchmarks/cluster.py --corpus DIR_OR_FILES ... [--mb 600 2000] [--repeats 3]
    python benchmarks/cluster.py --corpus DIR --datatrove-python VENV/bin/python

With --datatrove-python (a Python that has datatrove and ray), datatrove's Ray executor encodes the
same files, with as many tasks as files. Its output is another format: only its cost is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from execute import Cost, cost
from run import SAMPLE, corpus_files, english_table, resize, warm, write_input

FILE_BYTES = 200_000_000  # of text in one file
MARK = 0.85  # of the local speed
HERE = Path(__file__).resolve().parent


def make_inputs(corpus: list[Path], work: Path, sizes: list[int]) -> dict[int, list[Path]]:
    """For each size in MB, files of 200 MB of text: real copies of one. And one tiny file (0)."""
    table = english_table(corpus)
    first = work / "in" / "00.parquet"
    write_input(resize(table, FILE_BYTES), first)
    tiny = work / "tiny" / "00.parquet"
    write_input(pa.Table.from_batches(table.slice(0, 20).to_batches()), tiny)
    files = [first]
    for number in range(1, max(sizes) * 10**6 // FILE_BYTES):
        files.append(first.with_name(f"{number:02}.parquet"))
        shutil.copyfile(first, files[-1])
    return {0: [tiny]} | {size: files[: max(1, size * 10**6 // FILE_BYTES)] for size in sizes}


def tokenmill(files: list[Path], out: Path, workers: int, *more: str) -> list[str]:
    words = ["prepare", *map(str, files), "-o", str(out), "--format", "llmc", "--name", "x"]
    words += [
        "--workers",
        str(workers),
        "--val",
        "docs:5",
        "--encoder-check",
        "none",
        "--quiet",
        *more,
    ]
    return [sys.executable, "-m", "tokenmill", *words]


def datatrove(python: str, files: list[Path], out: Path, workers: int, tokenizer: Path) -> Any:
    script = HERE / "peers" / "datatrove_ray.py"
    return [python, str(script), *map(str, files), "--out", str(out), "--workers", str(workers),
            "--tokenizer", str(tokenizer)]  # fmt: skip


def commands(given: argparse.Namespace, files: list[Path], out: Path) -> dict[str, list[str]]:
    found = {
        "local": tokenmill(files, out, given.workers),
        "ray": tokenmill(files, out, given.workers, "--engine", "ray"),
    }
    if given.datatrove_python:
        found["datatrove"] = datatrove(
            given.datatrove_python, files, out, given.workers, given.datatrove_tokenizer
        )
    return found


def same_bytes(work: Path, found: dict[str, dict[str, bytes]]) -> None:
    if found["local"] != found["ray"]:
        raise SystemExit(f"{work}: Ray and the local engine made different datasets")


def digests(out: Path) -> dict[str, bytes]:
    """Of the manifest, which has the checksums of all files."""
    return {"manifest.json": (out / "manifest.json").read_bytes()}


def measure(given: argparse.Namespace, files: list[Path], work: Path) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {}
    for _ in range(given.repeats):
        made = dict[str, dict[str, bytes]]()
        for name in commands(given, files, work):
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            warm(files)
            costs.setdefault(name, []).append(cost(commands(given, files, out)[name]))
            if name != "datatrove":
                made[name] = digests(out)
            shutil.rmtree(out, ignore_errors=True)
        same_bytes(work, made)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, nargs="+", default=[SAMPLE])
    parser.add_argument("--mb", type=int, nargs="+", default=[600, 2000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--datatrove-python", default="")
    parser.add_argument("--datatrove-tokenizer", type=Path, default=Path("tokenizer.json"))
    given = parser.parse_args()
    subprocess.run([sys.executable, "-c", "import ray"], check=True)
    os.environ.setdefault("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory(prefix="tokenmill-cluster-") as folder:
        inputs = make_inputs(corpus_files(given.corpus), Path(folder), given.mb)
        least: dict[str, Cost] = {}
        for size, files in inputs.items():
            costs = measure(given, files, Path(folder))
            best = {
                name: Cost(*(min(one[k] for one in mine) for k in range(3)))
                for name, mine in costs.items()
            }
            if not size:
                least = best
                told = {name: one.seconds for name, one in best.items()}
                print(json.dumps({"start-up": told, "processor": {
                    name: one.processor for name, one in best.items()
                }}), flush=True)  # fmt: skip
                continue
            report(size, best, least, costs)


def report(
    size: int, best: dict[str, Cost], least: dict[str, Cost], costs: dict[str, list[Cost]]
) -> None:
    for name, one in best.items():
        seconds, processor = (one[k] - least[name][k] for k in (0, 1))
        local = [best["local"][k] - least["local"][k] for k in (0, 1)]
        line = {
            "mb": size,
            "engine": name,
            "seconds": round(one.seconds, 2),
            "seconds_after_start": round(seconds, 2),
            "processor_seconds": round(one.processor, 2),
            "processor_after_start": round(processor, 2),
            "speed_of_local": round(local[0] / seconds, 3),
            "runs": [round(run.seconds, 2) for run in costs[name]],
            "processor_runs": [round(run.processor, 2) for run in costs[name]],
        }
        if name == "ray":
            line["reaches_the_mark"] = local[0] / seconds >= MARK
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
