"""The scripts in data/fineweb: what they write is what a slow twin of the recipe writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import command, token_bytes
from support.fineweb_scripts import (
    env,  # noqa: F401
    run,
    twin,
)
from support.inputs import write_parquet
from support.loopback_hub import running_hub


@pytest.fixture
def on_hub(tmp_path: Path, texts: list[str], env: dict[str, str]) -> Iterator[dict[str, bytes]]:
    """FineWeb's shape: a card with configurations, files in sample/10BT."""
    card = b"""---
configs:
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
---
"""
    files = {"README.md": card}
    for i in range(3):
        path = write_parquet(tmp_path / f"{i}.parquet", texts[i * 40 : i * 40 + 40])
        files[f"sample/10BT/{i:03d}_00000.parquet"] = path.read_bytes()
    with running_hub() as hub:
        hub.repo("HuggingFaceFW/fineweb-edu").commit(files)
        env.update(hub.environment(tmp_path / "hf"))
        env.pop("HF_DATASETS_OFFLINE")
        yield files


def test_prepare_loads_from_the_hub(
    tmp_path: Path, texts: list[str], env: dict[str, str], on_hub: dict[str, bytes]
) -> None:
    run("prepare.py", "--num-proc", 2, "--val", 0.05, "-o", tmp_path / "out", env=env)
    assert token_bytes(tmp_path / "out") == twin(texts[:120], "gpt2", "uint16")


def test_prepare_fineweb_goes_straight_from_the_hub_to_tokens(
    tmp_path: Path, env: dict[str, str], on_hub: dict[str, bytes]
) -> None:
    val = ("--val", "0.05")
    told = run("prepare_fineweb.py", "--version", "10B", *val, "-o", tmp_path / "out", env=env)
    assert "120 documents" in told or "documents" in told
    local = [tmp_path / f"{i}.parquet" for i in range(3)]
    assert command("prepare", *local, *val, "-o", tmp_path / "same").returncode == 0
    assert token_bytes(tmp_path / "out") == token_bytes(tmp_path / "same")
    again = run("prepare_fineweb.py", "--input", *local, *val, "-o", tmp_path / "own", env=env)
    assert "tokens" in again
    assert token_bytes(tmp_path / "own") == token_bytes(tmp_path / "same")
