"""What the tests of limits share: the documents of the slow twin, and a look at a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import reference

import tokenmill as mill


@pytest.fixture(scope="module")
def documents(inputs: list[Path]) -> list[list[int]]:
    """What the slow twin makes of the inputs."""
    return [ids for _, _, ids in reference.documents(inputs, "gpt2", "append")]


def holds(output: Path, documents: list[list[int]]) -> bool:
    """Whether a dataset is these documents, val before train."""
    dataset = mill.open_dataset(output)
    found = [dataset[name].tokens[:] for name in ("val", "train") if name in dataset]
    return np.array_equal(np.concatenate(found), np.concatenate(documents))
