"""Parquet: a row for each document, its ids as a list; for whoever reads parquet.

A row group is a block of documents. How many tokens each holds is in the file's metadata
(`tokenmill.tokens`), so that a range of tokens is found without decoding what lies before it.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.formats.base import (
    Array,
    Format,
    Info,
    Pieces,
    Shard,
    Slices,
    refuse_shape,
    stored_dtype,
)
from tokenmill.formats.tables import MAX_DOCUMENT_TOKENS, Collector, list_of, values_of

KEY = "tokenmill.tokens"


def _write(shard: Shard) -> Generator[Any, None, Info]:
    import pyarrow
    import pyarrow.parquet

    kind = pyarrow.from_numpy_dtype(np.dtype(shard.settings.dtype))
    schema = pyarrow.schema({"ids": pyarrow.list_(kind)})
    sink = Collector()
    counts: list[int] = []
    # A dictionary of ids would be as large as the ids; statistics of ids say nothing.
    with pyarrow.parquet.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        for tokens, lengths in shard.blocks():
            batch = pyarrow.RecordBatch.from_arrays([list_of(tokens, lengths)], schema=schema)
            writer.write_batch(batch, row_group_size=len(lengths))
            counts.append(len(tokens))
            yield sink.take()
        writer.add_key_value_metadata({KEY: json.dumps(counts)})
    yield sink.take()
    return {}


def _read(settings: PlanSettings, path: Path, tokens: int) -> Slices:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)
    counts = json.loads((file.metadata.metadata or {}).get(KEY.encode(), b"[]"))
    ends = np.cumsum(np.array(counts, np.int64))
    refuse_shape(path, int(ends[-1]) if len(ends) else 0, tokens)
    last: tuple[int, Array] | None = None
    lock = Lock()

    def piece(number: int) -> Array:
        nonlocal last
        held = last  # several threads read: what one has decoded, another may replace
        if held is None or held[0] != number:
            with lock:
                column = file.read_row_group(number, columns=["ids"], use_threads=False).column(0)
            held = last = number, np.concatenate([values_of(chunk) for chunk in column.chunks])
        return held[1]

    return Pieces(ends, piece, stored_dtype(settings))


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    return [
        "import pyarrow.parquet",
        f"documents = pyarrow.parquet.read_table({directory + '/' + file!r})['ids']",
    ]


PARQUET = Format(
    name="parquet",
    trainer="any reader of parquet",
    files="`train-00000-of-00001.parquet`, a list of ids a row",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=True,
    named=False,
    framed=True,
    keeps_documents=True,
    file_name=lambda settings, split, number, of: f"{split}-{number:05d}-of-{of:05d}.parquet",
    trainer_glob=lambda settings: tuple(f"{split}-*.parquet" for split in ("train", "val")),
    load_lines=_load_lines,
    max_document_tokens=MAX_DOCUMENT_TOKENS,
    write=_write,
    read=_read,
)
