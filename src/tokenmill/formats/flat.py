"""Flat tokens and the offsets of their documents, as torchtitan's guide to data reads them.

A memory map of uint32 and an `.npy` of int64 offsets: where each document begins, and where the
last one ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.formats import base
from tokenmill.formats.build_nanogpt import npy_header
from tokenmill.settings import Layout, PlanSettings


def _offsets(shard: base.Shard) -> Iterator[Any]:
    yield npy_header(np.dtype("<i8"), shard.documents + 1)
    yield bytes(8)
    for _, ends in base.spans(shard.lengths()):
        yield ends.astype("<i8")


def _offsets_of(path: str) -> str:
    return path.removesuffix("_tokens.bin") + "_offsets.npy"


def _load_lines(settings: PlanSettings, layout: Layout, folder: str, file: str) -> list[str]:
    return [
        *base.lines(*base.MEMMAP_LINES)(settings, layout, folder, file),
        f"offsets = np.load({_offsets_of(f'{folder}/{file}')!r}, mmap_mode='r')",
        "document = tokens[offsets[0] : offsets[1]]",
    ]


FLAT = base.Format(
    name="flat",
    trainer="torchtitan, your own",
    files="`train_tokens.bin`, `train_offsets.npy`",
    beside="the offsets of documents beside each (.npy)",
    sharded=False,
    named=False,
    dtype=lambda vocab_size: "uint32",
    file_name=base.file_names("{split}_tokens.bin"),
    trainer_glob=base.globs("{split}_tokens.bin", "{split}_offsets.npy"),
    load_lines=_load_lines,
    sidecars=lambda shard: [(_offsets_of(shard.path), _offsets(shard))],
)
