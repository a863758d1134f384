"""MosaicML streaming (MDS), as llm-foundry and Composer read it: one sample for each document.

streaming, base/format/mds/writer.py and encodings.py. A shard: the number of samples and their
offsets as uint32, the columns as JSON, the samples. A sample: the size of its array, a byte for
the kind of its shape, the shape, the tokens. Offsets are uint32, so a shard stays below 4 GiB.
A file of each split's shards, with their hashes, is `index.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.config import PlanSettings
from tokenmill.errors import UsageError
from tokenmill.formats.base import (
    I64,
    Array,
    Format,
    Info,
    Pieces,
    Shard,
    Slices,
    Whole,
    itemsize,
    refuse_shape,
    stored_dtype,
)

COLUMN = "tokens"
SIZE_LIMIT = 1 << 26  # what MDSWriter takes, in bytes of a shard
SHARD_TOKENS = SIZE_LIMIT // 2
HASH = "xxh3_64"
ONE_AXIS = 1 << 2
SIZE_BYTES = 4  # of a sample, before its array
HEADER_BYTES = 4096  # of a shard, besides offsets: more than it ever takes


def _name(settings: PlanSettings, split: str, number: int, of: int = 0) -> str:
    packed = ".zstd" if settings.compression == "zstd" else ""
    return f"{split}/shard.{number:05d}.mds{packed}"


def _config(settings: PlanSettings) -> dict[str, Any]:
    return {
        "column_encodings": [f"ndarray:{settings.dtype}"],
        "column_names": [COLUMN],
        "column_sizes": [None],
        "compression": "zstd" if settings.compression == "zstd" else None,
        "format": "mds",
        "hashes": [HASH],
        "size_limit": SIZE_LIMIT if settings.shard_tokens <= SHARD_TOKENS else None,
        "version": 2,
    }


def _shape_bytes(lengths: I64) -> I64:
    """How many bytes a length takes, as numpy's smallest type that holds it."""
    return np.select([lengths < 1 << 8, lengths < 1 << 16], [1, 2], 4).astype(np.int64)


def _document_bytes(settings: PlanSettings, lengths: I64) -> I64:
    """In a shard, its offset included."""
    return 4 + SIZE_BYTES + 1 + _shape_bytes(lengths) + lengths * itemsize(settings)


def _samples(tokens: Array, lengths: I64) -> npt.NDArray[np.uint8]:
    """Documents with what stands before each, without an object for any of them."""
    shapes = _shape_bytes(lengths)
    arrays = 1 + shapes + lengths * tokens.itemsize
    sizes = SIZE_BYTES + arrays
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    is_token = np.ones(len(out), bool)

    def put(at: I64, values: npt.NDArray[Any]) -> None:
        out[at] = values
        is_token[at] = False

    for byte in range(SIZE_BYTES):
        put(starts + byte, (arrays >> 8 * byte & 255).astype(np.uint8))
    kinds = np.select([shapes == 1, shapes == 2], [0, 1], 2).astype(np.uint8)
    put(starts + SIZE_BYTES, kinds | ONE_AXIS)
    for byte in range(4):
        has = shapes > byte
        at = starts[has] + SIZE_BYTES + 1 + byte
        put(at, (lengths[has] >> 8 * byte & 255).astype(np.uint8))
    out[is_token] = tokens.view(np.uint8)
    return out


def _raw(shard: Shard) -> Iterator[Any]:
    config = json.dumps(_config(shard.settings), sort_keys=True).encode()
    first = 4 + 4 * (shard.documents + 1) + len(config)
    yield np.array([shard.documents], "<u4")
    yield np.array([first], "<u4")
    at = first
    for lengths in shard.lengths():
        ends = at + np.cumsum(_document_bytes(shard.settings, lengths) - 4)
        at = int(ends[-1])
        yield ends.astype("<u4")
    yield config
    for tokens, lengths in shard.blocks():
        yield _samples(np.ascontiguousarray(tokens), lengths)


def _write(shard: Shard) -> Generator[Any, None, Info]:
    digest, size = xxhash.xxh3_64(), 0
    if shard.settings.compression == "none":
        for buffer in _raw(shard):
            digest.update(buffer)
            size += memoryview(buffer).nbytes
            yield buffer
        return {"raw": size, "raw_hash": digest.hexdigest()}
    import pyarrow

    # In one piece: readers want to know a frame's size from its beginning.
    whole = b"".join(memoryview(buffer).cast("B") for buffer in _raw(shard))
    packed = pyarrow.Codec("zstd", 3).compress(whole, asbytes=True)
    yield packed
    return {
        "raw": len(whole),
        "raw_hash": xxhash.xxh3_64(whole).hexdigest(),
        "zip_hash": xxhash.xxh3_64(packed).hexdigest(),
    }


