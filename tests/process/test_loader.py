"""A dataset that is opened here and read in another process."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import tokenmill


def total(tokens: tokenmill.dataset.views.Tokens, start: int) -> int:
    return int(tokens[start : start + 1000].sum())


def test_spawned_processes_read_a_dataset_that_was_opened_here(
    inputs: list[Path], tmp_path: Path
) -> None:
    tokenmill.prepare(inputs[:1], tmp_path / "o", format="llmc", shard_tokens="7k", workers=0)
    tokens = tokenmill.open_dataset(tmp_path / "o")["train"].tokens
    jobs = [(tokens, start) for start in range(0, len(tokens), 1000)]
    expected = [total(*job) for job in jobs]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.starmap(total, jobs) == expected
