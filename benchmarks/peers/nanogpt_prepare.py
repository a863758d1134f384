"""nanoGPT's `data/openwebtext/prepare.py`, its way of working, on local parquet files.

Kept as it is there because it is what people run: `datasets` turns the parquet files into
Arrow files, splits and shuffles rows, tokenizes one row at a time with `map(num_proc=N)` into a
second set of Arrow files (ids as int64), and copies those into `train.bin` and `val.bin`.

Changed: the input is local; the ranks come from a file instead of the network; all columns are
removed, not only `text`, because FineWeb's rows have nine; no progress bars of its own. And one
repair, without which it fails on anything smaller than OpenWebText: see `write_split`.

    python nanogpt_prepare.py INPUT.parquet ... -o DIR --workers 2 --ranks r50k_base.tiktoken
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from datasets import load_dataset

ENCODING = "r50k_base"  # the same ids as "gpt2", from one file instead of two
RANKS_URL = f"https://openaipublic.blob.core.windows.net/encodings/{ENCODING}.tiktoken"


def seed_tiktoken_cache(ranks: Path, folder: Path) -> None:
    """Put the ranks where `tiktoken.get_encoding` looks before it asks the network.

    So the encoding is opened, pickled and found again in workers exactly as in the original.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ranks, folder / hashlib.sha1(RANKS_URL.encode()).hexdigest())
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


def tokenize(inputs: list[Path], cache: Path, workers: int) -> Any:
    """Load, split off 0.05 % for validation, and map every row to its ids, separator last."""
    files = [str(path) for path in inputs]
    dataset = load_dataset("parquet", data_files=files, cache_dir=str(cache), num_proc=workers)
    splits = dataset["train"].train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    splits["val"] = splits.pop("test")

    enc = tiktoken.get_encoding(ENCODING)

    def process(example: dict[str, Any]) -> dict[str, Any]:
        ids = enc.encode_ordinary(example["text"])
        ids.append(enc.eot_token)
        return {"ids": ids, "len": len(ids)}

    columns = splits["train"].column_names
    return splits.map(process, remove_columns=columns, num_proc=workers)


def write_split(rows: Any, path: Path) -> int:
    """Copy one split's ids into a memory map, in up to 1024 batches.

    The original always asks for 1024 batches and fails when a split has fewer rows, which the
    validation split (0.05 %) has for every set below 2 million documents. `min` is the repair
    people use.

    `batch["ids"]` is the original's spelling. Since datasets 4 it reads row by row, which makes
    this step slower than it was; it is left as it is because that is what people run.
    """
    total = int(np.sum(rows["len"], dtype=np.uint64))
    target = np.memmap(path, dtype=np.uint16, mode="w+", shape=(total,))
    batches = min(1024, len(rows))
    at = 0
    for index in range(batches):
        batch = rows.shard(num_shards=batches, index=index, contiguous=True).with_format("numpy")
        ids = np.concatenate(batch["ids"])
        target[at : at + len(ids)] = ids
        at += len(ids)
    target.flush()
    return total


def main() -> None:
    """Read the arguments, run, print one line of JSON."""
    parser = argparse.ArgumentParser(description="nanoGPT's prepare.py on local parquet files")
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", required=True, type=Path, help="r50k_base.tiktoken")
    args = parser.parse_args()

    start = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    seed_tiktoken_cache(args.ranks, args.out / "tiktoken_cache")
    splits = tokenize(args.inputs, args.out / "hf_cache", args.workers)
    mapped = time.perf_counter()
    tokens = sum(write_split(rows, args.out / f"{split}.bin") for split, rows in splits.items())
    end = time.perf_counter()
    seconds = {"seconds": round(end - start, 3), "map_seconds": round(mapped - start, 3)}
    print(json.dumps({"tokens": tokens, **seconds}))


if __name__ == "__main__":
    main()
