"""`export --shuffle` and `--by-source` by the real command: workers and kills change no byte."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.cases import quick
from support.commands import command, dataset_bytes
from support.inputs import sample_texts, write_jsonl

import tokenmill
from tokenmill.system.failpoints import FIRED, VARIABLE

SMALL = {
    "TOKENMILL_RANGE_BYTES": "12000",
    "TOKENMILL_MAX_RUNS": "3",
    "TOKENMILL_MAKE_BYTES": "0",  # workers make few bytes, too
}
OPTIONS = ("--format", "llmc,parquet", "--shard-tokens", "9k", "--name", "x")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    texts = [text[:700] for text in sample_texts()]
    files = [write_jsonl(folder / f"{n}.jsonl", texts[n * 20 : n * 20 + 40]) for n in range(3)]
    tokenmill.prepare(files, folder / "d", val=0.1, workers=0, quiet=True)
    return folder / "d"


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return shuffled_bytes(source, tmp_path_factory.mktemp("expected") / "o", 0)


def shuffled_bytes(source: Path, output: Path, workers: int, *more: object) -> dict[str, bytes]:
    args = ("export", source, "-o", output, "--shuffle", *OPTIONS, "--workers", workers, *more)
    done = command(*args, env=SMALL)
    assert done.returncode == 0, done.stderr
    assert not (output / ".tokenmill").exists()
    return dataset_bytes(output)


@pytest.mark.parametrize("chosen", quick([(2,), (3, "--memory", "4GB")], first=1))
def test_workers_and_memory_change_nothing(
    source: Path, expected: dict[str, bytes], tmp_path: Path, chosen: tuple[Any, ...]
) -> None:
    assert shuffled_bytes(source, tmp_path / "o", *chosen) == expected


@pytest.mark.parametrize(
    ("fault", "workers"),
    quick(
        [
            ("torn@2 write *run-0-*", 0),
            ("torn@1 write *merge-0-*", 0),
            ("torn@2 write *range-0-*", 0),
            ("kill@1 unlink *run-0-*", 0),  # the runs are not needed any more
            ("torn@1 write *train.numbers*", 0),
            ("worker:kill@2 write *range-*", 2),
        ],
        first=1,
        several=True,
    ),
)
def test_a_kill_is_resumed_to_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, fault: str, workers: int
) -> None:
    env = {**SMALL, VARIABLE: fault, FIRED: str(tmp_path / "fired")}
    args = ("export", source, "-o", tmp_path / "o", "--shuffle", *OPTIONS, "--workers", workers)
    done = command(*args, env=env)
    assert (tmp_path / "fired").exists(), done.stderr
    if workers:  # a dead worker is replaced
        assert done.returncode == 0, done.stderr
        assert dataset_bytes(tmp_path / "o") == expected
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (tmp_path / "o/manifest.json").exists()
        assert shuffled_bytes(source, tmp_path / "o", 2) == expected


def test_another_seed_in_the_same_folder_is_refused(source: Path, tmp_path: Path) -> None:
    shuffled_bytes(source, tmp_path / "o", 0)
    args = ("export", source, "-o", tmp_path / "o", "--shuffle", "--seed", 3, *OPTIONS)
    done = command(*args, env=SMALL)
    assert done.returncode == 2
    assert "reshuffle, seed: 0 -> 3" in done.stderr


def test_by_source_prints_what_megatron_takes(source: Path, tmp_path: Path) -> None:
    args = ("export", source, "-o", tmp_path / "o", "--format", "megatron", "--by-source")
    done = command(*args, "--workers", 2, env=SMALL)
    assert done.returncode == 0, done.stderr
    train, val = done.stdout.splitlines()[-2:]
    assert train.startswith("--train-data-path 0.")
    assert val.startswith("--valid-data-path 0.")
    weights, prefixes = train.split()[1::2], train.split()[2::2]
    assert sum(map(float, weights)) == pytest.approx(1, abs=1e-5)
    assert prefixes == [str(tmp_path / f"o/{n}/{n}_train_text_document") for n in range(3)]
    again = command(*args, "--workers", 0, "--json", env=SMALL)
    told = json.loads(again.stdout)
    assert told["megatron"]["--train-data-path"] == train.partition(" ")[2]
    assert list(told["sources"]) == ["0.jsonl", "1.jsonl", "2.jsonl"]
