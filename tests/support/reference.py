"""The slow twin: read, encode with tiktoken, pack, cut. One process, one document at a time.

Every fast path of tokenmill is compared with this; it shares no code with what it checks but
the tables of encodings.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import tiktoken

from tokenmill.tokenizer.bundled import ENCODINGS, bundled_ranks

MASK = (1 << 64) - 1


@functools.cache
def encoding(name: str) -> tiktoken.Encoding:
    known = ENCODINGS[name]
    return tiktoken.Encoding(
        name,
        pat_str=known.pattern,
        mergeable_ranks=bundled_ranks(name),
        special_tokens=known.special_tokens,
    )


@functools.lru_cache(maxsize=8192)
def encoded(name: str, text: str) -> tuple[int, ...]:
    """Many tests read the same rows, and this twin is slow: each is encoded once."""
    return tuple(encoding(name).encode_ordinary(text))


def rows(path: Path, column: str = "text") -> Iterator[tuple[int, str]]:
    """Position (row, or byte offset of the line) and text of every row."""
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path, columns=[column])
        for row, value in enumerate(table.column(0).to_pylist()):
            yield row, value if isinstance(value, str) else value.decode()
        return
    if path.suffix == ".arrow":
        with open(path, "rb") as file:
            form = pyarrow.ipc.open_file if file.read(6) == b"ARROW1" else pyarrow.ipc.open_stream
        with pyarrow.memory_map(str(path)) as mapped:
            values = form(mapped).read_all().column(column).to_pylist()
        for row, value in enumerate(values):
            yield row, value if isinstance(value, str) else value.decode()
        return
    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if path.suffix == ".zst":
        content = pyarrow.input_stream(str(path), compression="zstd").read()
    else:
        with openers.get(path.suffix, open)(path, "rb") as file:  # type: ignore[operator]
            content = file.read()
    offset = 0
    for line in content.split(b"\n"):
        stripped = line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line
        if stripped.strip():
            yield offset, json.loads(stripped)[column]
        offset += len(line) + 1


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def held_out(seed: int, source: int, position: int, fraction: float) -> bool:
    golden = 0x9E3779B97F4A7C15
    key = mix((mix((seed + golden) & MASK) + source * golden) & MASK)
    return mix((position * golden + key) & MASK) < int(fraction * 2**64)


def documents(
    paths: Iterable[Path], name: str, eot: str, column: str = "text", drop_empty: bool = False
) -> Iterator[tuple[int, int, list[int]]]:
    """Source number, position and tokens of each document, separator included."""
    separator = ENCODINGS[name].eot_id
    for source, path in enumerate(paths):
        for position, text in rows(path, column):
            ids = list(encoded(name, text))
            if not ids and drop_empty:
                continue
            if eot == "append":
                ids = [*ids, separator]
            elif eot == "prepend":
                ids = [separator, *ids]
            yield source, position, ids


def nanogpt(
    paths: Iterable[Path], name: str = "gpt2", fraction: float = 0.0005, seed: int = 0
) -> dict[str, bytes]:
    """train.bin and val.bin, as bytes; an empty split has no file."""
    dtype = "<u2" if ENCODINGS[name].vocab_size <= 65536 else "<u4"
    splits: dict[str, list[int]] = {"train.bin": [], "val.bin": []}
    for source, position, ids in documents(paths, name, "append"):
        val = held_out(seed, source, position, fraction)
        splits["val.bin" if val else "train.bin"].extend(ids)
    return {file: np.array(ids, dtype).tobytes() for file, ids in splits.items() if ids}


def llmc(
    paths: Iterable[Path], prefix: str, shard_tokens: int, name: str = "gpt2"
) -> dict[str, bytes]:
    """llm.c's shards: the first is val, then train; header and tokens."""
    wide = ENCODINGS[name].vocab_size > 65536
    stream = [t for _, _, ids in documents(paths, name, "prepend") for t in ids]
    files = {}
    for number, start in enumerate(range(0, len(stream), shard_tokens)):
        tokens = np.array(stream[start : start + shard_tokens], "<u4" if wide else "<u2")
        header = np.zeros(256, "<i4")
        header[:3] = (20240801, 7, len(tokens)) if wide else (20240520, 1, len(tokens))
        split = "train" if number else "val"
        files[f"{prefix}_{split}_{number:06d}.bin"] = header.tobytes() + tokens.tobytes()
    return files
