"""A fraction of few documents: what it leaves empty is told before anything is encoded."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill import pipeline
from tokenmill.errors import RefusedError, TokenmillError
from tokenmill.planning.options import make_options


@pytest.fixture(autouse=True)
def an_empty_split_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "make_options", make_options)


def test_the_hash_of_all_rows_is_known_before_they_are_encoded(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["some text"] * 1100)
    with pytest.raises(RefusedError, match="the val split would be empty") as refused:
        tokenmill.prepare(path, tmp_path / "o", workers=0, seed=5)
    assert "val=0.01" in refused.value.hint
    assert not (tmp_path / "o").exists()
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, seed=5, val=0.01)
    assert {split.name for split in result.manifest.splits if split.documents} == {"train", "val"}


@pytest.mark.parametrize("seed", range(6))
def test_what_is_refused_would_be_empty_and_nothing_else(seed: int, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["some text"] * 150)
    options = {"workers": 0, "val": 0.01, "seed": seed}
    try:
        tokenmill.prepare(path, tmp_path / "o", **options)
        refused = False
    except RefusedError:
        refused = True
    result = tokenmill.prepare(path, tmp_path / "p", allow_empty_split=True, **options)
    assert refused == any(not split.documents for split in result.manifest.splits)


def test_plan_warns_of_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["some text"] * 1100)
    [told] = [
        w for w in tokenmill.plan(path, tmp_path / "o", seed=5, quiet=True).warnings if "empty" in w
    ]
    assert "the val split will be empty: val=0.0005 takes about 0.55 of 1,100 documents" in told
    lines = write_jsonl(tmp_path / "b.jsonl", ["some text"] * 1707)
    [told] = [w for w in tokenmill.plan(lines, tmp_path / "p", quiet=True).warnings if "empty" in w]
    assert "the val split may be empty" in told
    few = tokenmill.plan(path, tmp_path / "o", val=0.05, quiet=True).warnings
    assert not [line for line in few if "empty" in line]


def test_a_file_that_is_gone_is_noticed_by_the_same_command(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["some text"] * 90)
    options = {"workers": 0, "val": "docs:9"}
    tokenmill.prepare(path, tmp_path / "o", **options)
    assert tokenmill.prepare(path, tmp_path / "o", **options).already_done
    content = (tmp_path / "o" / "val.bin").read_bytes()
    (tmp_path / "o" / "val.bin").write_bytes(content[:-1])
    with pytest.raises(TokenmillError, match=r"val\.bin: has 53 bytes instead of 54") as found:
        tokenmill.prepare(path, tmp_path / "o", **options)
    assert found.value.exit_code == 3
    (tmp_path / "o" / "val.bin").unlink()
    with pytest.raises(TokenmillError, match=r"val\.bin: is missing"):
        tokenmill.prepare(path, tmp_path / "o", **options)
    (tmp_path / "o" / "val.bin").mkdir()
    with pytest.raises(TokenmillError, match=r"val\.bin: cannot be used: not a regular file"):
        tokenmill.prepare(path, tmp_path / "o", **options)
    (tmp_path / "o" / "val.bin").rmdir()
    assert not tokenmill.prepare(path, tmp_path / "o", overwrite=True, **options).already_done
