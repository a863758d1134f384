"""Every row of every source is read exactly once, or set aside with its reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill.errors import TokenmillError
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import read_segment, segments_of
from tokenmill.inputs.readers import jsonl as json_lines
from tokenmill.settings import Reading


def test_units_that_would_not_fit_together_are_refused(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed with a reader that cuts differently, rows would be doubled or lost."""
    from support.commands import interrupted

    many = texts * 85
    path = write_jsonl(tmp_path / "x.jsonl.gz", many)
    interrupted([path], tmp_path / "o", units=2)
    monkeypatch.setattr(json_lines, "BATCH_BYTES", 3 << 20)
    with pytest.raises(TokenmillError, match="does not begin where the one before it ends"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)


def test_a_dictionary_of_long_rows_is_decoded_in_small_batches(tmp_path: Path) -> None:
    """9000 rows of one 90 KB text: 90 KB in the file, 810 MB as text."""
    text = "long words here " * 5800
    table = pyarrow.table({"text": pyarrow.array([text] * 9000)})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    assert (tmp_path / "d.parquet").stat().st_size < 100_000
    source = find_sources([tmp_path / "d.parquet"], "text").sources[0]
    rows = 0
    for segment in segments_of(source, Reading("text")):
        for batch in read_segment(source, segment, Reading("text")):
            rows += batch.row_count
            # What a batch is a slice of was decoded at once.
            assert batch.texts.data.nbytes < 100 << 20
            if rows > 2000:
                return


def test_a_giant_row_group_is_read_in_ranges_and_chains(texts: list[str], tmp_path: Path) -> None:
    many = texts * 85
    write_parquet(tmp_path / "one.parquet", many, rows=1 << 20)
    write_parquet(tmp_path / "many.parquet", many, rows=500)
    one = tokenmill.prepare(tmp_path / "one.parquet", tmp_path / "a", val="none", workers=0)
    assert one.run["units_encoded"] > 2
    tokenmill.prepare(tmp_path / "many.parquet", tmp_path / "b", val="none", workers=0)
    assert (tmp_path / "a/train.bin").read_bytes() == (tmp_path / "b/train.bin").read_bytes()
