"""Ids equal those of the reference, for every input and every way to run."""

from __future__ import annotations

import pytest
from support import reference

FAST = ("gpt2", "p50k_base", "cl100k_base", "o200k_base")


@pytest.fixture(scope="module")
def references() -> dict[str, object]:
    return {name: reference.encoding(name) for name in FAST}
