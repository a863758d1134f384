"""Every format: its golden bytes, the tokens and documents it holds, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import dataset_bytes
from support.trainer_formats import options_for

import tokenmill
from tokenmill.formats import FORMATS


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_is_a_function_of_the_plan(
    format: str, inputs: list[Path], tmp_path: Path
) -> None:
    """The same bytes from no worker and from two; every name in the manifest, and no other."""
    made = []
    for workers in (0, 2):
        out = tmp_path / str(workers) / "out"
        result = tokenmill.prepare(
            inputs, out, workers=workers, name="n", **options_for(format, val=0.1)
        )
        made.append(dataset_bytes(out))
    assert made[0] == made[1]
    assert made[0].keys() == {f.path for f in result.manifest.files} | {"manifest.json"}
