"""A row that kills or hangs its worker is found, named or set aside; all else is written.

Faults are real and planted where a worker encodes: under `fork` by a patch that the worker
inherits, for the other start methods by a `sitecustomize` module that every process imports.
"""

from __future__ import annotations

import base64
import ctypes
import faulthandler
import gzip
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import dataset_bytes, write_parquet

import tokenmill
from tokenmill.engines.unit import UnitWorker
from tokenmill.errors import WorkerError

FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "kill": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        "ended its worker by SIGKILL (probably by the out-of-memory killer)",
    ),
    "segfault": (lambda: ctypes.string_at(0), "ended its worker by SIGSEGV"),
    "abort": (os.abort, "ended its worker by SIGABRT"),
    "exit": (lambda: os._exit(3), "ended its worker with exit code 3"),
    "hang": (lambda: time.sleep(1000), "hung its worker"),
}
ABORTED = "encoding it alone ended its worker by SIGABRT, twice"
MARKER = "<<MARKER>>"


def plant(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object] = os.abort, least: int = 1
) -> None:
    """Let every worker fail that encodes the marker, among at least so many documents."""
    right = UnitWorker.encode_batch

    def encode_batch(self: UnitWorker, source: object, batch: object, packer: object) -> int:
        texts = batch.texts  # type: ignore[attr-defined]
        if MARKER.encode() in texts.used().tobytes() and texts.documents >= least:
            faulthandler.disable()  # pytest's would print the stack, every time
            fault()
        return right(self, source, batch, packer)  # type: ignore[arg-type]

    monkeypatch.setattr(UnitWorker, "encode_batch", encode_batch)


def documents(count: int, marked: tuple[int, ...]) -> list[str]:
    """Some 10 KB each."""
    texts = [f"document {i} " + "some words here and there " * 400 for i in range(count)]
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


def lines(folder: Path, name: str, count: int, marked: tuple[int, ...]) -> tuple[Path, Path]:
    """With a blank line before every tenth row; the marked lines are no JSON in the second file,
    but as long as before, since the place of a line decides its split."""
    (folder / "null").mkdir()
    content = {folder / name: b"", folder / "null" / name: b""}
    for row, text in enumerate(documents(count, marked)):
        line = json.dumps({"text": text}).encode() + b"\n"
        blank = b"\n" if row % 10 == 0 else b""
        faulty, null = content
        content[faulty] += blank + line
        content[null] += blank + (b"x" * (len(line) - 1) + b"\n" if row in marked else line)
    for path, data in content.items():
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


@pytest.mark.parametrize("how", FAULTS)
def test_the_row_is_named_and_then_set_aside(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, null = parquet(tmp_path, 1200, (777,))
    fault, words = FAULTS[how]
    monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "1.5")
    output = tmp_path / "o"
    plant(monkeypatch, fault)
    with pytest.raises(WorkerError) as ended:
        tokenmill.prepare(faulty, output, workers=2, start_method="fork")
    reason = f"encoding it alone {words}, twice"
    assert ended.value.message == f"m.parquet: row 777 (row group 7): {reason}"
    assert "--on-bad-row quarantine" in ended.value.hint
    result = tokenmill.prepare(
        faulty, output, workers=2, start_method="fork", on_bad_row="quarantine"
    )
    assert result.manifest.set_aside == [{"source": "m.parquet", "row": 777, "reason": reason}]
    assert result.run["probes"] == 3, "the batch, the row, the rest of the batch"
    counts = result.manifest.counts
    assert (counts["rows"], counts["documents"], counts["quarantined"]) == (1200, 1199, 1)
    (row,) = quarantined(output)
    assert (row["source"], row["row"], row["reason"]) == ("m.parquet", 777, reason)
    text = base64.b64decode(str(row["bytes"])).decode()
    assert text == documents(1200, (777,))[777]
    same_tokens(output, null)
    assert not tokenmill.verify(output).problems
