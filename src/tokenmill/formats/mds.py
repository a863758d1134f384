"""MosaicML streaming (MDS), as llm-foundry and Composer read it: one sample for each document.

streaming, base/format/mds/writer.py and encodings.py. A shard: the number of samples and their
offsets as uint32, the columns as JSON, the samples. A sample: the size of its array, a byte for
the kind of its shape, the shape, the tokens. Offsets are uint32, so a shard stays below 4 GiB.
A file of each split's shards, with their hashes, is `index.json`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import UsageError
from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings
from tokenmill.system.store import Store, read_whole
from tokenmill.texts import I64

COLUMN = "tokens"
SIZE_LIMIT = 1 << 26  # what MDSWriter takes, in bytes of a shard
SHARD_TOKENS = SIZE_LIMIT // 2
HASH = "xxh3_64"
ONE_AXIS = 1 << 2
SIZE_BYTES = 4  # of a sample, before its array


def _config(layout: Layout) -> dict[str, Any]:
    return {
        "column_encodings": [f"ndarray:{layout.dtype}"],
        "column_names": [COLUMN],
        "column_sizes": [None],
        "compression": None if layout.compression == "none" else layout.compression,
        "format": "mds",
        "hashes": [HASH],
        "size_limit": SIZE_LIMIT if layout.shard_tokens <= SHARD_TOKENS else None,
        "version": 2,
    }


def _shape_bytes(lengths: I64) -> I64:
    """How many bytes a length takes, as numpy's smallest type that holds it."""
    return np.select([lengths < 1 << 8, lengths < 1 << 16], [1, 2], 4).astype(np.int64)


def _sample_bytes(layout: Layout, lengths: I64) -> I64:
    return SIZE_BYTES + 1 + _shape_bytes(lengths) + lengths * base.itemsize(layout)


def _samples(tokens: base.Array, lengths: I64) -> npt.NDArray[np.uint8]:
    """Documents with the head of each, without a Python object per document."""
    shapes, sizes = _shape_bytes(lengths), lengths * tokens.itemsize
    heads = np.zeros((len(lengths), SIZE_BYTES + 1 + 4), np.uint8)
    heads[:, :SIZE_BYTES] = _bytes_of(1 + shapes + sizes)
    heads[:, SIZE_BYTES] = shapes // 2 | ONE_AXIS  # 0, 1 or 2 for uint8, uint16 or uint32
    heads[:, SIZE_BYTES + 1 :] = _bytes_of(lengths)
    used = SIZE_BYTES + 1 + shapes
    turns = np.stack((used, sizes), axis=1).reshape(-1)  # a head, its tokens, the next head
    is_token = np.repeat(np.arange(len(turns)) % 2 == 1, turns)
    out = np.empty(len(is_token), np.uint8)
    out[~is_token] = heads[np.arange(heads.shape[1]) < used[:, None]]
    out[is_token] = tokens.view(np.uint8)
    return out


def _bytes_of(numbers: I64) -> npt.NDArray[np.uint8]:
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 4)


def _raw(shard: base.Shard) -> Iterator[Any]:
    layout = shard.layout
    config = json.dumps(_config(layout), sort_keys=True).encode()
    first = 4 + 4 * (shard.documents + 1) + len(config)
    yield np.array([shard.documents, first], "<u4")
    for _, ends in base.spans((_sample_bytes(layout, n) for n in shard.lengths()), first):
        yield ends.astype("<u4")
    yield config
    for tokens, lengths in shard.blocks():
        yield _samples(np.ascontiguousarray(tokens), lengths)


def _write(shard: base.Shard) -> Generator[Any, None, base.Info]:
    if shard.layout.compression == "none":
        digest, size = xxhash.xxh3_64(), 0
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
    raw_hash, zip_hash = xxhash.xxh3_64_hexdigest(whole), xxhash.xxh3_64_hexdigest(packed)
    return {"raw": len(whole), "raw_hash": raw_hash, "zip_hash": zip_hash}


