"""`plan`: exact where the sources count their tokens, close where they do not, and read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.planning.estimate import Estimate, make_estimate
from tokenmill.planning.make import make_plan
from tokenmill.planning.options import make_options


def estimate(
    inputs: object, output: Path, options: dict[str, Any] | None = None, **kw: Any
) -> Estimate:
    # Long enough to see all of it on a busy machine, but for the test that asks for less.
    kw.setdefault("probe_seconds", 60.0)
    return make_estimate(make_plan(inputs, output, make_options(options or {})), **kw)  # type: ignore[arg-type]
