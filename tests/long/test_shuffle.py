"""Shuffled jobs: more kills, and other ways to start workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shuffled_jobs import bytes_after_kill, expected, files, shuffled_bytes

__all__ = ["expected", "files"]  # fixtures


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", 1, "--start-method", "spawn"),
        ("--workers", 1, "--start-method", "fork"),
        ("--workers", 1, "--memory", "1GB"),
    ],
)
def test_workers_change_nothing(
    files: list[Path], expected: dict[str, bytes], tmp_path: Path, options: tuple[object, ...]
) -> None:
    assert shuffled_bytes(files[::-1], tmp_path / "o", *options) == expected


@pytest.mark.parametrize(
    ("fault", "workers"),
    [
        ("kill@3 write *sorted-*", 0),  # a unit
        ("kill@4 write *journal", 0),
        ("kill@1 write *all.rows", 0),  # the index
        ("worker:kill@2 write *sorted-*", 2),
    ],
)
def test_a_kill_in_either_half_is_resumed_to_the_same_bytes(
    files: list[Path], expected: dict[str, bytes], tmp_path: Path, fault: str, workers: int
) -> None:
    assert bytes_after_kill(files, tmp_path, fault, workers) == expected
