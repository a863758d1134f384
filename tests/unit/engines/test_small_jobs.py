from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.engines.local import small_jobs
from tokenmill.engines.local.small_jobs import SMALL_BYTES, is_small


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_jobs, "owns_process", lambda: True)
    monkeypatch.setattr(small_jobs.sys, "platform", "linux")


def test_files_folders_and_patterns_are_added_up(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"x" * (SMALL_BYTES // 2))
    assert is_small([str(tmp_path / "a.txt")])
    assert is_small([str(tmp_path)])
    assert is_small([str(tmp_path / "*.txt")])
    (tmp_path / "c.txt").write_bytes(b"x")
    assert not is_small([str(tmp_path)])
    assert not is_small([str(tmp_path / "*.txt")])
    assert not is_small([str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt")])


@pytest.mark.parametrize(
    "place", ["https://host/a.jsonl", "hf://datasets/org/name", "-", "missing.txt", "none*.txt"]
)
def test_what_is_not_a_file_here_is_not_small(place: str) -> None:
    assert not is_small([place])


def test_a_compressed_file_is_not_small(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"x")
    assert not is_small([str(tmp_path)])


def test_many_files_are_not_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_jobs, "MOST_FILES", 2)
    for name in "abc":
        (tmp_path / name).touch()
    assert not is_small([str(tmp_path)])


def test_nothing_is_forked_in_a_process_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert is_small([str(tmp_path)])
    monkeypatch.setattr(small_jobs, "owns_process", lambda: False)
    assert not is_small([str(tmp_path)])
