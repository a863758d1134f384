"""The house rules: reading order, sizes, one writer, nothing dangerous, nothing of its makers."""

from __future__ import annotations

import re
import subprocess
import sys
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


def test_preparing_imports_neither_pandas_nor_datasets(tmp_path: Path) -> None:
    """pyarrow's conversions to numpy import pandas where it is installed: 0.2 s per process."""
    script = """
import sys, tokenmill
if __name__ == "__main__":
    tokenmill.prepare(sys.argv[1], sys.argv[2], workers=0, val="docs:9")
    print([name for name in ("pandas", "datasets", "torch") if name in sys.modules])
"""
    sample = ROOT / "sample" / "001_00000.parquet"
    done = subprocess.run(
        [sys.executable, "-c", script, sample, tmp_path / "out"], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_neither_coordinator_nor_worker_imports_what_few_jobs_need() -> None:
    """pyarrow.compute takes 0.1 s in each of them."""
    script = "import sys, tokenmill.pipeline, tokenmill.engines.local.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "tokenmill.output.order.sorted_run" in loaded, done.stderr
    assert "pyarrow.compute" not in loaded
