"""What a type checker says to a user of the Python functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import numpy as np
import tokenmill

result = tokenmill.prepare("a.parquet", "out", format=["llmc", "megatron"], val=0.01, eot="append")
plan = tokenmill.plan("a.parquet", "out", probe=False)
ds = tokenmill.open_dataset("out")
first: int = ds["train"].tokens[0]
some = ds["train"].tokens[[1, 5]].astype(np.int64)
texts: list[str] = [ds.tokenizer.decode(d) for d in ds["train"].documents[1:3]]
"""
WRONG = {
    'tokenmill.prepare("a", "out", tokeniser="gpt2")': "tokeniser",
    'tokenmill.prepare("a", "out", eot="apend")': 'Literal["apend"]|incompatible type',
    'tokenmill.plan("a", "out", probes=False)': "probes",
    'tokenmill.export("a", "out", format="hf", val="none")': "val",
    'tokenmill.open_dataset("out", fromat="hf")': "fromat",
    'tokenmill.prepare("a", "out", workers="two")': "incompatible type",
}


def test_mypy_takes_what_is_right_and_finds_a_misspelt_keyword(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "\n".join(WRONG) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", path],
        capture_output=True,
        text=True,
    )
    lines = {
        int(line.split(":")[1]): line
        for line in done.stdout.splitlines()
        if "program.py:" in line and ": error:" in line
    }
    first = PROGRAM.count("\n") + 1
    assert sorted(lines) == list(range(first, first + len(WRONG))), done.stdout
    for number, told in enumerate(WRONG.values(), first):
        assert any(word in lines[number] for word in told.split("|")), lines[number]
