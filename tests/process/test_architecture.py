"""The house rules: reading order, sizes, one writer, nothing dangerous, nothing of its makers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.inputs import ROOT


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine, no name of a package mirror, in any tracked text file."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile(
        r"/(?:work|root|home)/[a-z]|https?://[^\s]*(?:mirror|simple/)|\.internal\b"
    )
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".parquet", ".ranks", ".png") or not path.exists():
            continue
        if path == Path(__file__):
            continue
        match = pattern.search(path.read_text(errors="ignore"))
        assert match is None, f"{name}: {match and match[0]}"
