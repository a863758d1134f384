"""`plan`: exact where the sources count their tokens, close where they do not, and read-only."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from support import reference
from support.cases import quick
from support.estimate import estimate
from support.inputs import SAMPLES, write_jsonl

import tokenmill
from tokenmill.inputs.readers.decompress import expansion
from tokenmill.planning import estimate as estimating
from tokenmill.planning.estimate import SplitFiles, split_files
from tokenmill.planning.options import Options, plan_settings
from tokenmill.settings import PlanSettings


def settings(**options: Any) -> PlanSettings:
    return plan_settings(Options(**options), "out")


def write_counted(path: Path, texts: list[str], counts: list[int | None]) -> Path:
    table = pyarrow.table({"text": texts, "token_count": pyarrow.array(counts, pyarrow.int32())})
    pyarrow.parquet.write_table(table, path, row_group_size=17)
    return path


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"drop_empty": True},
            {"format": "llmc", "shard_tokens": "500k", "val": "none", "tokenizer": "r50k_base"},
            {},
            {"val": "none", "eot": "none"},
            {"format": "llmc", "shard_tokens": "500k"},
        ],
        first=2,
    ),
)
def test_token_count_gives_the_number_of_the_real_run(
    options: dict[str, Any], tmp_path: Path, texts: list[str]
) -> None:
    codec = reference.encoding("gpt2")
    counts: list[int | None] = [len(codec.encode_ordinary(text)) for text in texts]
    path = write_counted(tmp_path / "x.parquet", texts, counts)
    found = estimate([*SAMPLES, path], tmp_path / "o", options)
    result = tokenmill.prepare([*SAMPLES, path], tmp_path / "o", workers=0, **options)
    assert found.tokens_exact
    assert found.tokens_from == "token_count"
    assert found.tokens == result.manifest.counts["tokens"]
    assert found.documents == result.manifest.counts["documents"]
    assert estimate([*SAMPLES, path], tmp_path / "p", options, probe=False).tokens == found.tokens
    written = [f for f in result.manifest.files if f.kind == "tokens"]
    if options.get("format") == "llmc":
        names = {name for split in found.files for name in (split.first, split.last)}
        assert {f.path for f in written} >= {n.replace("p_", "o_") for n in names}
        assert sum(split.files for split in found.files) == len(written)
        assert found.files[-1].last_tokens == written[-1].tokens
    needed = sum(p.stat().st_size for p in (tmp_path / "o").rglob("*") if p.is_file())
    assert found.disk_bytes == pytest.approx(needed, rel=0.02)


def test_token_count_that_is_not_true_is_not_used(tmp_path: Path, texts: list[str]) -> None:
    codec = reference.encoding("gpt2")
    counts: list[int | None] = [len(codec.encode_ordinary(text)) for text in texts]
    right = sum(count or 0 for count in counts) + len(texts)
    wrong = write_counted(tmp_path / "w.parquet", texts, [(count or 0) * 2 for count in counts])
    found = estimate(wrong, tmp_path / "o")
    assert (found.tokens_from, found.tokens_exact) == ("probe", False)
    assert found.tokens == pytest.approx(right, rel=0.01)
    assert "token_count is not what gpt2 gives in 2" in found.warnings[0]
    path = write_counted(tmp_path / "x.parquet", texts, [*counts[:-1], (counts[-1] or 0) + 1])
    found = estimate(path, tmp_path / "o")
    assert (found.tokens_from, found.tokens_exact) == ("token_count", False)
    assert found.tokens == right + 1
    assert "in 1 of 249 rows that were tried: not exact" in found.warnings[0]
    missing = write_counted(tmp_path / "y.parquet", texts, [*counts[:-1], None])
    assert estimate(missing, tmp_path / "o").tokens_from == "probe"
    holes = write_counted(tmp_path / "z.parquet", [*texts[:-1], None], counts)  # type: ignore[list-item]
    assert estimate(holes, tmp_path / "o").tokens_from == "probe"
    assert estimate(SAMPLES, tmp_path / "o", {"tokenizer": "cl100k_base"}).tokens_from == "probe"


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_how_far_a_compressed_file_expands(suffix: str, tmp_path: Path, texts: list[str]) -> None:
    path = write_jsonl(tmp_path / f"x.jsonl.{suffix}", texts)
    plain = write_jsonl(tmp_path / "x.jsonl", texts)
    real = plain.stat().st_size / path.stat().st_size
    assert expansion(str(path), suffix) == pytest.approx(real, rel=0.01)
    twice = tmp_path / f"y.jsonl.{suffix}"
    twice.write_bytes(path.read_bytes() * 2)
    assert expansion(str(twice), suffix) == pytest.approx(real, rel=0.2)


# --- files, shards, disk ---------------------------------------------------------------------


def files_of(plan: PlanSettings, tokens: int, documents: int) -> list[SplitFiles]:
    return split_files(plan, plan.first, tokens, documents)


def test_files_of_each_rule() -> None:
    llmc = {"format": "llmc", "shard_tokens": 100, "name": "n"}
    val, train = files_of(settings(**llmc), 350, 10)
    assert (val.tokens, val.first, val.last_tokens) == (100, "n_val_000000.bin", 100)
    assert (train.files, train.first, train.last) == (3, "n_train_000001.bin", "n_train_000003.bin")
    assert train.last_tokens == 50
    val, train = files_of(settings(**llmc, val="docs:4"), 350, 10)
    assert (val.tokens, val.files, train.tokens, train.last_tokens) == (140, 2, 210, 10)
    val, train = files_of(settings(**llmc, val="tokens:200"), 350, 10)
    assert (val.files, train.files, train.last_tokens) == (2, 2, 50)
    (train,) = files_of(settings(**llmc, val="none"), 300, 10)
    assert (train.files, train.last_tokens) == (3, 100)
    val, train = files_of(settings(val=0.1), 350, 10)
    assert (val.first, val.tokens, train.first, train.tokens) == ("val.bin", 35, "train.bin", 315)
    val, train = files_of(settings(**llmc), 80, 10)
    assert (val.tokens, train.files, train.first) == (80, 0, "")


def test_what_does_not_fit_the_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimating, "free_bytes", lambda _: 5_000_000)
    found = estimate(SAMPLES, tmp_path / "o")
    assert "does not fit" in found.warnings[-1]
    assert found.disk_bytes > 5_400_000


def test_free_space_of_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    free = estimating.free_bytes(tmp_path / "a/b/c")
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
