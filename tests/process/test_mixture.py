"""`--mix` through the command line: the same bytes with any number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import command, dataset_bytes
from support.inputs import sample_texts, write_jsonl, write_parquet

MIX = """
tokens = 30_000
[source.web]
inputs = ["web.parquet"]
weight = 0.5
[source.code]
inputs = ["code.jsonl"]
weight = 0.4
max_epochs = 4
[source.wiki]
inputs = ["wiki.jsonl.gz"]
weight = "rest"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    texts = [text[:600] for text in sample_texts()]
    write_parquet(folder / "web.parquet", texts[:150], rows=25)
    write_jsonl(folder / "code.jsonl", texts[150:200])
    write_jsonl(folder / "wiki.jsonl.gz", texts[200:250])
    (folder / "mix.toml").write_text(MIX)
    return folder


def test_any_number_of_workers_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for workers in ("0", "2"):
        done = command(
            "prepare", "--mix", folder / "mix.toml", "--shuffle", "-o", tmp_path / workers,
            "--val", "0.1", "--workers", workers,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "tokens there  tokens taken  epochs" in done.stdout
    assert dataset_bytes(tmp_path / "0") == dataset_bytes(tmp_path / "2")


def test_inputs_are_needed_unless_a_mixture_names_them(tmp_path: Path) -> None:
    done = command("prepare", "-o", tmp_path / "o")
    assert done.returncode == 2
    assert "Missing argument 'INPUTS...'" in done.stderr
