"""Megatron-LM, NeMo and gpt-neox: `.bin` of tokens and `.idx` of documents.

Megatron-LM, megatron/core/datasets/indexed_dataset.py. The index holds a length as int32 and the
trainer counts documents in int32; there is no code for uint32, ids above 65535 are int32. Its own
writer takes uint16 below 65,500 ids (`DType.optimal_dtype`), and so do we. One sequence is one
document, the separator after each and counted in its length.
"""

from __future__ import annotations

import glob
import struct
from collections.abc import Iterator

import numpy as np

from tokenmill.config import Dtype, PlanSettings
from tokenmill.formats.base import Buffers, Format, Shard, itemsize

MAGIC = b"MMIDIDX\x00\x00"
CODES = {"uint16": 8, "uint32": 4}  # int32: no id is above 2**31, so the bytes are the same
UINT16_BELOW = 65_500
DOCUMENTS_AT_A_TIME = 1 << 20


def _dtype(vocab_size: int) -> Dtype:
    return "uint16" if vocab_size < UINT16_BELOW else "uint32"


def _name(settings: PlanSettings, split: str) -> str:
    return f"{settings.name}_{split}_text_document"


def _index(shard: Shard) -> Iterator[bytes]:
    documents = shard.documents
    code = CODES[shard.settings.dtype]
    yield MAGIC + struct.pack("<QBQQ", 1, code, documents, documents + 1)
    for lengths in shard.lengths():
        yield lengths.astype("<i4").tobytes()
    at, size = 0, itemsize(shard.settings)
    for lengths in shard.lengths():
        pointers = at + (np.cumsum(lengths) - lengths) * size
        at += int(lengths.sum()) * size
        yield pointers.astype("<i8").tobytes()
    for first in range(0, documents + 1, DOCUMENTS_AT_A_TIME):
        stop = min(first + DOCUMENTS_AT_A_TIME, documents + 1)
        yield np.arange(first, stop, dtype="<i8").tobytes()


def _sidecars(shard: Shard) -> Iterator[tuple[str, Buffers]]:
    yield shard.path.removesuffix(".bin") + ".idx", _index(shard)


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    prefix = f"{directory}/{file.removesuffix('.bin')}"
    if settings.val.kind == "none":
        paths = f"# Megatron-LM: --data-path {prefix} --split 990,8,2; gpt-neox: data_path"
    else:
        train, val = (f"{directory}/{_name(settings, split)}" for split in ("train", "val"))
        paths = f"# Megatron-LM: --train-data-path {train} --valid-data-path {val}"
    return [
        paths,
        "from megatron.core.datasets.indexed_dataset import IndexedDataset",
        f"documents = IndexedDataset({prefix!r})",
    ]


MEGATRON = Format(
    name="megatron",
    trainer="Megatron-LM, NeMo, gpt-neox",
    files="`NAME_train_text_document.bin` and `.idx`",
    eot="append",
    cut="document",
    val="none",  # the trainer's own --split
    sharded=False,
    keeps_documents=True,
    dtype=_dtype,
    file_name=lambda settings, split, number, of: _name(settings, split) + ".bin",
    trainer_glob=lambda settings: tuple(
        glob.escape(_name(settings, split)) + suffix
        for split in ("train", "val")
        for suffix in (".bin", ".idx")
    ),
    load_lines=_load_lines,
    max_document_tokens=2**31 - 1,
    max_documents=2**31 - 2,
    sidecars=_sidecars,
)
