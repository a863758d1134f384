"""`inspect`: what a dataset holds, and where each document and token came from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.commands import command
from support.inputs import SAMPLES, write_jsonl
from support.inspect import sharded  # noqa: F401

import tokenmill


def test_the_summary_of_the_sample(tmp_path: Path) -> None:
    command("prepare", *SAMPLES, "-o", tmp_path / "o", "--val", "0.05", "--workers", "0")
    shown = command("inspect", tmp_path / "o")
    assert shown.returncode == 0, shown.stderr
    for line in (
        "nanogpt, uint16, eot append, val 0.05",
        "train      685 documents, 2,656,968 tokens: train.bin",
        "rows       707 read = 707 written + 0 dropped + 0 quarantined",
        "min 54, median 1,260, mean 3,875.2, max 41,955",
        "256 to 511            104  ████",
        "largest of 2 sources:",
    ):
        assert line in shown.stdout
    found = json.loads(command("inspect", tmp_path / "o", "--json").stdout)
    assert found["lengths"]["median"] == 1260
    assert found["largest_sources"][0]["name"] == "000_00000.parquet"


def test_an_empty_dataset_has_a_summary(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["", ""])
    tokenmill.prepare(tmp_path / "x.jsonl", tmp_path / "o", drop_empty=True, workers=0)
    shown = command("inspect", tmp_path / "o")
    assert shown.returncode == 0, shown.stderr
    assert "0 tokens, 0 documents" in shown.stdout
    assert command("inspect", tmp_path / "o", "--document", "0").returncode == 2
    assert tokenmill.verify_deep(tmp_path / "o", sample="all").complete


def test_a_document_on_the_command_line(sharded: Path) -> None:
    shown = command("inspect", sharded, "--document", "1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("train document 1 of ")
    assert "<|endoftext|>│" in shown.stdout
    train = tokenmill.open_dataset(sharded)["train"]
    longest = max(range(len(train.documents)), key=lambda i: len(train.documents[i]))
    cut = command("inspect", sharded, "--document", longest).stdout
    assert "more characters (--full shows all)" in cut
    full = command("inspect", sharded, "--document", longest, "--full").stdout
    assert "more characters" not in full
    assert len(full) > 4 * len(cut)
    start = train.documents.span(longest)[0]
    inside = command("inspect", sharded, "--token", start + 4000).stdout
    assert "text (from character " in inside
    token = command("inspect", sharded, "--token", "5000").stdout
    assert "token   5,000 is number" in token
    assert "[[" in token
    found = json.loads(command("inspect", sharded, "--token", "5000", "--json").stdout)
    assert found["ids"][found["token"]] == train.tokens[5000]
    both = command("inspect", sharded, "--token", "1", "--document", "1")
    assert both.returncode == 2
    assert command("inspect", sharded, "--document", "999999999").returncode == 2


def test_any_text_is_shown_on_any_terminal(sharded: Path) -> None:
    for number in ("0", "-1"):
        done = subprocess.run(
            [sys.executable, "-m", "tokenmill", "inspect", sharded, "--document", number],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        )
        assert done.returncode == 0, done.stderr
        assert b"\\u2502" in done.stdout  # the bar between tokens, which latin-1 does not have


def test_a_row_on_the_command_line(sharded: Path) -> None:
    view = tokenmill.inspect_document(sharded, document=7)
    asked = ("inspect", sharded, "--source", view.source, "--row", view.row)
    shown = command(*asked)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(
        f"{view.source}, row {view.row} (counted from 0)\n  is      train"
    )
    assert f"  text    tokenmill inspect {sharded} --document 7\n" in shown.stdout
    found = json.loads(command(*asked, "--json").stdout)
    assert found["documents"][0]["first_token"] == view.first_token
    alone = command("inspect", sharded, "--row", "1")
    assert (alone.returncode, "give both of them" in alone.stderr) == (2, True)
    assert command(*asked, "--document", "1").returncode == 2
