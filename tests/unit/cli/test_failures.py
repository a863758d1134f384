"""Errors under --json: JSON on stdout, the same exit code, and the same words on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import in_process

COMMANDS: list[list[str]] = [
    ["plan", "nothing.txt", "-o", "out"],
    ["prepare", "nothing.txt", "-o", "out", "--workers", "0"],
    ["prepare", "nothing.txt"],  # no -o: click's own error
    ["prepare", "nothing.txt", "-o", "out", "--formt", "llmc"],
    ["prepare", "nothing.txt", "-o", "out", "--seed", "1.5"],
    ["fineweb", "--version", "11B"],
    ["status", "nowhere"],
    ["verify", "nowhere"],
    ["inspect", "nowhere"],
    ["inspect", "nowhere", "--document", "1", "--token", "1"],
    ["export", "nowhere", "-o", "out", "--format", "llmc"],
    ["import", "nowhere", "--format", "llmc"],
    ["doctor", "nowhere.py:fn"],
    ["doctor", "--why-died"],
    ["prepar"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_error_is_json_on_stdout_and_keeps_its_exit_code(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = in_process(*words)
    assert plain.returncode != 0
    assert plain.stdout == ""
    done = in_process(*words, "--json")
    assert done.returncode == plain.returncode
    assert done.stderr == plain.stderr
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == plain.returncode
    assert error["message"].split("\n")[0] in plain.stderr
    assert set(error) == {"type", "message", "hint", "exit_code"}


def test_a_value_that_looks_like_the_flag_is_none(tmp_path: Path) -> None:
    no = str(tmp_path / "no.txt")
    done = in_process("prepare", no, "-o", no, "--workers", "0", "--name", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    done = in_process("doctor", "--", "train.py:fn", "--json")
    assert done.returncode == 2
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "a.txt", "-o", "out", "--tokenizer", ""],
        ["prepare", "a.txt", "-o", "out", "--format", ""],
        ["prepare", "a.txt", "-o", "out", "--text-column", ""],
        ["prepare", "a.txt", "-o", "out", "--limit-docs", ""],
        ["prepare", "a.txt", "-o", "out", "--name", ""],
        ["prepare", "a.txt", "-o", "out", "--val", ""],
        ["prepare", "", "-o", "out"],
        ["prepare", "a.txt", "-o", ""],
        ["fineweb", "--version", ""],
        ["verify", ""],
        ["export", "in", "-o", "out", "--format", ""],
        ["doctor", "--directory", ""],
    ],
    ids=" ".join,
)
def test_empty_strings_are_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_process(*words)
    assert done.returncode == 2
    assert "is empty" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["prepar"], "prepare"),
        (["tokenize"], "prepare"),
        (["verfy"], "verify"),
        (["convert"], "export"),
        (["prepare", "a", "-o", "b", "--shard-token", "1"], "--shard-tokens"),
        (["inspect", "a", "--splits", "val"], "--split"),
        (["prepare", "a.txt", "-o", "out", "--workers", "0", "--eot", "apend"], "append"),
        (["prepare", "a.txt", "-o", "out", "--start-method", "spwan"], "spawn"),
        (["prepare", ".", "-o", "out", "--workers", "0", "--split", "trian"], "train"),
    ],
    ids=str,
)
def test_the_nearest_word_is_suggested(
    words: list[str], near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "train-1.txt"):
        (tmp_path / name).write_text("text")
    done = in_process(*words)
    assert done.returncode == 2
    assert f"did you mean '{near}'?" in done.stderr.lower()
