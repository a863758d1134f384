"""Tokenizers that users bring: exact against the library each belongs to, and nothing guessed."""

from __future__ import annotations

from pathlib import Path

from support.commands import command, token_bytes
from support.tokenizers import (
    folder,  # noqa: F401
    json_file,  # noqa: F401
)


def test_workers_and_start_methods_give_the_same_bytes(
    json_file: Path, inputs: list[Path], tmp_path: Path
) -> None:
    results = []
    for number, method in enumerate(("inline", "fork", "spawn", "forkserver")):
        output = tmp_path / method
        run = command(
            "prepare", *inputs, "-o", output, "--tokenizer", json_file, "--val", "0.1",
            "--workers", number, *(["--start-method", method] if number else []),
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        results.append(token_bytes(output))
    assert all(result == results[0] for result in results)
