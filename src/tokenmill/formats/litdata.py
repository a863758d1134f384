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

import numpy as np

from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings

CODES = {"uint16": 5, "uint32": 6}  # of numpy's types, as litdata numbers them
CHUNK_BYTES = 1 << 26
SPEC = '[1, {"type": null, "context": null, "children_spec": []}]'


def _write(shard: base.Shard) -> Generator[base.Array, None, None]:
    at, size = 4 * (shard.documents + 2), base.itemsize(shard.layout)
    yield np.array([shard.documents, at], "<u4")
    for _, ends in base.spans((lengths * size for lengths in shard.lengths()), at):
        yield ends.astype("<u4")
    yield from shard.bare()


def _whole(
    settings: PlanSettings, layout: Layout, _: str, made: base.MadeShards
) -> Iterator[tuple[str, bytes]]:
    config = {
        "chunk_bytes": CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "data_format": [f"no_header_numpy:{CODES[layout.dtype]}"],
        "data_spec": SPEC,
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    for split, shards in made.items():
        chunks = [
            {
                "chunk_bytes": file.size,
                "chunk_size": shard.documents,
                "dim": shard.tokens,
                "filename": shard.path.rpartition("/")[2],
            }
            for shard, file in shards
        ]
        index = {"chunks": chunks, "config": config, "updated_at": "0.0"}
        yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()


def _read(layout: Layout, content: memoryview, tokens: int) -> base.Slices:
    items = int(np.frombuffer(content, "<u4", 1)[0])
    offset = 4 * (items + 2)
    if len(content) != offset + tokens * base.itemsize(layout):
        raise ValueError(f"not a chunk of {tokens} tokens")
    return base.flat_tokens(layout, content, tokens, offset)


LITDATA = base.Format(
    name="litdata",
    trainer="litgpt (litdata)",
    files="`train/chunk-0-0.bin`, `train/index.json`",
    beside="index.json of each split",
    named=False,
    shard_tokens=CHUNK_BYTES // 2,
    framed=True,
    file_name=base.file_names("{split}/chunk-0-{number}.bin"),
    trainer_glob=base.globs("{split}/chunk-*.bin", "{split}/index.json"),
    load_lines=base.lines(
        "from litdata import StreamingDataset, TokensLoader",
        "blocks = StreamingDataset({split_folder!r}, item_loader=TokensLoader(block_size=2049))",
    ),
    max_bytes=base.MAX_OFFSET,
    document_bytes=lambda layout, lengths: 4 + lengths * base.itemsize(layout),
    write=_write,
    whole=_whole,
    read=_read,
)
