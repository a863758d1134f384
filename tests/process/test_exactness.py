"""Ids equal those of the reference, for every input and every way to run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import dataset_bytes
from support.exactness import (
    references,  # noqa: F401
)

import tokenmill


@pytest.fixture(scope="module")
def without_workers(
    inputs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("without-workers") / "o"
    tokenmill.prepare(inputs, output, workers=0)
    return dataset_bytes(output)


@pytest.mark.parametrize(("method", "workers"), [("fork", 3), ("spawn", 2), ("forkserver", 1)])
def test_every_start_method_gives_the_same_dataset(
    method: str,
    workers: int,
    inputs: list[Path],
    without_workers: dict[str, bytes],
    tmp_path: Path,
) -> None:
    """All of them with all numbers of workers, on more text: R11 of the scorecard."""
    output = tmp_path / "o"
    tokenmill.prepare(inputs, output, workers=workers, start_method=method, memory="2GB")
    assert dataset_bytes(output) == without_workers


def test_the_stand_in_for_awkward_gives_the_same_ids(texts: list[str]) -> None:
    """In a process of its own, as in a worker; and it must really be in use there."""
    import subprocess
    import sys

    script = """
import sys, json
texts = [t.encode() for t in json.load(sys.stdin)]
from tokenmill.tokenizer.encoders.awkward_stand_in import remove_stand_in
from tokenmill.tokenizer.encoders.awkward_stand_in import use_stand_in, uses_stand_in
from tokenmill.tokenizer.encoders.fast import FastEncoder
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.bundled import get_encoding
use_stand_in()
encoder = FastEncoder(get_encoding("gpt2"))
first = encoder.encode(from_bytes(texts)), encoder.encode(from_bytes(texts).slice(3, 9))
assert uses_stand_in() and "awkward.contents" not in sys.modules
remove_stand_in()
second = encoder.encode(from_bytes(texts)), encoder.encode(from_bytes(texts).slice(3, 9))
assert not uses_stand_in() and "awkward.contents" in sys.modules
for one, other in zip(first, second):
    assert one[0].tolist() == other[0].tolist() and one[1].tolist() == other[1].tolist()
print(len(first[0][0]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(texts), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100_000
