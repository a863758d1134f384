"""An output bound to its plan: what was once taken for the same job, or shown badly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tokenmill
from reliability.r14_changed_job import (
    Job,
    decided,
    not_cleaned,
    touched_large,
    unfinished,
)
from tokenmill.errors import RefusedError


@pytest.mark.parametrize("state", [unfinished, decided, not_cleaned])
def test_a_large_input_changed_between_its_samples_is_refused_in_every_state(
    state: object, tmp_path: Path
) -> None:
    """While files got their names, only the time of the input tells: plan.json has it."""
    job = Job(tmp_path, large=True)
    state(job)  # type: ignore[operator]
    name = touched_large(job)
    with pytest.raises(RefusedError, match=name) as refused:
        tokenmill.prepare(job.paths, job.output, **job.options())
    assert "overwrite=True" in refused.value.hint


def test_a_large_input_replaced_by_its_copy_is_compared_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    for name in ("job", "same"):
        (tmp_path / name).mkdir()
    job, same = Job(tmp_path / "job", large=True), Job(tmp_path / "same", large=True)
    unfinished(job)
    path = job.paths[1]
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)  # another inode, the same content and time
    result = tokenmill.prepare(job.paths, job.output, **job.options())
    expected = tokenmill.prepare(same.paths, same.output, **same.options())
    assert result.manifest.checksum == expected.manifest.checksum
