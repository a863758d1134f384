"""A stand-in for the package `awkward`.

gigatoken takes and returns arrays of that package and calls five of its functions, on two flat
arrays each way. Importing all of it costs 0.2 s, 390 modules and 10 MB, and each call some copies
(1 ms for a batch of 4 MB; figures in docs/log.md). So a process that is ours alone (a worker, the
fork server) gives gigatoken these five functions instead. A caller's own process keeps awkward.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class FlatArray:
    """Values end to end and how many belong to each document."""

    def __init__(self, flat: Any, counts: Any) -> None:
        self.flat = flat
        self.counts = counts


FlatArray.__module__ = "awkward"  # gigatoken looks where the type comes from
FlatArray.__name__ = FlatArray.__qualname__ = "Array"

_stand_in = types.ModuleType("awkward")
_stand_in.__dict__.update(
    Array=FlatArray,
    without_parameters=lambda array: array,
    flatten=lambda array: array.flat,
    num=lambda array: array.counts,
    to_numpy=lambda array: array,
    unflatten=FlatArray,
)


def use_stand_in() -> None:
    """Only for a process that runs nothing but ours."""
    sys.modules.setdefault("awkward", _stand_in)


def remove_stand_in() -> None:
    if uses_stand_in():
        del sys.modules["awkward"]


def uses_stand_in() -> bool:
    return sys.modules.get("awkward") is _stand_in
