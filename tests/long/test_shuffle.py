"""Shuffled jobs: more kills, and other ways to start workers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.commands import command, dataset_bytes
from support.inputs import sample_texts, write_jsonl

from tokenmill.system.failpoints import FIRED, VARIABLE

SMALL = {"TOKENMILL_RANGE_BYTES": "20000", "TOKENMILL_MAX_RUNS": "3"}
OPTIONS = ("--shuffle", "--seed", 3, "--val", "docs:20", "--format", "llmc", "--shard-tokens", 9000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shuffled")
    texts = [text[:700] for text in sample_texts()]
    return [write_jsonl(folder / f"{n}.jsonl", texts[n * 20 : n * 20 + 40]) for n in range(5)]


@pytest.fixture(scope="module")
def expected(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("expected") / "o"
    done = command("prepare", *files, "-o", output, *OPTIONS, "--workers", 0, env=SMALL)
    assert done.returncode == 0, done.stderr
    return dataset_bytes(output)


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", 1, "--start-method", "spawn"),
        ("--workers", 1, "--start-method", "fork"),
    ],
)
def test_workers_change_nothing(
    files: list[Path], expected: dict[str, bytes], tmp_path: Path, options: tuple[object, ...]
) -> None:
    done = command("prepare", *files[::-1], "-o", tmp_path / "o", *OPTIONS, *options, env=SMALL)
    assert done.returncode == 0, done.stderr
    assert dataset_bytes(tmp_path / "o") == expected


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
    output = tmp_path / "o"
    env = {**SMALL, VARIABLE: fault, FIRED: str(tmp_path / "fired"), "TOKENMILL_SYNC_SECONDS": "0"}
    done = command("prepare", *files, "-o", output, *OPTIONS, "--workers", workers, env=env)
    assert (tmp_path / "fired").exists(), done.stderr
    if workers:  # a worker is replaced
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr
        done = command("prepare", *files, "-o", output, *OPTIONS, "--workers", 2, env=SMALL)
        assert done.returncode == 0, done.stderr
    assert dataset_bytes(output) == expected
