"""The scorecard's rows with few cases each; `make reliability` runs them whole."""

from __future__ import annotations

from types import ModuleType

import pytest

from reliability.__main__ import rows
from reliability.scorecard import run_apart


@pytest.mark.parametrize("module", rows(), ids=lambda module: module.ID)
def test_a_row_of_the_scorecard_passes(module: ModuleType) -> None:
    row = run_apart(module, fast=True)
    assert row.passed, [f"{f.case}: {f.what}" for f in row.failures[:3]]
