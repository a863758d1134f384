"""Tokenizer files and rows set aside, seen by `inspect`, `plan` and `verify --deep`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fatal_rows import MARKER, plant
from support.inputs import write_jsonl

import tokenmill


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_rows_that_killed_a_worker_are_expected_to_be_aside(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"number {i} {MARKER if i in (4, 11) else ''}" for i in range(20)]
    source = write_jsonl(tmp_path / f"x.{suffix}", texts)
    plant(monkeypatch)
    tokenmill.prepare(
        source,
        tmp_path / "o",
        val="docs:3",
        on_bad_row="quarantine",
        workers=1,
        start_method="fork",
    )
    assert len(tokenmill.open_dataset(tmp_path / "o").manifest.set_aside) == 2
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.problems == []
    assert report.complete
    assert report.documents == 18
