"""A Hub of our own with the shape of FineWeb, for the scripts in data/fineweb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fineweb_scripts import (
    env,  # noqa: F401
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
