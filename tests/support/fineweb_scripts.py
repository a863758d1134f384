"""The scripts in data/fineweb: what they write is what a slow twin of the recipe writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.inputs import ROOT

datasets = pytest.importorskip("datasets")


SCRIPTS = ROOT / "data" / "fineweb"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_DATASETS_OFFLINE": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }


def run(script: str, *args: object, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *map(str, args)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def twin(texts: list[str], name: str, dtype: str) -> dict[str, bytes]:
    """nanoGPT's recipe, row by row."""
    encoding = reference.encoding(name)
    split = datasets.Dataset.from_dict({"text": texts}).train_test_split(
        test_size=0.05, seed=2357, shuffle=True
    )
    result = {}
    for part, rows in (("train", split["train"]), ("val", split["test"])):
        ids: list[int] = []
        for row in rows:
            ids += [*encoding.encode_ordinary(row["text"]), encoding.eot_token]
        result[f"{part}.bin"] = np.array(ids, dtype).tobytes()
    return result
