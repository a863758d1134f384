"""Small shuffled jobs of the real command, which tests run and kill."""

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


def shuffled_bytes(files: list[Path], output: Path, *options: object) -> dict[str, bytes]:
    done = command("prepare", *files, "-o", output, *OPTIONS, *options, env=SMALL)
    assert done.returncode == 0, done.stderr
    return dataset_bytes(output)


def bytes_after_kill(files: list[Path], folder: Path, fault: str, workers: int) -> dict[str, bytes]:
    """Of a job that a fault ends, and that is resumed; a dead worker is replaced."""
    output, fired = folder / "o", folder / "fired"
    env = {**SMALL, VARIABLE: fault, FIRED: str(fired), "TOKENMILL_SYNC_SECONDS": "0"}
    done = command("prepare", *files, "-o", output, *OPTIONS, "--workers", workers, env=env)
    assert fired.exists(), done.stderr
    assert done.returncode == (0 if workers else -signal.SIGKILL), done.stderr
    return dataset_bytes(output) if workers else shuffled_bytes(files, output, "--workers", 2)
