"""Shuffled jobs with worker processes: the same bytes whoever does the work, and after kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cases import quick
from support.shuffled_jobs import bytes_after_kill, expected, files, shuffled_bytes

__all__ = ["expected", "files"]  # fixtures


@pytest.mark.parametrize(
    "options",
    quick(
        [
            ("--workers", 2),
            ("--workers", 3, "--memory", "4GB"),
        ],
        first=1,
    ),
)
def test_workers_change_nothing(
    files: list[Path], expected: dict[str, bytes], tmp_path: Path, options: tuple[object, ...]
) -> None:
    assert shuffled_bytes(files[::-1], tmp_path / "o", *options) == expected


@pytest.mark.parametrize(
    ("fault", "workers"),
    quick(
        [
            ("torn@1 write *sorted-6.*", 0),  # a run that units are merged into
            ("torn@5 write *all.runs", 0),  # a range
            ("worker:kill@3 write *tokens-train*", 2),
        ],
        first=1,
        several=True,
    ),
)
def test_a_kill_in_either_half_is_resumed_to_the_same_bytes(
    files: list[Path], expected: dict[str, bytes], tmp_path: Path, fault: str, workers: int
) -> None:
    assert bytes_after_kill(files, tmp_path, fault, workers) == expected


def test_documents_are_brought_into_order_without_pandas() -> None:
    """pyarrow imports it, where it is installed, for an array of numpy: 0.4 s in every worker."""
    code = (
        "import sys, numpy as np\n"
        "from tokenmill.output.order.sorted_run import arranged\n"
        "tokens = arranged(np.arange(9, dtype=np.uint16), np.array([4, 5]), np.array([1, 0]))\n"
        "assert tokens.tolist() == [4, 5, 6, 7, 8, 0, 1, 2, 3], tokens\n"
        "assert 'pandas' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
