"""`verify --deep`: what is stored is what the sources say, token by token, row by row."""

from __future__ import annotations

from pathlib import Path

from support.deep import moved, reseal, sources, write_tokens  # noqa: F401

import tokenmill


def test_many_units_and_chains_are_compared_in_parallel(
    large_inputs: list[Path], tmp_path: Path
) -> None:
    tokenmill.prepare(large_inputs, tmp_path / "o", format="llmc", shard_tokens="3M", val=0.1)
    report = tokenmill.verify_deep(tmp_path / "o", sample=300, threads=4)
    assert report.ok
    assert report.documents == 300
    assert report.segments_total > 3
    report = tokenmill.verify_deep(tmp_path / "o", seconds=1.0)
    assert report.ok
    assert 0 < report.documents < report.documents_total
