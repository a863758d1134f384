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

from tokenmill.config import PlanSettings
from tokenmill.formats.base import I64, Buffers, Format, Shard, narrow

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
    whole = pyarrow.compute.binary_join_element_wise(lines, "", "\r\n")
    joined = whole.buffers()
    start, stop = (int.from_bytes(joined[1][4 * i : 4 * i + 4], "little") for i in (0, len(whole)))
    return bytes(joined[2][start:stop])


def _csv(shard: Shard) -> Iterator[bytes]:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    at, number = 0, shard.first_document
    for lengths, (names, sources, rows) in zip(shard.lengths(), shard.origins(), strict=True):
        ends = at + np.cumsum(lengths)
        ids = np.arange(number, number + len(lengths))
        yield packer.compress(_rows(names, [ends - lengths, ends, ids], sources, rows))
        at, number = at + int(lengths.sum()), number + len(lengths)
    yield packer.flush()


def _sidecars(shard: Shard) -> Iterator[tuple[str, Buffers]]:
    yield shard.path.removesuffix(".npy") + ".csv.gz", _csv(shard)


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    folder = f"{directory}/{file.rpartition('/')[0]}"
    return [
        f"# OLMo-core: paths=['{folder}/*.npy'], dtype=NumpyDatasetDType.{settings.dtype}",
        "import numpy as np",
        f"tokens = np.memmap({directory + '/' + file!r}, dtype=np.{settings.dtype}, mode='r')",
    ]


OLMO = Format(
    name="olmo",
    trainer="OLMo (dolma)",
    files="`train/part-0-00000.npy` (no header) and `.csv.gz`",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=True,
    named=False,
    keeps_documents=True,
    dtype=narrow,
    file_name=lambda settings, split, number, of: f"{split}/part-0-{number:05d}.npy",
    trainer_glob=lambda settings: tuple(
        f"{split}/*{suffix}" for split in ("train", "val") for suffix in (".npy", ".csv.gz")
    ),
    load_lines=_load_lines,
    sidecars=_sidecars,
)
