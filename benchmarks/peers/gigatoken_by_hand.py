"""What a skilled user writes with gigatoken and nothing else: the fast way without a net.

Everything in memory, all cores encode, one uint16 array, one `tofile`. No bounded memory, no
fsync, no checksums, no resume, no bad rows set aside, Unicode 17 where tiktoken has 16.
This is the speed to beat; the two other peers are the speed people have. Two ways to read:

--reader arrow: pyarrow's threads read the text column, and the Arrow buffers go to the encoder
without a copy, chunk by chunk (joining the chunks first costs a copy of the whole text).
--reader own: gigatoken's own parquet reader, which reads and encodes at the same time.

    python gigatoken_by_hand.py INPUT.parquet ... -o DIR --workers 2 --ranks r50k_base.tiktoken
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import awkward as ak
import gigatoken
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EOT = 50256


Part = tuple[np.ndarray, np.ndarray]  # flat ids; the length of each document


def as_awkward(chunk: pa.Array) -> ak.Array:
    """An Arrow string array as the awkward array gigatoken takes, over the same bytes.

    Only the offsets are copied: awkward wants int64, Arrow has int32.
    """
    if chunk.null_count or chunk.type != pa.string():
        raise SystemExit("a text is null or not a plain string: nobody thought of that by hand")
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    chars = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    content = ak.contents.NumpyArray(chars, parameters={"__array__": "char"})
    index = ak.index.Index64(ends.astype(np.int64))
    parameters = {"__array__": "string"}
    return ak.Array(ak.contents.ListOffsetArray(index, content, parameters=parameters))


def unpack(encoded: ak.Array) -> Part:
    """The buffers of an encoded batch."""
    layout = ak.to_packed(encoded).layout
    return np.asarray(layout.content.data), np.diff(np.asarray(layout.offsets.data))


def encode_arrow(paths: list[Path], tokenizer: Any) -> list[Part]:
    """Read with pyarrow, encode chunk by chunk (a chunk is a row group or more)."""
    parts = []
    for path in paths:
        column = pq.read_table(path, columns=["text"], use_threads=True).column("text")
        for chunk in column.chunks:
            parts.append(unpack(tokenizer.encode_batch(as_awkward(chunk), parallel=True)))
    return parts


def encode_own(paths: list[Path], tokenizer: Any) -> list[Part]:
    """Let gigatoken read the files itself."""
    source = gigatoken.ParquetFileSource(paths, column="text")
    return [unpack(tokenizer.encode_files(source, parallel=True))]


def join(parts: list[Part]) -> np.ndarray:
    """One uint16 array with a separator after each document."""
    total = sum(len(ids) + len(lengths) for ids, lengths in parts)
    out = np.empty(total, dtype=np.uint16)
    at = 0
    for ids, lengths in parts:
        start = 0
        for length in lengths.tolist():
            out[at : at + length] = ids[start : start + length]
            out[at + length] = EOT
            at += length + 1
            start += length
    return out


def main() -> None:
    """Read the arguments, run, print one line of JSON."""
    parser = argparse.ArgumentParser(description="gigatoken by hand, all in memory")
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path)
    parser.add_argument("--workers", type=int, default=2, help="threads of pyarrow and gigatoken")
    parser.add_argument("--ranks", required=True, type=Path, help="r50k_base.tiktoken")
    parser.add_argument("--reader", choices=["arrow", "own"], default="arrow")
    args = parser.parse_args()

    start = time.perf_counter()
    os.environ["RAYON_NUM_THREADS"] = str(args.workers)  # read when the pool starts: first batch
    pa.set_cpu_count(args.workers)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = gigatoken.Tokenizer.from_tiktoken(
        args.ranks, pretokenizer="gpt2", special_tokens={}
    )
    encode = encode_arrow if args.reader == "arrow" else encode_own
    tokens = join(encode(args.inputs, tokenizer))
    tokens.tofile(args.out / "train.bin")
    end = time.perf_counter()
    print(json.dumps({"tokens": len(tokens), "seconds": round(end - start, 3)}))


if __name__ == "__main__":
    main()
