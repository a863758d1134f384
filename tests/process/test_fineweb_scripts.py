"""The scripts in data/fineweb: what they write is what a slow twin of the recipe writes."""

from __future__ import annotations

from pathlib import Path

from support.commands import command, token_bytes
from support.fineweb_scripts import (
    env,  # noqa: F401
    run,
)
from support.on_hub import on_hub  # noqa: F401


def test_prepare_fineweb_goes_straight_from_the_hub_to_tokens(
    tmp_path: Path, env: dict[str, str], on_hub: dict[str, bytes]
) -> None:
    val = ("--val", "0.05")
    told = run("prepare_fineweb.py", "--version", "10B", *val, "-o", tmp_path / "out", env=env)
    assert "120 documents" in told or "documents" in told
    local = [tmp_path / f"{i}.parquet" for i in range(3)]
    assert command("prepare", *local, *val, "-o", tmp_path / "same").returncode == 0
    assert token_bytes(tmp_path / "out") == token_bytes(tmp_path / "same")
    again = run("prepare_fineweb.py", "--input", *local, *val, "-o", tmp_path / "own", env=env)
    assert "tokens" in again
    assert token_bytes(tmp_path / "own") == token_bytes(tmp_path / "same")
