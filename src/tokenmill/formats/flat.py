"""Flat tokens and the offsets of their documents, as torchtitan's guide to data reads them.

A memory map of uint32 and an `.npy` of int64 offsets: where each document begins, and where the
last one ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenmill.config import PlanSettings
from tokenmill.formats.base import Buffers, Format, Shard
from tokenmill.formats.build_nanogpt import npy_header


def _offsets(shard: Shard) -> Iterator[bytes]:
    yield npy_header(np.dtype("<i8"), shard.documents + 1)
    yield bytes(8)
    at = 0
    for lengths in shard.lengths():
        ends = at + np.cumsum(lengths)
        at = int(ends[-1]) if len(ends) else at
        yield ends.astype("<i8").tobytes()


def _sidecars(shard: Shard) -> Iterator[tuple[str, Buffers]]:
    yield shard.path.removesuffix("_tokens.bin") + "_offsets.npy", _offsets(shard)


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    offsets = file.removesuffix("_tokens.bin") + "_offsets.npy"
    return [
        "import numpy as np",
        f"tokens = np.memmap({directory + '/' + file!r}, dtype=np.{settings.dtype}, mode='r')",
        f"offsets = np.load({directory + '/' + offsets!r}, mmap_mode='r')",
        "document = tokens[offsets[0] : offsets[1]]",
    ]


FLAT = Format(
    name="flat",
    trainer="torchtitan, your own",
    files="`train_tokens.bin`, `train_offsets.npy`",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=False,
    named=False,
    keeps_documents=True,
    dtype=lambda vocab_size: "uint32",
    file_name=lambda settings, split, number, of: f"{split}_tokens.bin",
    trainer_glob=lambda settings: tuple(
        f"{split}_{suffix}"
        for split in ("train", "val")
        for suffix in ("tokens.bin", "offsets.npy")
    ),
    load_lines=_load_lines,
    sidecars=_sidecars,
)