def _listed(shard: base.Shard, file: base.MadeFile) -> dict[str, Any]:
    """A shard in its split's index."""

    def described(name: str, size: int, digest: str) -> dict[str, Any]:
        return {"basename": name, "bytes": size, "hashes": {HASH: digest}}

    name, info = shard.path.rpartition("/")[2], file.info
    packed = shard.layout.compression == "zstd"
    return {
        **_config(shard.layout),
        "raw_data": described(name.removesuffix(".zstd"), info["raw"], info["raw_hash"]),
        "samples": shard.documents,
        "zip_data": described(name, file.size, info["zip_hash"]) if packed else None,
    }


def _whole(
    settings: PlanSettings, layout: Layout, _: str, made: base.MadeShards
) -> Iterator[tuple[str, bytes]]:
    for split, shards in made.items():
        index = {"shards": [_listed(shard, file) for shard, file in shards], "version": 2}
        yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()


def _read(layout: Layout, content: memoryview, tokens: int) -> base.Slices:
    raw: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8)
    if layout.compression == "zstd":
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as stream:
            raw = np.frombuffer(stream.read(), np.uint8)
    if len(raw) < 8:
        raise ValueError("cut short")
    count = int(raw[:4].view("<u4")[0])
    offsets = raw[4 : 4 + 4 * (count + 1)].view("<u4").astype(np.int64)
    kinds = raw[offsets[:-1] + SIZE_BYTES] & 3
    begins = offsets[:-1] + SIZE_BYTES + 1 + (1 << kinds.astype(np.int64))
    lengths = (offsets[1:] - begins) // base.itemsize(layout)

    def piece(number: int) -> base.Array:
        dtype = base.stored_dtype(layout)
        return np.frombuffer(raw, dtype, int(lengths[number]), int(begins[number]))

    return base.TokenPieces(layout, tokens, lengths, piece)


def _is_copy(store: Store, name: str) -> bool:
    """streaming unpacks a shard beside its .zstd, and from then on reads that without a look."""
    folder, _, last = name.rpartition("/")
    try:
        index = json.loads(read_whole(store, f"{folder}/index.json"))
        for shard in index["shards"]:
            raw = shard["raw_data"]
            if shard["zip_data"] and raw["basename"] == last:
                digest = xxhash.xxh3_64()
                for content in store.stream(name, 0, store.size(name) or 0):
                    digest.update(content)
                return bool(digest.hexdigest() == raw["hashes"][HASH])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # whatever is wrong with the index is said elsewhere
    return False


def _check(settings: PlanSettings, layout: Layout) -> None:
    may_be_empty = layout.eot == "none" and settings.bos_id < 0
    if may_be_empty and not (settings.drop_empty or settings.min_tokens):
        raise UsageError(
            "--format mds: a document must have a token, and with --eot none an empty one has none",
            hint="prepare it with --drop-empty, or with a separator",
        )
    if layout.compression == "zstd" and layout.shard_tokens > 1 << 29:
        raise UsageError(
            "--compression zstd: a shard is compressed in memory: --shard-tokens is 512M at most"
        )


MDS = base.Format(
    name="mds",
    trainer="MosaicML streaming, llm-foundry",
    files="`train/shard.00000.mds`, `train/index.json`",
    beside="index.json of each split",
    named=False,
    shard_tokens=SHARD_TOKENS,
    framed=True,
    effort=3,
    document_memory=16,
    compressible=True,
    check=_check,
    file_name=base.file_names("{split}/shard.{number:05d}.mds{packed}"),
    trainer_glob=base.globs("{split}/shard.*.mds*", "{split}/index.json"),
    load_lines=base.lines(
        "from streaming import StreamingDataset",
        "documents = StreamingDataset(local={folder!r}, split={split!r}, batch_size=1)",
        f"documents[0][{COLUMN!r}]",
    ),
    max_bytes=base.MAX_OFFSET,
    document_bytes=lambda layout, lengths: 4 + _sample_bytes(layout, lengths),
    write=_write,
    whole=_whole,
    read=_read,
    is_copy=_is_copy,
)
