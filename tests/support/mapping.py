"""`tok.map` under datasets, Arrow, multiprocessing and Ray: shapes, caching, nulls, examples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from support import reference
from support.inputs import ROOT

from tokenmill import Tokenizer

EOT = 50256


@pytest.fixture
def tok() -> Tokenizer:
    return Tokenizer("gpt2")


def expected(texts: list[str]) -> list[list[int]]:
    codec = reference.encoding("gpt2")
    return [codec.encode_ordinary(text) for text in texts]


def run_example(name: str, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def counts(paths: list[Path]) -> str:
    texts: list[str] = []
    for path in paths:
        texts += pyarrow.parquet.read_table(path, columns=["text"]).column(0).to_pylist()
    return f"{len(texts)} documents, {sum(len(ids) + 1 for ids in expected(texts))} tokens"
