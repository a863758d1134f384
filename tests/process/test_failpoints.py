"""Faults by name and number, from the environment, in the real command; nothing without."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.cases import quick
from support.commands import command, dataset_bytes
from support.inputs import write_jsonl

from tokenmill.system import disk as steps
from tokenmill.system.failpoints import FIRED, VARIABLE, FaultyDisk, disk_of


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """An input, and the dataset it gives."""
    folder = tmp_path_factory.mktemp("given")
    path = write_jsonl(folder / "a.jsonl", ["some text", "more text"] * 50)
    assert command("prepare", path, "-o", folder / "o").returncode == 0
    return path, dataset_bytes(folder / "o")


def test_without_a_fault_storage_calls_the_os_itself() -> None:
    assert steps.disk is os
    assert disk_of({}) is os


@pytest.mark.parametrize(
    ("fault", "told"),
    quick(
        [
            ("eio@1 sync *journal", "journal: cannot append to: Input/output error"),
            ("enospc@1+ write *commit.json*", "bytes were needed"),
            ("worker:enospc@1+ write *tokens-train*", "bytes were needed"),
            ("eio@1 sync-folder */.tokenmill", "cannot sync the folder"),
            ("eio@1 rename *manifest.json", "manifest.json: cannot write"),
        ],
        first=2,
        several=True,
    ),
)
def test_a_named_fault_is_told_with_its_path_and_resumed(
    fault: str, told: str, given: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    path, expected = given
    output = tmp_path / "o"
    env = {VARIABLE: fault, FIRED: str(tmp_path / "fired")}
    done = command("prepare", path, "-o", output, "--workers", 1, env=env)
    assert done.returncode == 1, done.stderr
    assert told in done.stderr
    assert str(output) in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "fired").exists()
    assert not (output / "manifest.json").exists()
    assert command("prepare", path, "-o", output).returncode == 0
    assert dataset_bytes(output) == expected


def test_the_coordinator_is_killed_before_an_operation_and_inside_a_write(
    given: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    path, expected = given
    for fault in ("coordinator:kill@25", "coordinator:torn@2 write *"):
        output = tmp_path / fault[12:16]
        done = command("prepare", path, "-o", output, env={VARIABLE: fault})
        assert done.returncode == -signal.SIGKILL
        assert command("prepare", path, "-o", output).returncode == 0
        assert dataset_bytes(output) == expected


def test_a_killed_worker_and_a_short_write_are_made_good(
    given: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    path, expected = given
    for number, fault in enumerate(("worker:kill@1 write *", "worker:short@1 write *")):
        output, fired = tmp_path / str(number), tmp_path / f"fired{number}"
        env = {VARIABLE: fault, FIRED: str(fired)}
        done = command("prepare", path, "-o", output, "--workers", 1, env=env)
        assert done.returncode == 0, done.stderr
        assert "write" in fired.read_text()
        assert dataset_bytes(output) == expected


@pytest.mark.parametrize("fault", ["kill", "explode@1", "kill@x", "kill@1 write"])
def test_a_fault_that_is_none_is_refused(fault: str) -> None:
    with pytest.raises(ValueError, match="TOKENMILL_FAILPOINT"):
        FaultyDisk(fault)
