"""`verify --deep`: what is stored is what the sources say, token by token, row by row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import command
from support.deep import moved, reseal, sources, write_tokens  # noqa: F401
from support.inputs import write_parquet

import tokenmill
from tokenmill.errors import UsageError


def test_ranges_of_one_large_row_group_are_compared(tmp_path: Path) -> None:
    many = [
        f"document {i} of many: " + f"{i * 7919} words here and there. " * 40 for i in range(30_000)
    ]
    write_parquet(tmp_path / "x.parquet", many, rows=len(many), use_dictionary=False)
    tokenmill.prepare(tmp_path / "x.parquet", tmp_path / "o", val=0.05)
    report = tokenmill.verify_deep(tmp_path / "o", sample=200)
    assert report.problems == []
    assert report.segments_total > 1
    assert report.documents == 200


def test_the_command_names_what_differs_and_exits_3(moved: tuple[Path, Path]) -> None:
    _, out = moved
    fine = command("verify", out, "--deep", "--sample", "all")
    assert fine.returncode == 0, fine.stderr
    assert fine.stdout.startswith("ok: every document encoded again by the reference: ")
    assert "none missing, none extra" in fine.stdout
    train = tokenmill.open_dataset(out)["train"]
    write_tokens(out, "train", train.documents.span(20)[0], np.array([13]))
    reseal(out)
    assert command("verify", out).returncode == 0
    done = command("verify", out, "--deep")
    assert done.returncode == 3
    source, row = train.documents.source(20)
    assert f"bad: train document 20 ({source}, row {row}): token 0 " in done.stdout
    shown = json.loads(command("verify", out, "--deep", "--sample", "all", "--json").stdout)
    assert shown["ok"] is False
    assert shown["problems"][0]["row"] == row


def test_mistakes_of_the_command(moved: tuple[Path, Path]) -> None:
    inputs, out = moved
    for args in (["--sample", "5"], ["--deep", "--sample", "few"], ["--deep", "--sample", "0"]):
        assert command("verify", out, *args).returncode == 2
    with pytest.raises(UsageError):
        tokenmill.verify_deep(out, sample=0)
    done = command("verify", out, "--deep", "--source-root", inputs / "nowhere")
    assert done.returncode == 2
    assert "--source-root" in done.stderr
