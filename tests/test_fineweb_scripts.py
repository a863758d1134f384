"""The scripts in data/fineweb: what they write is what a slow twin of the recipe writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import reference
from conftest import ROOT, token_bytes, tokenmill, write_arrow, write_parquet
from loopback_hub import running_hub

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


@pytest.mark.parametrize(
    ("tokenizer", "dtype", "options"),
    [
        ("gpt2", "uint16", ["--num-proc", 1]),
        ("gpt2", "uint16", ["--num-proc", 3]),
        ("cl100k_base", "uint32", ["--num-proc", 2]),
        ("gpt2", "uint16", ["--num-proc", 2, "--start-method", "spawn"]),
        ("gpt2", "uint16", ["--num-proc", 2, "--start-method", "forkserver"]),
    ],
)
def test_prepare_writes_what_the_usual_recipe_writes(
    tmp_path: Path,
    texts: list[str],
    env: dict[str, str],
    tokenizer: str,
    dtype: str,
    options: list[object],
) -> None:
    write_parquet(tmp_path / "a.parquet", texts[:100])
    write_parquet(tmp_path / "b.parquet", texts[100:150])
    source = tmp_path / "*.parquet"
    args = ["--input", source, "--tokenizer", tokenizer, "--val", 0.05, "-o", tmp_path / "out"]
    run("prepare.py", *args, *options, env=env)
    assert token_bytes(tmp_path / "out") == twin(texts[:150], tokenizer, dtype)


@pytest.mark.parametrize("form", ["arrow", "saved", "text"])
def test_prepare_reads_arrow_a_saved_dataset_and_one_text(
    tmp_path: Path, texts: list[str], env: dict[str, str], form: str
) -> None:
    plain = [" ".join(text.split()) or "x" for text in texts[:80]]
    source = tmp_path / {"arrow": "a.arrow", "saved": "saved", "text": "a.txt"}[form]
    if form == "arrow":
        write_arrow(source, plain)
    elif form == "saved":
        datasets.Dataset.from_dict({"text": plain}).save_to_disk(str(source))
    else:
        source.write_text("\n\n".join(plain))
    args = ["--input", source, "--num-proc", 2, "--val", 0.05, "-o", tmp_path / "out"]
    run("prepare.py", *args, env=env)
    assert token_bytes(tmp_path / "out") == twin(plain, "gpt2", "uint16")


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
    told = run("prepare_fineweb.py", "--version", "10B", "-o", tmp_path / "out", env=env)
    assert "120 documents" in told or "documents" in told
    local = [tmp_path / f"{i}.parquet" for i in range(3)]
    assert tokenmill("prepare", *local, "-o", tmp_path / "same").returncode == 0
    assert token_bytes(tmp_path / "out") == token_bytes(tmp_path / "same")
    again = run("prepare_fineweb.py", "--input", *local, "-o", tmp_path / "own", env=env)
    assert "tokens" in again
    assert token_bytes(tmp_path / "own") == token_bytes(tmp_path / "same")
