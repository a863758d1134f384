"""Workers that fail for good, that wait, that need too much; one failure is row R5.

Faults are real: processes are killed by signals, exit, segfault. They are planted under `fork`,
where a worker inherits the planted function; the supervisor is the same for every start method.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import dataset_bytes
from support.inputs import write_parquet

import tokenmill
from tokenmill.engines.observer import Observer
from tokenmill.engines.unit import UnitWorker


class Notes(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def plant(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    """Let every worker fail that meets the marker."""
    right = UnitWorker.encode_batch

    def encode_batch(
        self: UnitWorker, source: object, batch: object, packer: object, *known: object
    ) -> int:
        if b"MARKER" in batch.texts.used().tobytes():  # type: ignore[attr-defined]
            fault()
        return right(self, source, batch, packer, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(UnitWorker, "encode_batch", encode_batch)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [f"document {i} " + "some words here " * 1500 for i in range(4000)]
    texts[2345] += "MARKER"
    return write_parquet(tmp_path_factory.mktemp("marked") / "m.parquet", texts, rows=250)


@pytest.fixture(scope="module")
def clean(marked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("clean") / "o"
    tokenmill.prepare(marked, output, workers=2)
    return dataset_bytes(output)
