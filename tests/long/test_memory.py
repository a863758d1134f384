"""What must be held whole: measured before it is touched, refused with the memory it needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet

import tokenmill


def test_rows_without_text_fill_units_too(tmp_path: Path) -> None:
    """Three million empty documents of a compressed file: not one unit."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(pyarrow.compress(b'{"text": ""}\n' * 3_000_000, "zstd", asbytes=True))
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, val="none")
    assert result.manifest.counts["documents"] == 3_000_000
    assert result.run["units_encoded"] >= 2
