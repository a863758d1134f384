"""Input files of every kind: real text from the bundled sample."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "sample").glob("*.parquet"))
SHARED = ROOT.parent / "shared" / "data"


def sample_texts() -> list[str]:
    """Every third document of the sample, most of them cut short, and some made to be awkward."""
    texts: list[str] = []
    for path in SAMPLES:
        column = pyarrow.parquet.read_table(path, columns=["text"]).column(0)
        whole = column.to_pylist()[::3]
        texts += [text[: 2000 if i % 20 else None] for i, text in enumerate(whole)]
    awkward = [
        "",
        " ",
        "\n\n",
        "a",
        "<|endoftext|>",
        "x <|endoftext|> y<|fim_prefix|><|endofprompt|>",
        "naïve café – “quotes” … 👩‍👩‍👧‍👦 🇩🇪",
        "\u088fgap \U000323b0 letters's \ua7ce's",
        "tab\tand\r\nreturn\x00null",
        "1234567890 " * 40,
        "a" * 5000,
        " " * 3000 + "x",
        "",
    ]
    for index, text in enumerate(awkward):
        texts.insert(7 * index + 3, text)
    return texts


def write_parquet(
    path: Path,
    texts: Sequence[str | bytes | None],
    *,
    rows: int = 20,
    kind: object = None,
    **kw: object,
) -> Path:
    column = pyarrow.array(texts, kind or pyarrow.string())
    ids = pyarrow.array([f"id{i}" for i in range(len(texts))])
    table = pyarrow.table({"id": ids, "text": column})
    pyarrow.parquet.write_table(table, path, row_group_size=rows, **kw)
    return path


def write_arrow(
    path: Path,
    texts: Sequence[str | bytes | None],
    *,
    rows: int = 20,
    kind: object = None,
    form: str = "stream",
    compression: str | None = None,
) -> Path:
    """An Arrow stream (as `datasets` writes) or file, in record batches of so many rows."""
    column = pyarrow.array(texts, kind or pyarrow.string())
    ids = pyarrow.array([f"id{i}" for i in range(len(texts))])
    table = pyarrow.table({"id": ids, "text": column})
    new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_jsonl(path: Path, texts: Sequence[str], field: str = "text") -> Path:
    lines = [
        json.dumps({"id": i, field: t, "z": [1, {"a": None}]}, ensure_ascii=i % 2 == 0)
        for i, t in enumerate(texts)
    ]
    content = ("\n".join(lines) + "\n").encode()
    writers: dict[str, Callable[[bytes], bytes]] = {
        ".gz": lambda data: gzip.compress(data, 1),
        ".bz2": lambda data: bz2.compress(data, 1),
        ".xz": lambda data: lzma.compress(data, preset=0),
        ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
    }
    path.write_bytes(writers.get(path.suffix, lambda data: data)(content))
    return path
