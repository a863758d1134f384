"""Megatron-LM, NeMo and gpt-neox: `.bin` of tokens and `.idx` of documents.

Megatron-LM, megatron/core/datasets/indexed_dataset.py. The index holds a length as int32 and the
trainer counts documents in int32; there is no code for uint32, ids above 65535 are int32. Its own
writer takes uint16 below 65,500 ids (`DType.optimal_dtype`), and so do we. One sequence is one
document, the separator after each and counted in its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.formats import base
from tokenmill.settings import Layout, PlanSettings

MAGIC = b"MMIDIDX\x00\x00"
CODES = {"uint16": 8, "uint32": 4}  # int32: no id is above 2**31, so the bytes are the same
UINT16_BELOW = 65_500
DOCUMENTS_AT_A_TIME = 1 << 20


def _index(shard: base.Shard) -> Iterator[Any]:
    documents, code = shard.documents, CODES[shard.layout.dtype]
    yield MAGIC + struct.pack("<QBQQ", 1, code, documents, documents + 1)
    for lengths in shard.lengths():
        yield lengths.astype("<i4")
    for begins, _ in base.spans(shard.lengths()):
        yield (begins * base.itemsize(shard.layout)).astype("<i8")
    for first in range(0, documents + 1, DOCUMENTS_AT_A_TIME):
        stop = min(first + DOCUMENTS_AT_A_TIME, documents + 1)
        yield np.arange(first, stop, dtype="<i8")


def _load_lines(settings: PlanSettings, layout: Layout, directory: str, file: str) -> list[str]:
    prefix = f"{directory}/{file.removesuffix('.bin')}"
    if settings.val.kind == "none" or "_train_" not in file:
        paths = f"# Megatron-LM: --data-path {prefix} --split 990,8,2; gpt-neox: data_path"
    else:
        val = "_val_".join(prefix.rsplit("_train_", 1))
        paths = f"# Megatron-LM: --train-data-path {prefix} --valid-data-path {val}"
    return [
        paths,
        "from megatron.core.datasets.indexed_dataset import IndexedDataset",
        f"documents = IndexedDataset({prefix!r})",
    ]


MEGATRON = base.Format(
    name="megatron",
    trainer="Megatron-LM, NeMo, gpt-neox",
    files="`NAME_train_text_document.bin` and `.idx`",
    beside="a .idx beside each .bin",
    val="none",  # the trainer's own --split
    sharded=False,
    dtype=lambda vocab_size: "uint16" if vocab_size < UINT16_BELOW else "uint32",
    dtype_names={"uint32": "int32"},
    file_name=base.file_names("{name}_{split}_text_document.bin"),
    trainer_glob=base.globs("{name}_{split}_text_document.bin", "{name}_{split}_text_document.idx"),
    load_lines=_load_lines,
    max_document_tokens=2**31 - 1,
    max_documents=2**31 - 2,
    sidecars=lambda shard: [(shard.path.removesuffix(".bin") + ".idx", _index(shard))],
)
