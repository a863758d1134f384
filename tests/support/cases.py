"""Which cases of a parametrized test `make test` runs; `make test-all` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], *chosen: Any, first: int = 0, several: bool = False) -> list[Any]:
    """The cases, for `parametrize`. `make test` runs the chosen ones and the first few.

    `several`: a case is a tuple, with a value for each of several names."""
    return [
        case
        if case in chosen or index < first
        else pytest.param(*(case if several else (case,)), marks=pytest.mark.long)
        for index, case in enumerate(cases)
    ]
