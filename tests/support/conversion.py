"""From one format to others: `export`, several formats from one run, and short last shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.commands import dataset_bytes

import tokenmill
from tokenmill.formats import FORMATS

SHARDS = "30k"


def options_for(*formats: str, **more: Any) -> dict[str, Any]:
    sharded = all(FORMATS[format].sharded for format in formats)
    return {"format": ",".join(formats)} | ({"shard_tokens": SHARDS} if sharded else {}) | more


@pytest.fixture(scope="module")
def inputs(inputs: list[Path]) -> list[Path]:
    """Some of them, of three kinds: there is much to convert."""
    return [inputs[2], inputs[3], inputs[6]]


@pytest.fixture(scope="module")
def source(inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of llm.c's shards, documents cut by their borders."""
    out = tmp_path_factory.mktemp("source") / "out"
    tokenmill.prepare(inputs, out, workers=2, name="x", **options_for("llmc", val=0.1))
    return out


OURS = ("manifest.json", "index/pieces")  # of an export they name its source, and its pieces


PLANS_OWN = ("state.json",)  # of `datasets`: holds the plan's fingerprint


def files_in(folder: Path) -> dict[str, bytes]:
    """What a trainer or a reader of ours finds, without what is bound to how it was made."""
    return {
        name: content
        for name, content in dataset_bytes(folder).items()
        if name not in OURS and not name.endswith(PLANS_OWN)
    }