def _whole(whole: Whole) -> Iterator[tuple[str, bytes]]:
    settings = whole.settings
    for split, shards in whole.splits():
        listed = []
        for done in shards:
            base = done.path.rpartition("/")[2]
            entry = {
                **_config(settings),
                "raw_data": {
                    "basename": base.removesuffix(".zstd"),
                    "bytes": done.info["raw"],
                    "hashes": {HASH: done.info["raw_hash"]},
                },
                "samples": done.documents,
                "zip_data": None,
            }
            if settings.compression == "zstd":
                hashes = {HASH: done.info["zip_hash"]}
                entry["zip_data"] = {"basename": base, "bytes": done.size, "hashes": hashes}
            listed.append(entry)
        index = {"shards": listed, "version": 2}
        yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()


def _read(settings: PlanSettings, path: Path, tokens: int) -> Slices:
    raw: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    if settings.compression == "zstd":
        import pyarrow

        raw = np.frombuffer(pyarrow.Codec("zstd").decompress(raw, frame_size(raw)), np.uint8)
    count = int(raw[:4].view("<u4")[0])
    offsets = raw[4 : 4 + 4 * (count + 1)].view("<u4").astype(np.int64)
    kinds = raw[offsets[:-1] + SIZE_BYTES] & 3
    begins = offsets[:-1] + SIZE_BYTES + 1 + (1 << kinds.astype(np.int64))
    dtype = stored_dtype(settings)
    ends = np.cumsum((offsets[1:] - begins) // dtype.itemsize)
    refuse_shape(path, int(ends[-1]) if count else 0, tokens)

    def piece(number: int) -> Array:
        begin, end = int(begins[number]), int(offsets[number + 1])
        return np.frombuffer(raw, dtype, (end - begin) // dtype.itemsize, begin)

    return Pieces(ends, piece, dtype)


def _is_copy(folder: Path, name: str) -> bool:
    """streaming unpacks a shard beside its .zstd, and from then on reads that without a look."""
    split, _, base = name.rpartition("/")
    try:
        index = json.loads((folder / split / "index.json").read_bytes())
        for shard in index["shards"]:
            raw = shard["raw_data"]
            if shard["zip_data"] and raw["basename"] == base:
                with open(folder / name, "rb") as file:
                    digest = hashlib.file_digest(file, xxhash.xxh3_64)
                return bool(digest.hexdigest() == raw["hashes"][HASH])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # whatever is wrong with the index is said elsewhere
    return False


def frame_size(packed: npt.NDArray[np.uint8]) -> int:
    """Bytes of what a zstd frame holds, as its header says (RFC 8878, 3.1.1.1)."""
    head = bytes(packed[:18])
    flags = head[4]
    single = flags >> 5 & 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    size = (1 if single else 0, 2, 4, 8)[flags >> 6]
    value = int.from_bytes(head[at : at + size], "little")
    return value + 256 if size == 2 else value


def _check(settings: PlanSettings) -> None:
    if (
        settings.eot == "none"
        and settings.bos_id < 0
        and not (settings.drop_empty or settings.min_tokens)
    ):
        raise UsageError(
            "--format mds: holds no document without a token, and --eot none may leave one so",
            hint="prepare it with --drop-empty, or with a separator",
        )
    if settings.compression == "zstd" and settings.shard_tokens > 1 << 29:
        raise UsageError(
            "--compression zstd: a shard is packed in memory: --shard-tokens 512M at most"
        )


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    return [
        "from streaming import StreamingDataset",
        f"documents = StreamingDataset(local={directory!r}, split={file.partition('/')[0]!r}, "
        "batch_size=1)",
        f"documents[0][{COLUMN!r}]",
    ]


MDS = Format(
    name="mds",
    trainer="MosaicML streaming, llm-foundry",
    files="`train/shard.00000.mds`, `train/index.json`",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=True,
    named=False,
    shard_tokens=SHARD_TOKENS,
    framed=True,
    keeps_documents=True,
    compressible=True,
    check=_check,
    file_name=_name,
    trainer_glob=lambda settings: tuple(
        f"{split}/{name}" for split in ("train", "val") for name in ("shard.*.mds*", "index.json")
    ),
    load_lines=_load_lines,
    max_bytes=2**32 - HEADER_BYTES,
    document_bytes=_document_bytes,
    write=_write,
    whole=_whole,
    read=_read,
    is_copy=_is_copy,
)
