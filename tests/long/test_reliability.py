"""The scorecard's rows with few cases each; `make reliability` runs them whole."""

from __future__ import annotations

from types import ModuleType

import pytest
from support.inputs import ROOT

from reliability.__main__ import rows
from reliability.scorecard import run_apart


@pytest.mark.parametrize("module", rows(), ids=lambda module: module.ID)
def test_a_row_of_the_scorecard_passes(module: ModuleType) -> None:
    row = run_apart(module, fast=True)
    assert row.passed, [f"{f.case}: {f.what}" for f in row.failures[:3]]


def test_every_row_of_the_scorecard_is_there_and_in_the_docs() -> None:
    # R15 is about the loader
    wanted = [f"R{number}" for number in range(1, 24) if number != 15]
    assert [module.ID for module in rows()] == wanted
    shown = (ROOT / "docs" / "reliability.md").read_text()
    for row in wanted:
        assert f"| {row} |" in shown
    assert "**no**" not in shown
