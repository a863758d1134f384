"""Shared data for the tests: real text from the bundled sample, in every input format."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted((ROOT / "sample").glob("*.parquet"))
SHARED = ROOT.parent / "shared" / "data"


def sample_texts() -> list[str]:
    """Every third document of the sample, and a few that are awkward on purpose."""
    texts: list[str] = []
    for path in SAMPLES:
        texts += pyarrow.parquet.read_table(path, columns=["text"]).column(0).to_pylist()[::3]
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
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
    }
    path.write_bytes(writers.get(path.suffix, lambda data: data)(content))
    return path


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return sample_texts()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> list[Path]:
    """Parquet, JSON lines and Arrow of several kinds, some 5 MB of text together."""
    folder = tmp_path_factory.mktemp("inputs")
    return [
        write_parquet(folder / "a.parquet", texts, compression="zstd", write_page_checksum=True),
        write_jsonl(folder / "b.jsonl", texts[::-1]),
        write_jsonl(folder / "c.jsonl.gz", texts[:90]),
        write_parquet(folder / "d.parquet", texts[5:60], kind=pyarrow.large_string()),
        write_jsonl(folder / "e.jsonl.zst", texts[40:130]),
        write_arrow(folder / "f.arrow", texts[::2], rows=33),
        write_arrow(folder / "g.arrow", texts[7:90], form="file", compression="zstd"),
    ]


@pytest.fixture(scope="session")
def large_inputs(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> list[Path]:
    """Enough text for a dozen units: what is killed and resumed needs something to lose."""
    folder = tmp_path_factory.mktemp("large")
    many = [text for _ in range(24) for text in texts]
    return [
        write_parquet(folder / "a.parquet", many, rows=200, compression="snappy"),
        write_jsonl(folder / "b.jsonl", many[: len(many) * 2 // 3]),
        write_jsonl(folder / "c.jsonl.gz", many[: len(many) // 2]),
        write_arrow(folder / "d.arrow", many[: len(many) // 2], rows=100),
    ]


def tokenmill(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    return subprocess.run(
        [sys.executable, "-m", "tokenmill", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(env or {})},
    )


def dataset_bytes(folder: Path) -> dict[str, bytes]:
    """All files of a dataset but run.json, which is about the run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


def token_bytes(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in dataset_bytes(folder).items() if name.endswith(".bin")}
