"""The limit: read the text of one file, encode it, throw the ids away. One process, one thread.

    python bare_loop.py FILE

No separators, no split, no output, no checks, no memory bound. Each kind of file is read in the
fastest way that is known here.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import awkward as ak
import gigatoken
import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.tokenizer.bundled import bundled_ranks_file

BLOCK = 4 << 20


class Line(msgspec.Struct):
    text: str


def columns(path: Path) -> Iterable[pa.Array]:
    """The text column in pieces of some megabytes."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches(1000, columns=["text"], use_threads=False):
            yield batch.column(0)
    elif path.suffix == ".arrow":
        with pa.memory_map(str(path)) as file:
            for batch in pa.ipc.open_stream(file):
                yield batch.column(0)
    elif path.suffix == ".csv":
        import pyarrow.csv

        reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK)
        parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
        for batch in pyarrow.csv.open_csv(path, reading, parsing):
            yield batch.column(0)
    elif path.suffix == ".txt":
        yield pa.array([path.read_bytes()], pa.binary())
    else:
        decode = msgspec.json.Decoder(Line).decode
        with pa.input_stream(str(path), compression="detect") as file:
            rest = b""
            while block := file.read(BLOCK):
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                yield pa.array([decode(line).text for line in lines], pa.string())


def main(path: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as ranks:
        ranks.write(bundled_ranks_file("gpt2"))
        ranks.flush()
        tokenizer: Any = gigatoken.Tokenizer.from_tiktoken(
            ranks.name, pretokenizer="gpt2", special_tokens={}
        )
    ids = 0
    for column in columns(path):
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        content = ak.contents.NumpyArray(
            np.frombuffer(data, np.uint8), parameters={"__array__": "char"}
        )
        index = ak.index.Index64(ends.astype(np.int64))
        layout = ak.contents.ListOffsetArray(index, content, parameters={"__array__": "string"})
        ids += len(tokenizer.encode_batch(ak.Array(layout), parallel=False).layout.content.data)
    print(ids)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
