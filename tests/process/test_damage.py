"""Damage, small and exact: what R8 and R9 of the scorecard found by trying everything."""

from __future__ import annotations

from pathlib import Path

from support.commands import command
from support.damage import dataset  # noqa: F401


def test_an_error_moves_no_cursor(tmp_path: Path) -> None:
    done = command("prepare", tmp_path / "x\x1b[2J\x07.parquet", "-o", tmp_path / "o")
    assert done.returncode == 2
    assert "x\\x1b[2J\\x07.parquet: no file matches" in done.stderr
    assert "\x1b" not in done.stderr


def test_inspect_of_a_damaged_index_is_an_error_of_ours(dataset: Path) -> None:
    for damage in ("cut", "gone"):
        path = dataset / "index/train.ends"
        path.write_bytes(path.read_bytes()[:-5]) if damage == "cut" else path.unlink()
        done = command("inspect", dataset)
        assert done.returncode == 3
        assert "index/train.ends" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_dataset_that_lost_its_manifest_is_damaged(dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    done = command("verify", dataset)
    assert done.returncode == 3
    assert "manifest.json: missing" in done.stdout
