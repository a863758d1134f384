"""Too few open files: a sentence before anything is written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from support.commands import command

from tokenmill.errors import UsageError
from tokenmill.system import limits


def allow(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (soft, hard))


@pytest.mark.parametrize("name", ["plan", "prepare"])
def test_ulimit_is_refused_and_nothing_is_left_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, 20, 20)
    (tmp_path / "a.txt").write_text("some text\n")
    out = tmp_path / "out"
    done = command(name, tmp_path / "a.txt", "-o", out, "--workers", 0)
    assert done.returncode == 2, done.stderr
    assert "only 20 files may be open at a time (ulimit -n)" in done.stderr
    assert "hint: " in done.stderr
    assert not out.exists()


def test_the_hint_is_one_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 20, 4096)
    with pytest.raises(UsageError) as caught:
        limits.refuse_few_files(2)
    assert caught.value.hint == "ulimit -n 1024"
    allow(monkeypatch, 20, 20)
    with pytest.raises(UsageError) as caught:
        limits.refuse_few_files(2)
    assert "higher limit" in caught.value.hint


@pytest.mark.parametrize(("soft", "workers"), [(1024, 64), (256, 8), (-1, 8)])
def test_usual_limits_are_enough(soft: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, soft, max(soft, resource.RLIM_INFINITY))
    limits.refuse_few_files(workers)
