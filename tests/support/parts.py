"""Jobs that are done in parts, and what one run on one machine makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.inputs import write_jsonl, write_parquet

MIX = """
tokens = 4000
[source.some]
inputs = ["a.parquet"]
weight = 0.4
[source.other]
inputs = ["b.jsonl", "c.jsonl"]
weight = 0.6
max_epochs = 9
"""
JOBS: dict[str, dict[str, Any]] = {
    "llmc": {"format": "llmc", "shard_tokens": 900, "val": "docs:9"},
    "nanogpt": {"format": "nanogpt", "val": 0.1},
    "mds": {"format": "mds", "val": 0.1, "cut": "document"},
    "by document": {"format": "llmc", "shard_tokens": 700, "cut": "document", "val": "tokens:500"},
    "shuffled": {"format": "llmc", "shard_tokens": 900, "val": "docs:9", "shuffle": True},
    "limited": {"format": "nanogpt", "val": "none", "shuffle": True, "limit_docs": 30},
    "mixed": {"format": "llmc,mds", "val": 0.1, "shuffle": True, "seed": 3},
}
COMMON: dict[str, Any] = {"name": "x", "on_bad_row": "quarantine"}


def write_inputs(folder: Path, more: int = 0) -> list[Path]:
    """Several files: one of many segments, small ones, bad rows; and `more` small ones."""
    folder.mkdir(parents=True, exist_ok=True)
    first = write_parquet(
        folder / "a.parquet", [f"a text {n} " * (n % 30) for n in range(90)], rows=7
    )
    second = write_jsonl(folder / "b.jsonl", [f"another text {n} " * (n % 17) for n in range(200)])
    second.write_bytes(second.read_bytes() + b'{"text": 17}\n')
    third = write_jsonl(folder / "c.jsonl", [f"a third {n}" for n in range(40)])
    (folder / "mix.toml").write_text(MIX)
    others = [
        write_jsonl(folder / f"d{n:02}.jsonl", [f"text {n} {m} " * (m % 9) for m in range(20)])
        for n in range(more)
    ]
    return [first, second, third, *others]


def job_of(name: str, inputs: list[Path]) -> tuple[list[Path], dict[str, Any]]:
    """Inputs and options."""
    if name == "mixed":
        return [], {**COMMON, **JOBS[name], "mix": inputs[0].parent / "mix.toml"}
    return inputs, {**COMMON, **JOBS[name]}
