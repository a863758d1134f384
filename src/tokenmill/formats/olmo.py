"""OLMo: dolma's `.npy` files, which are bare tokens, and `.csv.gz` with the documents of each.

dolma, tokenizer/memmap_writer.py: rows `start,end,id,src,loc` with CRLF and no header; start and
end in tokens, end exclusive, loc the line from 1. We know no id, so it is the document's number.
OLMo-core reads the first two columns. The gzip header bears no name and no time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.formats import base
from tokenmill.texts import I64

GZIP = 31  # zlib's word for a window of 32 KiB in a gzip member
LEVEL = 1


def _quoted(text: str) -> str:
    if any(letter in text for letter in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _rows(names: list[str], columns: list[I64], sources: I64, rows: I64) -> bytes:
    """Lines of csv, without an object for each document."""
    import pyarrow
    import pyarrow.compute

    def text(numbers: I64) -> Any:
        return pyarrow.array(numbers).cast(pyarrow.string())

    used, which = np.unique(sources, return_inverse=True)
    quoted = pyarrow.array([_quoted(names[source]) for source in used.tolist()], pyarrow.string())
    fields = [*map(text, columns), quoted.take(pyarrow.array(which)), text(rows + 1)]
    lines = pyarrow.compute.binary_join_element_wise(*fields, ",")
    whole = pyarrow.ListArray.from_arrays([0, len(lines)], lines)
    joined = pyarrow.compute.binary_join(whole, "\r\n")[0].as_buffer()
    return bytes(joined) + b"\r\n"


def _csv(shard: base.Shard) -> Iterator[bytes]:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    number = shard.first_document
    places = zip(base.spans(shard.lengths()), shard.origins(), strict=True)
    for (begins, ends), (names, sources, rows) in places:
        ids = np.arange(number, number + len(ends))
        yield packer.compress(_rows(names, [begins, ends, ids], sources, rows))
        number += len(ends)
    yield packer.flush()


OLMO = base.Format(
    name="olmo",
    trainer="OLMo (dolma)",
    files="`train/part-0-00000.npy` (no header) and `.csv.gz`",
    beside="a .csv.gz beside each .npy",
    named=False,
    file_name=base.file_names("{split}/part-0-{number:05d}.npy"),
    trainer_glob=base.globs("{split}/*.npy", "{split}/*.csv.gz"),
    load_lines=base.lines(
        "# OLMo-core: paths=['{split_folder}/*.npy'], dtype=NumpyDatasetDType.{dtype}",
        *base.MEMMAP_LINES,
    ),
    sidecars=lambda shard: [(shard.path.removesuffix(".npy") + ".csv.gz", _csv(shard))],
)
