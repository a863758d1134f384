"""Parquet: a row for each document, its ids as a list.

A row group is a block of documents. How many tokens each holds is in the file's metadata
(`tokenmill.tokens`), so that a range of tokens is found without decoding the rows before it.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Generator
from threading import Lock

import numpy as np

from tokenmill.formats import base
from tokenmill.formats.tables import MAX_DOCUMENT_TOKENS, ids_type, list_of, taken, values_of
from tokenmill.settings import Layout

KEY = "tokenmill.tokens"


def _write(shard: base.Shard) -> Generator[bytes, None, None]:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema({"ids": ids_type(shard.layout)})
    sink = io.BytesIO()
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
            yield taken(sink)
        writer.add_key_value_metadata({KEY: json.dumps(counts)})
    yield taken(sink)


def _read(layout: Layout, content: memoryview, tokens: int) -> base.Slices:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(
        pyarrow.BufferReader(content), page_checksum_verification=True
    )
    counts = json.loads((file.metadata.metadata or {}).get(KEY.encode(), b"[]"))
    lock = Lock()  # several threads read

    @functools.lru_cache(maxsize=1)
    def piece(number: int) -> base.Array:
        with lock:
            column = file.read_row_group(number, columns=["ids"], use_threads=False).column(0)
        return np.concatenate([values_of(chunk) for chunk in column.chunks])

    return base.TokenPieces(layout, tokens, counts, piece)


PARQUET = base.Format(
    name="parquet",
    trainer="any reader of parquet",
    files="`train-00000-of-00001.parquet`, a list of ids a row",
    named=False,
    framed=True,
    effort=8,
    file_name=base.file_names("{split}-{number:05d}-of-{of:05d}.parquet"),
    trainer_glob=base.globs("{split}-*.parquet"),
    load_lines=base.lines(
        "import pyarrow.parquet",
        "documents = pyarrow.parquet.read_table({path!r})['ids']",
    ),
    max_document_tokens=MAX_DOCUMENT_TOKENS,
    write=_write,
    read=_read,
)
