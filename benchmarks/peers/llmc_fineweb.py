"""llm.c's `dev/data/fineweb.py`, its way of working, on local parquet files.

Kept as it is there because it is what people run: `datasets` turns the parquet files into
Arrow files first, whole rows (all columns) are pickled to a Pool in chunks of 16, token arrays
are pickled back, one process fills the shard, and every shard passes through a Python list.

Changed: the input is local; the ranks come from a file instead of the network; the number of
processes is given (there: all cores but two); no progress bars. Each of these favours it.

    python llmc_fineweb.py INPUT.parquet ... -o DIR --workers 2 --ranks r50k_base.tiktoken
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing as mp
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
MAGIC, VERSION = 20240520, 1


def seed_tiktoken_cache(ranks: Path, folder: Path) -> None:
    """Put the ranks where `tiktoken.get_encoding` looks before it asks the network.

    So the encoding is opened, pickled and found again in workers exactly as in the original.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ranks, folder / hashlib.sha1(RANKS_URL.encode()).hexdigest())
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


def tokenize(doc: dict[str, Any]) -> np.ndarray:
    """One document, separator first. `get_encoding` keeps the encoding once it is open."""
    enc = tiktoken.get_encoding(ENCODING)
    tokens = [enc.eot_token]
    tokens.extend(enc.encode_ordinary(doc["text"]))
    ids = np.array(tokens)
    assert (ids >= 0).all(), "a negative token id"
    assert (ids < 2**16).all(), "a token id does not fit uint16"
    return ids.astype(np.uint16)


def write_datafile(path: Path, tokens: list[int]) -> None:
    """One shard: a header of 256 int32, then the tokens, rebuilt from a list of Python ints."""
    assert len(tokens) < 2**31, "too many tokens for the header"
    header = np.zeros(256, dtype=np.int32)
    header[:3] = MAGIC, VERSION, len(tokens)
    data = np.array(tokens, dtype=np.uint16)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(data.tobytes())


def shard_path(out: Path, name: str, index: int) -> Path:
    """The first shard is the validation set; training shards count on from 1."""
    split = "val" if index == 0 else "train"
    return out / f"{name}_{split}_{index:06d}.bin"


def write_shards(documents: Any, out: Path, name: str, shard_size: int, workers: int) -> int:
    """The main loop: one process that takes every document's tokens and fills shard after shard."""
    total = used = index = 0
    shard = np.empty((shard_size,), dtype=np.uint16)
    with mp.Pool(workers) as pool:
        for tokens in pool.imap(tokenize, documents, chunksize=16):
            total += len(tokens)
            if used + len(tokens) < shard_size:
                shard[used : used + len(tokens)] = tokens
                used += len(tokens)
                continue
            # A document longer than the space left and one whole shard fails here, as it does
            # in the original.
            room = shard_size - used
            shard[used:] = tokens[:room]
            write_datafile(shard_path(out, name, index), shard.tolist())
            index += 1
            used = len(tokens) - room
            shard[:used] = tokens[room:]
        if used:
            write_datafile(shard_path(out, name, index), shard[:used].tolist())
    return total


def main() -> None:
    """Read the arguments, run, print one line of JSON."""
    parser = argparse.ArgumentParser(description="llm.c's fineweb.py on local parquet files")
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", required=True, type=Path, help="r50k_base.tiktoken")
    parser.add_argument("--name", default="fineweb")
    parser.add_argument("--shard-tokens", type=int, default=10**8)
    args = parser.parse_args()

    start = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    seed_tiktoken_cache(args.ranks, args.out / "tiktoken_cache")
    documents = load_dataset(
        "parquet",
        data_files=[str(path) for path in args.inputs],
        split="train",
        cache_dir=str(args.out / "hf_cache"),
    )
    loaded = time.perf_counter()
    tokens = write_shards(documents, args.out, args.name, args.shard_tokens, args.workers)
    end = time.perf_counter()
    seconds = {"seconds": round(end - start, 3), "load_seconds": round(loaded - start, 3)}
    print(json.dumps({"tokens": tokens, **seconds}))


if __name__ == "__main__":
    main()
