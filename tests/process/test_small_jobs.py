"""A command with little to do has one worker, forked from the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import process
from support.inputs import ROOT, write_jsonl


def run_of(output: Path) -> tuple[int, str]:
    run = json.loads((output / "run.json").read_text())["settings"]
    return run["workers"], run["start_method"]


def test_a_small_job_forks_one_worker_and_makes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", [f"document {i}" for i in range(500)])
    for name, more in {"small": (), "usual": ("--workers", "2")}.items():
        done = process("prepare", tmp_path / "in", "--val", "docs:9", "-o", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr
    assert run_of(tmp_path / "small") == (1, "fork")
    assert run_of(tmp_path / "usual") == (2, "forkserver")
    for file in ("manifest.json", "train.bin", "val.bin"):
        assert (tmp_path / "small" / file).read_bytes() == (tmp_path / "usual" / file).read_bytes()


@pytest.mark.parametrize(
    "asked", [("--start-method", "forkserver"), ("--encoder", "reference")], ids=lambda a: a[0]
)
def test_what_the_user_asked_for_holds_in_a_small_job(
    asked: tuple[str, str], tmp_path: Path
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    done = process("prepare", file, "-o", tmp_path / "o", "--val", "docs:1", *asked)
    assert done.returncode == 0, done.stderr
    assert run_of(tmp_path / "o")[1] == "forkserver"


def test_a_row_that_kills_the_worker_of_a_small_job_is_found(tmp_path: Path) -> None:
    """The command survives: the row does not end the process that the user started."""
    file = write_jsonl(tmp_path / "a.jsonl", ["good", "<<MARKER>>", "good as well"])
    script = """
import pytest, sys
from support.fatal_rows import plant
plant(pytest.MonkeyPatch())
from tokenmill.cli.main import main
main()
"""
    settings = ["--val", "none", "--on-bad-row", "quarantine"]
    done = subprocess.run(
        [sys.executable, "-c", script, "prepare", file, "-o", tmp_path / "o", *settings],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
    )
    (row,) = (tmp_path / "o" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(row)["row"] == 1, done.stderr
    assert "SIGABRT" in json.loads(row)["reason"]
    assert run_of(tmp_path / "o") == (1, "fork")
