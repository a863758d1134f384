"""Damage, small and exact: what R8 and R9 of the scorecard found by trying everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inputs import write_jsonl

import tokenmill


@pytest.fixture
def dataset(tmp_path: Path, texts: list[str]) -> Path:
    inputs = [write_jsonl(tmp_path / "a.jsonl", texts[:40]), tmp_path / "b.jsonl"]
    inputs[1].write_text('{"text": "good"}\n{"text": null}\n')
    tokenmill.prepare(inputs, tmp_path / "o", workers=0, val=0.2, on_bad_row="quarantine")
    return tmp_path / "o"
