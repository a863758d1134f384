"""`datasets.map` with tokenmill's Tokenizer beside the usual functions: same data, same num_proc.

    pip install -e '.[bench]'
    python benchmarks/map.py                                  # the bundled sample, repeated
    python benchmarks/map.py --corpus DIR_OR_FILES --mb 90    # your own parquet or JSONL

Each contender runs in a fresh process on the same Arrow files (page cache warm) and is timed from
the call of `map` to its return; imports and opening the dataset are not counted, opening the
tokenizer in each worker is. Processor seconds are those of all processes: they say more where
others use the machine too. The ids of all contenders are compared. Memory is the peak PSS of all
processes, from a run of its own that is not timed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from execute import execute
from run import corpus_files, english_table, ranks_file, resize

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from nanogpt_prepare import ENCODING, seed_tiktoken_cache


def usual() -> Callable[[Any], Any]:
    """One row at a time, as nanoGPT's prepare.py and most tutorials have it."""
    import tiktoken

    enc = tiktoken.get_encoding(ENCODING)

    def process(example: Any) -> Any:
        ids = enc.encode_ordinary(example["text"])
        ids.append(enc.eot_token)
        return {"ids": ids, "len": len(ids)}

    return process


def lazy() -> Callable[[Any], Any]:
    """The old advice: load the encoder in the worker, when it is first needed."""

    def process(example: Any) -> Any:
        import tiktoken

        enc = tiktoken.get_encoding(ENCODING)  # kept by tiktoken's registry after the first time
        ids = enc.encode_ordinary(example["text"])
        ids.append(enc.eot_token)
        return {"ids": ids, "len": len(ids)}

    return process


def usual_batched() -> Callable[[Any], Any]:
    import tiktoken

    enc = tiktoken.get_encoding(ENCODING)

    def process(batch: Any) -> Any:
        ids = [[*found, enc.eot_token] for found in enc.encode_ordinary_batch(batch["text"])]
        return {"ids": ids, "len": [len(found) for found in ids]}

    return process


def ours() -> Callable[[Any], Any]:
    import tokenmill

    return tokenmill.Tokenizer(ENCODING).map


# name: how the function is made, num_proc, batched, the dataset's format
CONTENDERS: dict[str, tuple[Callable[[], Callable[[Any], Any]], int, bool, str | None]] = {
    "tok.map, num_proc=2": (ours, 2, True, None),
    "tok.map, num_proc=2, arrow format": (ours, 2, True, "arrow"),
    "tok.map, num_proc=1": (ours, 1, True, None),
    "tok.map, num_proc=2, row by row": (ours, 2, False, None),
    "usual, num_proc=2": (usual, 2, False, None),
    "usual, num_proc=1": (usual, 1, False, None),
    "usual, batched, num_proc=2": (usual_batched, 2, True, None),
    "loaded lazily, num_proc=2": (lazy, 2, False, None),
}


def run_one(name: str, folder: Path, work: Path, ranks: Path) -> None:
    """In a fresh process: map, and print what it took and gave."""
    seed_tiktoken_cache(ranks, work / "tiktoken")
    import datasets
    import numpy as np
    import pyarrow.compute as pc

    make, processes, batched, form = CONTENDERS[name]
    ds = datasets.load_from_disk(str(folder)).with_format(form)
    function = make()
    target = str(work / "mapped.arrow")
    begun, used = time.perf_counter(), sum(os.times()[:4])
    mapped = ds.map(
        function,
        batched=batched,
        num_proc=processes,
        remove_columns=ds.column_names,
        cache_file_name=target,
    )
    seconds, processor = time.perf_counter() - begun, sum(os.times()[:4]) - used
    size = sum(Path(entry["filename"]).stat().st_size for entry in mapped.cache_files)
    digest = hashlib.sha256()
    for chunk in mapped.with_format("arrow")[:]["ids"].chunks:
        digest.update(np.asarray(pc.list_flatten(chunk)).astype(np.uint32).tobytes())
    print(
        json.dumps(
            {"seconds": seconds, "processor": processor, "bytes": size, "ids": digest.hexdigest()}
        )
    )


def measure(name: str, folder: Path, work: Path, ranks: Path, sample: float) -> dict[str, Any]:
    run_folder = Path(tempfile.mkdtemp(dir=work))
    command = [sys.executable, __file__, "--one", name, "--work", str(run_folder)]
    command += ["--data", str(folder), "--ranks", str(ranks)]
    try:
        code, _, peak = execute(command, run_folder, 3600, sample)
        if code:
            raise SystemExit(f"{name}: failed\n{(run_folder / 'stderr').read_text()[-2000:]}")
        found: dict[str, Any] = json.loads((run_folder / "stdout").read_text().splitlines()[-1])
        return {**found, "peak": peak}
    finally:
        shutil.rmtree(run_folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--corpus", type=Path, nargs="+", default=[Path(__file__).parent.parent / "sample"]
    )
    parser.add_argument("--mb", type=int, default=90)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--ranks", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.data, options.work, options.ranks)
        return 0
    work = Path(tempfile.mkdtemp(dir=options.work))
    try:
        return compare(options, work)
    finally:
        shutil.rmtree(work)


def compare(options: argparse.Namespace, work: Path) -> int:
    import datasets

    table = resize(english_table(corpus_files(options.corpus)), options.mb * 10**6).select(["text"])
    text_bytes = sum(chunk.nbytes for chunk in table["text"].chunks)
    datasets.Dataset(table).save_to_disk(str(work / "data"))
    ranks = ranks_file(options.ranks, work)
    print(f"{table.num_rows:,} rows, {text_bytes / 1e6:.0f} MB of text, {ENCODING}\n")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contenders}
    peaks = {n: measure(n, work / "data", work, ranks, 0.1)["peak"] for n in options.contenders}
    for _ in range(options.repeats):
        for name in options.contenders:
            runs[name].append(measure(name, work / "data", work, ranks, 0))
    base = min(run["seconds"] for run in runs[options.contenders[0]])
    print("| map | best s | median s | processor s | MB/s | to the first | cache MB | peak MB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, found in runs.items():
        seconds = [run["seconds"] for run in found]
        best = min(seconds)
        print(
            f"| {name} | {best:.2f} | {statistics.median(seconds):.2f} | "
            f"{min(run['processor'] for run in found):.2f} | "
            f"{text_bytes / best / 1e6:.0f} | {best / base:.1f} | {found[0]['bytes'] / 1e6:.0f} | "
            f"{peaks[name] / 1e6:.0f} |"
        )
    same = len({run["ids"] for found in runs.values() for run in found}) == 1
    print(f"\nids: {'the same from all' if same else 'NOT the same'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
