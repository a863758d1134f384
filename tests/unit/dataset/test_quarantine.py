"""Quarantined rows can be read, and found by a program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.commands import in_process

from tokenmill.dataset.inspection import inspect_quarantine
from tokenmill.errors import VerificationError

LONG = '{"text": 7, "more": "' + "x" * 500 + '"}'


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    lines = [b'{"text": "good"}', b'{"text": 5}', b'{"text": "\xff\xc3"}', b"{", LONG.encode()]
    Path("a.jsonl").write_bytes(b"\n".join(lines))
    words = ["prepare", "a.jsonl", "-o", "out", "--val", "none", "--workers", "0"]
    done = in_process(*words, "--on-bad-row", "quarantine", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["quarantine"] == "out/quarantine.jsonl"
    assert "tokenmill inspect out --quarantine shows the rows" in in_process(*words).stdout
    return "out"


def test_inspect_shows_quarantined_rows_as_text(out: str) -> None:
    told = in_process("inspect", out, "--quarantine").stdout
    assert told.startswith("out/quarantine.jsonl: 4 rows quarantined\n")
    assert "a.jsonl, row 1, line 2 (rows are counted from 0): " in told
    assert '\n  {"text": 5}\n' in told
    assert '\n  {"text": "\\xff\\xc3"}\n' in told
    assert f"\n  {LONG[:300]}\n  ... ({len(LONG)} bytes in all)" in told
    assert LONG in in_process("inspect", out, "--quarantine", "--full").stdout
    found = json.loads(in_process("inspect", out, "--quarantine", "--json").stdout)
    assert found["rows"][0]["text"] == '{"text": 5}'
    assert found["rows"][3]["text"] == LONG
    assert (found["total"], found["more"]) == (4, False)


def test_only_some_are_read_where_only_some_are_asked_for(out: str) -> None:
    report = inspect_quarantine(out, limit=2)
    assert ([row.row for row in report.rows], report.more) == ([1, 2], True)


def test_a_dataset_without_quarantined_rows_and_options_that_contradict(out: str) -> None:
    Path("b.jsonl").write_text('{"text": "good"}\n')
    words = ["prepare", "b.jsonl", "-o", "good", "--val", "none", "--workers", "0", "--json"]
    assert json.loads(in_process(*words).stdout)["quarantine"] == ""
    assert in_process("inspect", "good", "--quarantine").stdout == "no row was quarantined\n"
    wrong = in_process("inspect", out, "--quarantine", "--document", "0")
    assert wrong.returncode == 2
    assert "give one of them" in wrong.stderr


def test_a_damaged_quarantine_is_an_error_of_ours(out: str) -> None:
    size = os.path.getsize("out/quarantine.jsonl")
    Path("out/quarantine.jsonl").write_bytes(b"x" * size)
    with pytest.raises(VerificationError, match="cannot be read"):
        inspect_quarantine(out)


def test_json_names_the_prefixes_that_megatron_takes(out: str) -> None:
    words = ["prepare", "a.jsonl", "-o", "m", "--val", "none", "--workers", "0", "--json"]
    words += ["--format", "megatron,flat", "--on-bad-row", "quarantine"]
    found = json.loads(in_process(*words).stdout)["prefixes"]
    assert found == {"megatron": {"train": ["m/megatron/m_train_text_document"]}}
    [prefix] = found["megatron"]["train"]
    assert os.path.exists(f"{prefix}.bin")
    assert os.path.exists(f"{prefix}.idx")
