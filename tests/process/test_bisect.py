"""A row that kills or hangs its worker is found, named or set aside; all else is written.

Faults are real and planted where a worker encodes: under `fork` by a patch that the worker
inherits, for the other start methods by a `sitecustomize` module that every process imports.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from support.bisect import documents, parquet, quarantined
from support.fatal_rows import plant
from support.inputs import write_parquet
from support.text import small_ranges  # noqa: F401

import tokenmill
from tokenmill.engines import dispatch
from tokenmill.errors import WorkerError


def test_rows_set_aside_in_a_batch_that_has_other_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str | None] = [*documents(500, (30, 41))]
    texts[29] = texts[40] = texts[42] = None
    faulty = write_parquet(tmp_path / "m.parquet", texts, rows=100)
    plant(monkeypatch)
    result = tokenmill.prepare(
        faulty, tmp_path / "o", workers=2, start_method="fork", on_bad_row="quarantine"
    )
    assert [row["row"] for row in quarantined(tmp_path / "o")] == [29, 30, 40, 41, 42]
    assert [row["row"] for row in result.manifest.set_aside] == [30, 41]
    assert result.manifest.counts["quarantined"] == 5


def test_a_long_row_is_cut_for_keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    texts = documents(50, (7,))
    texts[7] = "word " * 400_000 + texts[7]
    faulty = write_parquet(tmp_path / "m.parquet", texts, rows=100)
    plant(monkeypatch)
    tokenmill.prepare(
        faulty, tmp_path / "o", workers=1, start_method="fork", on_bad_row="quarantine"
    )
    (row,) = quarantined(tmp_path / "o")
    assert len(base64.b64decode(str(row["bytes"]))) == 1 << 20
    assert row["length"] == len(texts[7])
    assert row["sha256"] == hashlib.sha256(texts[7].encode()).hexdigest()


def test_too_many_such_rows_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty, _ = parquet(tmp_path, 400, tuple(range(0, 400, 7)))
    plant(monkeypatch)
    monkeypatch.setattr(dispatch, "MAX_ASIDE", 5)
    with pytest.raises(WorkerError, match=r"rows of unit 0\.0 end their worker"):
        tokenmill.prepare(
            faulty, tmp_path / "o", workers=2, start_method="fork", on_bad_row="quarantine"
        )


def test_a_file_of_nothing_but_such_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty, _ = parquet(tmp_path, 3, (0, 1, 2))
    plant(monkeypatch)
    result = tokenmill.prepare(
        faulty, tmp_path / "o", workers=2, start_method="fork", on_bad_row="quarantine"
    )
    assert len(result.manifest.set_aside) == result.manifest.counts["quarantined"] == 3
    assert result.manifest.counts["documents"] == 0
    assert "3 of the quarantined rows are text" in result.warnings[-1]
