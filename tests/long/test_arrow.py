"""Arrow IPC, streams and files: the same documents as parquet, and no damage that kills."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pytest
from support import reference
from support.arrow import FORMS
from support.commands import token_bytes
from support.inputs import write_arrow
from support.reading import read

import tokenmill
from tokenmill.errors import BadRowError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import segments_of
from tokenmill.settings import Reading


def test_a_large_file_is_cut_into_runs_of_record_batches(texts: list[str], tmp_path: Path) -> None:
    many = texts * 85
    for form in FORMS:
        path = write_arrow(tmp_path / f"{form}.arrow", many, rows=100, form=form)
        source = find_sources([path], "text").sources[0]
        segments = list(segments_of(source, Reading("text")))
        assert len(segments) > 2
        assert [s.start for s in segments[1:]] == [s.stop for s in segments[:-1]]
        assert read(path) == (many, [])
        tokenmill.prepare(path, tmp_path / f"o{form}", val=0.01, workers=2)
        assert token_bytes(tmp_path / f"o{form}") == reference.nanogpt([path], fraction=0.01)


def test_one_giant_record_batch_is_work_for_all_workers(texts: list[str], tmp_path: Path) -> None:
    many = texts * 85
    path = write_arrow(tmp_path / "x.arrow", many, rows=1 << 20)
    assert len(list(segments_of(find_sources([path], "text").sources[0], Reading("text")))) > 1
    result = tokenmill.prepare(path, tmp_path / "o", val=0.01, workers=2)
    assert result.run["units_encoded"] > 2
    assert token_bytes(tmp_path / "o") == reference.nanogpt([path], fraction=0.01)
    values: list[bytes | None] = [text.encode() for text in many]
    values[5000], values[5003] = b"\xff", None
    write_arrow(path, values, rows=1 << 20, kind=pyarrow.binary(), form="file")
    with pytest.raises(BadRowError, match=r"row 5000 \(record batch 0\): not valid UTF-8"):
        tokenmill.prepare(path, tmp_path / "p", val="none", workers=2)
    tokenmill.prepare(path, tmp_path / "p", val="none", workers=2, on_bad_row="quarantine")
    lines = (tmp_path / "p" / "quarantine.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [5000, 5003]
    # compressed, it is one chain
    write_arrow(path, many, rows=1 << 20, form="file", compression="lz4")
    tokenmill.prepare(path, tmp_path / "q", val="none", workers=2)
    assert token_bytes(tmp_path / "q") == reference.nanogpt([path], fraction=0)
