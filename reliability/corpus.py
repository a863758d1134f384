"""Small inputs in every format we read, and what a finished dataset looks like."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import UnitRecord, read_journal
from tokenmill.planning.plan import work_fingerprint
from tokenmill.system.store import FolderStore

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "for",
    "that",
    "with",
    "on",
    "as",
    "by",
    "at",
    "from",
    "his",
    "it",
    "an",
    "were",
    "are",
    "which",
    "this",
    "be",
    "or",
    "naïve",
    "Straße",
    "東京",
    "данные",
    "😀",
    "don't",
    "I'll",
    "1984",
    "3.14",
    "def",
    "return()",
    "\n\n",
    "\t",
    "<|endoftext|>",
]


def documents(count: int, seed: object = 0, words: int = 60) -> list[str]:
    """Texts of many lengths, some empty, in several scripts: the same for the same seed."""
    rng = random.Random(f"documents {seed}")
    return [
        "" if rng.random() < 0.05 else " ".join(rng.choices(WORDS, k=rng.randint(1, 2 * words)))
        for _ in range(count)
    ]


def write_parquet(
    path: Path, texts: Sequence[str | bytes | None], rows: int = 20, **kw: object
) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=rows, **kw)
    return path


def write_arrow(path: Path, texts: Sequence[str | None], rows: int = 20) -> Path:
    table = pyarrow.table({"text": texts})
    with pyarrow.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_jsonl(path: Path, texts: Sequence[str]) -> Path:
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".zst":
        content = pyarrow.compress(content, "zstd", asbytes=True)
    path.write_bytes(content)
    return path


def mixed(folder: Path, count: int = 60) -> list[Path]:
    """One file of each kind but text, which is not mixed with others; some dozen units."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_parquet(folder / "a.parquet", documents(count, "a")),
        write_jsonl(folder / "b.jsonl", documents(count, "b")),
        write_jsonl(folder / "c.jsonl.gz", documents(count // 2, "c")),
        write_jsonl(folder / "d.jsonl.zst", documents(count // 2, "d")),
        write_arrow(folder / "e.arrow", documents(count, "e")),
    ]


def dataset_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, but run.json, which is about the run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


def durable_records(output: Path) -> list[UnitRecord]:
    """What a job's journal calls durable."""
    work = output / ".tokenmill"
    try:
        plan = msgspec.json.decode((work / "plan.json").read_bytes())["plan"]
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return []
    bound = work_fingerprint(plan)
    records, _ = read_journal(FolderStore(work), "journal", bound)
    return records


def resumed(run: Mapping[str, Any]) -> int:
    """How many records of the journal a run has relied on, by its run.json."""
    return int(run["units_resumed"]) + int(run.get("ordered_resumed", 0))


def durable_units(output: Path) -> set[UnitId]:
    return {record.unit for record in durable_records(output)}
