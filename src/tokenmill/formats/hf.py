"""Hugging Face `datasets`: a DatasetDict that `load_from_disk` opens, columns `ids` and `len`.

datasets, arrow_dataset.py `save_to_disk`: Arrow IPC streams, `state.json` and `dataset_info.json`
for each split, `dataset_dict.json` above them. The fingerprint, else random, is the plan's.
"""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Iterator
from typing import Any

import xxhash

from tokenmill.formats import base
from tokenmill.formats.tables import MAX_DOCUMENT_TOKENS, ids_type, list_of, taken, values_of
from tokenmill.settings import Layout, PlanSettings


def _features(layout: Layout) -> dict[str, Any]:
    # "Sequence" is what every version of datasets reads; since 4 it calls the same thing List.
    ids = {"feature": {"dtype": layout.dtype, "_type": "Value"}, "_type": "Sequence"}
    return {"ids": ids, "len": {"dtype": "int64", "_type": "Value"}}


def _write(shard: base.Shard) -> Generator[bytes, None, None]:
    import pyarrow
    import pyarrow.ipc

    info = json.dumps({"info": {"features": _features(shard.layout)}})
    columns = {"ids": ids_type(shard.layout), "len": pyarrow.int64()}
    schema = pyarrow.schema(columns, metadata={"huggingface": info})
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        for tokens, lengths in shard.blocks():
            arrays = [list_of(tokens, lengths), pyarrow.array(lengths)]
            writer.write_batch(pyarrow.RecordBatch.from_arrays(arrays, schema=schema))
            yield taken(sink)
    yield taken(sink)


def _whole(
    settings: PlanSettings, layout: Layout, fingerprint: str, made: base.MadeShards
) -> Iterator[tuple[str, bytes]]:
    for split, shards in made.items():
        state: dict[str, Any] = {
            "_data_files": [{"filename": shard.path.rpartition("/")[2]} for shard, _ in shards],
            "_fingerprint": xxhash.xxh3_64_hexdigest(f"{fingerprint} {split}".encode()),
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        about = {
            "citation": "",
            "description": "",
            "features": _features(layout),
            "homepage": "",
            "license": "",
        }
        yield f"{split}/state.json", json.dumps(state, indent=2).encode()
        yield f"{split}/dataset_info.json", json.dumps(about, indent=2).encode()
    yield "dataset_dict.json", json.dumps({"splits": list(made)}).encode()


def _read(layout: Layout, content: memoryview, tokens: int) -> base.Slices:
    import pyarrow
    import pyarrow.ipc

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(content)) as stream:
        batches = stream.read_all().column("ids").chunks
    lengths = [len(values_of(batch)) for batch in batches]
    return base.TokenPieces(layout, tokens, lengths, lambda number: values_of(batches[number]))


HF = base.Format(
    name="hf",
    trainer="Hugging Face `datasets`",
    files="`train/data-00000-of-00001.arrow`, `dataset_dict.json` ...",
    beside="dataset_info.json, state.json and dataset_dict.json",
    named=False,
    framed=True,
    document_memory=16,
    file_name=base.file_names("{split}/data-{number:05d}-of-{of:05d}.arrow"),
    trainer_glob=base.globs("{split}/data-*.arrow"),
    load_lines=base.lines(
        "from datasets import load_from_disk",
        "documents = load_from_disk({folder!r})[{split!r}]",
        'documents[0]["ids"]',
    ),
    max_document_tokens=MAX_DOCUMENT_TOKENS,
    write=_write,
    whole=_whole,
    read=_read,
)
