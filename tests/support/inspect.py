"""`inspect`: what a dataset holds, and where each document and token came from."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokenmill


@pytest.fixture(scope="module")
def sharded(inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inspect") / "o"
    tokenmill.prepare(inputs, out, format="llmc", shard_tokens="7k", workers=0)
    return out
