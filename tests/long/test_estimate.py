"""`plan`: exact where the sources count their tokens, close where they do not, and read-only."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.estimate import estimate
from support.inputs import SAMPLES

import tokenmill


def test_a_short_probe_of_large_files_is_close_too(
    large_inputs: list[Path], tmp_path: Path
) -> None:
    found = estimate(large_inputs, tmp_path / "o", probe_seconds=0.3)
    result = tokenmill.prepare(large_inputs, tmp_path / "o")
    assert found.probe_bytes < result.manifest.counts["text_bytes"] / 2
    assert found.tokens == pytest.approx(result.manifest.counts["tokens"], rel=0.2)
    assert 0.1 < found.seconds < 60


def test_a_short_last_shard_is_a_warning(tmp_path: Path) -> None:
    llmc = {"format": "llmc", "shard_tokens": "700k", "name": "n", "shuffle": True}
    found = estimate(SAMPLES, tmp_path / "o", llmc)
    assert found.warnings == []  # 2,739,730 tokens: the last shard holds 639,730
    llmc["shard_tokens"] = "500k"
    found = estimate(SAMPLES, tmp_path / "o", llmc)
    assert len(found.warnings) == 2  # val is shorter than llm.c's usual batch, and the last one
    assert "n_train_000005.bin will hold 239,730 tokens" in found.warnings[1]
    assert estimate(SAMPLES, tmp_path / "o", llmc, min_shard_tokens=0).warnings == []
    llmc["tokenizer"] = "cl100k_base"
    found = estimate(SAMPLES, tmp_path / "o", llmc)
    assert "will probably hold" in found.warnings[-1]
    assert estimate(SAMPLES, tmp_path / "o", {}, min_shard_tokens=10**7).warnings
    empty = estimate(SAMPLES, tmp_path / "o", {"format": "llmc"})
    assert "the train split will be empty" in empty.warnings[0]
