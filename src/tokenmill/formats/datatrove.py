"""datatrove, which nanotron reads: `.ds` of tokens, `.ds.index` of document ends, metadata.

datatrove, pipeline/tokens/tokenizer.py and merger.py: the index is one little-endian uint64 for
each document, where it ends, in tokens. The metadata is three lines without a last line end. A
folder is read whole, so each split has its own.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.formats.base import Buffers, Format, Shard, Whole, itemsize


def _name(settings: PlanSettings, split: str, number: int, of: int) -> str:
    return f"{split}/{number:03d}_{settings.name}.ds"


def _index(shard: Shard) -> Iterator[bytes]:
    at = 0
    for lengths in shard.lengths():
        ends = at + np.cumsum(lengths)
        at = int(ends[-1]) if len(ends) else at
        yield ends.astype("<u8").tobytes()


def _metadata(settings: PlanSettings, tokens: int) -> bytes:
    lines = (f"{settings.tokenizer}|{itemsize(settings)}", str(tokens), metric(tokens))
    return "\n".join(lines).encode()


def metric(number: int) -> str:
    """As `humanize.metric(number, unit="T")` writes it: three digits and a prefix."""
    if number == 0:
        return "0.00 T"
    exponent = len(str(number)) - 1
    if exponent >= 33:
        return f"{number:.2e}T"
    value = number / 10 ** (exponent // 3 * 3)
    digits = 2 - exponent % 3
    prefix = " kMGTPEZYRQ"[exponent // 3].strip()
    return f"{value:.{digits}f} {prefix}T"


def _sidecars(shard: Shard) -> Iterator[tuple[str, Buffers]]:
    yield f"{shard.path}.index", _index(shard)
    yield f"{shard.path}.metadata", [_metadata(shard.settings, shard.tokens)]


def _whole(whole: Whole) -> Iterator[tuple[str, bytes]]:
    for split, shards in whole.splits():
        total = sum(shard.tokens for shard in shards)
        yield f"{split}/{whole.settings.name}.ds.metadata", _metadata(whole.settings, total)


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    folder = f"{directory}/{file.rpartition('/')[0]}"
    return [
        f"# nanotron: dataset_folder: {folder}",
        "from datatrove.utils.dataset import DatatroveFolderDataset",
        f"dataset = DatatroveFolderDataset({folder!r}, seq_len=2048, "
        f"filename_pattern='*.ds', token_size={itemsize(settings)})",
    ]


DATATROVE = Format(
    name="datatrove",
    trainer="nanotron (datatrove)",
    files="`train/000_NAME.ds`, `.ds.index`, `.ds.metadata`",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=True,
    keeps_documents=True,
    file_name=_name,
    trainer_glob=lambda settings: tuple(
        f"{split}/*{glob.escape('.ds')}{suffix}"
        for split in ("train", "val")
        for suffix in ("", ".index")
    ),
    load_lines=_load_lines,
    sidecars=_sidecars,
    whole=_whole,
)
