"""A row that kills or hangs its worker is found, named or set aside; all else is written.

Faults are real and planted where a worker encodes: under `fork` by a patch that the worker
inherits, for the other start methods by a `sitecustomize` module that every process imports.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from support.commands import dataset_bytes
from support.fatal_rows import MARKER
from support.inputs import write_parquet

import tokenmill

ABORTED = "encoding it alone ended its worker by SIGABRT, twice"


def documents(count: int, marked: tuple[int, ...], words: int = 2000) -> list[str]:
    """Some 10 KB each."""
    texts = [f"document {i} " + "some words here and there " * (words // 5) for i in range(count)]
    for row in marked:
        texts[row] += MARKER + f" in row {row}"
    return texts


def parquet(folder: Path, count: int, marked: tuple[int, ...]) -> tuple[Path, Path]:
    """The file, and one of the same name in which the marked rows are null."""
    texts: list[str | None] = [*documents(count, marked)]
    faulty = write_parquet(folder / "m.parquet", texts, rows=100)
    for row in marked:
        texts[row] = None
    (folder / "null").mkdir()
    return faulty, write_parquet(folder / "null" / "m.parquet", texts, rows=100)


def lines(
    folder: Path, name: str, count: int, marked: tuple[int, ...], words: int = 2000
) -> tuple[Path, Path]:
    """With a blank line before every tenth row; the marked lines are no JSON in the second file,
    but as long as before, since the place of a line decides its split."""
    (folder / "null").mkdir()
    content: dict[Path, list[bytes]] = {folder / name: [], folder / "null" / name: []}
    for row, text in enumerate(documents(count, marked, words)):
        line = json.dumps({"text": text}).encode() + b"\n"
        blank = b"\n" if row % 10 == 0 else b""
        faulty, null = content
        content[faulty] += [blank, line]
        content[null] += [blank, b"x" * (len(line) - 1) + b"\n" if row in marked else line]
    for path, pieces in content.items():
        data = b"".join(pieces)
        path.write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    return tuple(content)  # type: ignore[return-value]


def same_tokens(output: Path, null: Path, **options: object) -> None:
    """All that is in no way about bad rows is what it is where these rows are bad anyway."""
    reference = output.parent / f"{output.name}-reference"
    tokenmill.prepare(null, reference, workers=0, on_bad_row="quarantine", **options)
    names = [n for n in dataset_bytes(reference) if n.endswith((".bin", ".ends", ".runs"))]
    assert len(names) >= 3
    ours, theirs = dataset_bytes(output), dataset_bytes(reference)
    assert ours.keys() == theirs.keys()
    for name in names:
        assert ours[name] == theirs[name], name


def quarantined(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (output / "quarantine.jsonl").read_text().splitlines()]
