"""`import`: token files that others made, with a manifest and an index of ours beside them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenmill


@pytest.fixture(scope="module")
def inputs(inputs: list[Path]) -> list[Path]:
    return [inputs[2], inputs[3]]


@pytest.fixture
def foreign(inputs: list[Path], tmp_path: Path) -> Callable[..., Path]:
    """A folder of token files without anything of ours."""

    def make(format: str, **options: Any) -> Path:
        folder = tmp_path / f"theirs-{format}"
        if format in ("llmc", "datatrove"):
            options = {"shard_tokens": "20k", **options}
        tokenmill.prepare(
            inputs, folder, format=format, name="web", workers=0, **{"val": 0.2, **options}
        )
        for name in ("manifest.json", "run.json"):
            (folder / name).unlink()
        shutil.rmtree(folder / "index")
        return folder

    return make
