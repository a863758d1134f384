"""The scripts in data/fineweb: what they write is what a slow twin of the recipe writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import token_bytes
from support.fineweb_scripts import (
    datasets,
    env,  # noqa: F401
    run,
    twin,
)
from support.inputs import write_arrow, write_parquet
from support.on_hub import on_hub  # noqa: F401


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


def test_prepare_loads_from_the_hub(
    tmp_path: Path, texts: list[str], env: dict[str, str], on_hub: dict[str, bytes]
) -> None:
    run("prepare.py", "--num-proc", 2, "--val", 0.05, "-o", tmp_path / "out", env=env)
    assert token_bytes(tmp_path / "out") == twin(texts[:120], "gpt2", "uint16")
