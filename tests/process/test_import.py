"""`import`: token files that others made, with a manifest and an index of ours beside them."""

from __future__ import annotations

from typing import Any

from support.adopted import foreign, inputs  # noqa: F401
from support.commands import command


def test_the_command_imports(foreign: Any) -> None:
    folder = foreign("llmc")
    done = command("import", folder, "--format", "llmc")
    assert done.returncode == 0, done.stderr
    assert "llmc train:" in done.stdout
    assert command("verify", folder).returncode == 0
    assert "not known: the token files were imported" in command("inspect", folder).stdout
    wrong = command("import", folder, "--format", "llmc", "--tokenizer", "gpt5")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
