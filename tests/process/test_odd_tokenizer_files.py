"""Tokenizer files that are unusual or damaged: they give the ids of the library, or a sentence."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from support.commands import command
from support.inputs import write_parquet
from support.odd_files import LETTERS, PAIRS, piece, write_model


def exit_of(tokenizer: Path, folder: Path, *options: str) -> str:
    """What `prepare` says of a file that it refuses."""
    source = write_parquet(folder / "in.parquet", ["ab"])
    done = command(
        "prepare",
        source,
        "-o",
        folder / "o",
        "--tokenizer",
        tokenizer,
        "--eot-token",
        "1",
        *options,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "o").exists()
    return done.stderr


def test_a_control_symbol_that_is_not_utf8(tmp_path: Path) -> None:
    path = write_model(tmp_path / "t.model", PAIRS + LETTERS + piece(b"\xff\xfe", 0, 3))
    assert "a control symbol is damaged" in exit_of(path, tmp_path)


@pytest.mark.parametrize("line", [b"YWI= -5", b"YWI= 4294967301", b" 256", b"YWI= 2_56", b"YWI= x"])
def test_a_rank_that_is_not_one(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.tiktoken"
    ranks = b"".join(b"%b %d\n" % (base64.b64encode(bytes([b])), b) for b in range(256))
    path.write_bytes(ranks + line + b"\n")
    assert "line 257 is not a token and a rank" in exit_of(path, tmp_path, "--pattern", "gpt2")
