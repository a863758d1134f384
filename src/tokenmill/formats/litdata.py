"""litdata, as litgpt reads it: chunks of documents, of which TokensLoader reads blocks of tokens.

litdata, streaming/writer.py and item_loader.py. A chunk: the number of items and their offsets as
uint32, then the items; here each is a document's bare tokens. TokensLoader skips the offsets and
reads all tokens of the chunk as one row, in blocks; what is left at a chunk's end is not read.
litdata does not check that offsets stay below 4 GiB; here chunks are split before. `updated_at`
is fixed: the same plan gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.errors import VerificationError
from tokenmill.formats.base import (
    I64,
    Format,
    Info,
    Shard,
    Slices,
    Whole,
    itemsize,
    stored_dtype,
)

CODES = {"uint16": 5, "uint32": 6}  # of numpy's types, as litdata numbers them
CHUNK_BYTES = 1 << 26
SPEC = '[1, {"type": null, "context": null, "children_spec": []}]'
HEADER_BYTES = 4096


def _document_bytes(settings: PlanSettings, lengths: I64) -> I64:
    return 4 + lengths * itemsize(settings)


def _write(shard: Shard) -> Generator[Any, None, Info]:
    at = 4 * (shard.documents + 2)
    yield np.array([shard.documents, at], "<u4")
    for lengths in shard.lengths():
        ends = at + np.cumsum(lengths * itemsize(shard.settings))
        at = int(ends[-1])
        yield ends.astype("<u4")
    for tokens, _ in shard.blocks():
        yield tokens
    return {}


def _whole(whole: Whole) -> Iterator[tuple[str, bytes]]:
    settings = whole.settings
    config = {
        "chunk_bytes": CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "data_format": [f"no_header_numpy:{CODES[settings.dtype]}"],
        "data_spec": SPEC,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    for split, shards in whole.splits():
        chunks = [
            {
                "chunk_bytes": done.size,
                "chunk_size": done.documents,
                "dim": done.tokens,
                "filename": done.path.rpartition("/")[2],
            }
            for done in shards
        ]
        index = {"chunks": chunks, "config": config, "updated_at": "0.0"}
        yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()


def _read(settings: PlanSettings, path: Path, tokens: int) -> Slices:
    items = int(np.fromfile(path, "<u4", 1)[0])
    dtype, offset = stored_dtype(settings), 4 * (items + 2)
    if path.stat().st_size != offset + tokens * dtype.itemsize:
        raise VerificationError(f"{path}: not a chunk of {tokens} tokens")
    mapped: Slices = np.memmap(path, dtype, mode="r", offset=offset, shape=(tokens,))
    return mapped


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    return [
        "from litdata import StreamingDataset, TokensLoader",
        f"blocks = StreamingDataset({directory + '/' + file.partition('/')[0]!r}, "
        "item_loader=TokensLoader(block_size=2049))",
    ]


LITDATA = Format(
    name="litdata",
    trainer="litgpt (litdata)",
    files="`train/chunk-0-0.bin`, `train/index.json`",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=True,
    named=False,
    shard_tokens=CHUNK_BYTES // 2,
    framed=True,
    keeps_documents=True,
    file_name=lambda settings, split, number, of: f"{split}/chunk-0-{number}.bin",
    trainer_glob=lambda settings: tuple(
        f"{split}/{name}" for split in ("train", "val") for name in ("chunk-*.bin", "index.json")
    ),
    load_lines=_load_lines,
    max_bytes=2**32 - HEADER_BYTES,
    document_bytes=_document_bytes,
    write=_write,
    whole=_whole,
    read=_read,
)
