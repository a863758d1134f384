"""Parts of `finish` as processes: one killed, one twice, two at once, one missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.part_processes import SMALL, start
from support.parts import job_of, write_inputs

from reliability.corpus import dataset_bytes
from tokenmill import finishing, pipeline


def test_parts_of_finish_may_be_killed_run_twice_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/long/test_parts.py has more of them, in all formats and in a bucket."""
    for name, value in SMALL.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)
    given, options = job_of("llmc", write_inputs(tmp_path / "in"))
    pipeline.prepare(given, tmp_path / "one", workers=0, **options)
    out = tmp_path / "out"
    pipeline.prepare(given, out, workers=0, part="0/1", **options)
    told = ["finish", str(out), "--workers", "0", "--part"]
    killed = start(*told, "0/3", FAILPOINT="kill@2 rename *.bin")
    killed.communicate(timeout=120)
    assert killed.returncode == -9
    for process in [start(*told, part) for part in ("0/3", "1/3")]:
        said, error = process.communicate(timeout=120)
        assert process.returncode == 0, error.decode()
        assert f"then, once: tokenmill finish {out}".encode() in said
    again = finishing.finish(out, workers=0, part="1/3")
    assert again.already_done
    finishing.finish(out, workers=0)  # and what part 2 had to do
    assert dataset_bytes(out) == dataset_bytes(tmp_path / "one")
    assert not list(out.glob(".*"))
