"""Hugging Face `datasets`: a DatasetDict that `load_from_disk` opens, columns `ids` and `len`.

datasets, arrow_dataset.py `save_to_disk`: Arrow IPC streams, `state.json` and `dataset_info.json`
for each split, `dataset_dict.json` above them. The fingerprint, else random, is the plan's.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tokenmill.config import PlanSettings
from tokenmill.formats.base import (
    Array,
    Format,
    Info,
    Pieces,
    Shard,
    Slices,
    Whole,
    refuse_shape,
    stored_dtype,
)
from tokenmill.formats.tables import MAX_DOCUMENT_TOKENS, Collector, list_of, values_of


def _features(settings: PlanSettings) -> dict[str, Any]:
    # "Sequence" is what every version of datasets reads; since 4 it calls the same thing List.
    ids = {"feature": {"dtype": settings.dtype, "_type": "Value"}, "_type": "Sequence"}
    return {"ids": ids, "len": {"dtype": "int64", "_type": "Value"}}


def _write(shard: Shard) -> Generator[Any, None, Info]:
    import pyarrow
    import pyarrow.ipc

    kind = pyarrow.from_numpy_dtype(np.dtype(shard.settings.dtype))
    info = json.dumps({"info": {"features": _features(shard.settings)}})
    schema = pyarrow.schema(
        {"ids": pyarrow.list_(kind), "len": pyarrow.int64()}, metadata={"huggingface": info}
    )
    sink = Collector()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        for tokens, lengths in shard.blocks():
            columns = [list_of(tokens, lengths), pyarrow.array(lengths)]
            writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
            yield sink.take()
    yield sink.take()
    return {}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()


def _whole(whole: Whole) -> Iterator[tuple[str, bytes]]:
    splits = []
    for split, shards in whole.splits():
        splits.append(split)
        state: dict[str, Any] = {
            "_data_files": [{"filename": done.path.rpartition("/")[2]} for done in shards],
            "_fingerprint": xxhash.xxh3_64_hexdigest(f"{whole.fingerprint} {split}".encode()),
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        about = {"citation": "", "description": "", "features": _features(whole.settings)}
        yield f"{split}/state.json", _json(state)
        yield f"{split}/dataset_info.json", _json({**about, "homepage": "", "license": ""})
    yield "dataset_dict.json", json.dumps({"splits": splits}).encode()


def _read(settings: PlanSettings, path: Path, tokens: int) -> Slices:
    import pyarrow
    import pyarrow.ipc

    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
        batches = stream.read_all().column("ids").chunks
    ends = np.cumsum(np.array([len(values_of(batch)) for batch in batches], np.int64))
    refuse_shape(path, int(ends[-1]) if len(ends) else 0, tokens)

    def piece(number: int) -> Array:
        return values_of(batches[number])

    return Pieces(ends, piece, stored_dtype(settings))


def _load_lines(settings: PlanSettings, directory: str, file: str) -> list[str]:
    return [
        "from datasets import load_from_disk",
        f"documents = load_from_disk({directory!r})[{file.partition('/')[0]!r}]",
        'documents[0]["ids"]',
    ]


HF = Format(
    name="hf",
    trainer="Hugging Face `datasets`",
    files="`train/data-00000-of-00001.arrow`, `dataset_dict.json` ...",
    eot="append",
    cut="document",
    val="0.0005",
    sharded=True,
    named=False,
    framed=True,
    keeps_documents=True,
    file_name=lambda settings, split, number, of: f"{split}/data-{number:05d}-of-{of:05d}.arrow",
    trainer_glob=lambda settings: tuple(f"{split}/data-*.arrow" for split in ("train", "val")),
    load_lines=_load_lines,
    max_document_tokens=MAX_DOCUMENT_TOKENS,
    write=_write,
    whole=_whole,
    read=_read,
)
