"""`plan`: exact where the sources count their tokens, close where they do not, and read-only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
import reference
from conftest import SAMPLES, write_jsonl, write_parquet
from conftest import tokenmill as command

import tokenmill
from tokenmill import estimate as estimating
from tokenmill.config import PlanSettings
from tokenmill.estimate import Estimate, make_estimate, split_files
from tokenmill.options import Options, make_options, plan_settings
from tokenmill.pipeline import make_plan
from tokenmill.probe import expansion


def estimate(
    inputs: object, output: Path, options: dict[str, Any] | None = None, **kw: Any
) -> Estimate:
    # Long enough to see all of it on a busy machine, but for the test that asks for less.
    kw.setdefault("probe_seconds", 60.0)
    return make_estimate(make_plan(inputs, output, make_options(options or {})), **kw)  # type: ignore[arg-type]


def settings(**options: Any) -> PlanSettings:
    return plan_settings(Options(**options), "out")


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
    }


def write_counted(path: Path, texts: list[str], counts: list[int | None]) -> Path:
    table = pyarrow.table({"text": texts, "token_count": pyarrow.array(counts, pyarrow.int32())})
    pyarrow.parquet.write_table(table, path, row_group_size=17)
    return path


# --- tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"val": "none", "eot": "none"},
        {"drop_empty": True},
        {"format": "llmc", "shard_tokens": "500k"},
        {"format": "llmc", "shard_tokens": "500k", "val": "none", "tokenizer": "r50k_base"},
    ],
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


@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "p50k_base"])
def test_tokens_are_estimated_within_a_fifth(
    tokenizer: str, inputs: list[Path], tmp_path: Path
) -> None:
    options = {"tokenizer": tokenizer, "drop_empty": tokenizer == "gpt2"}
    found = estimate(inputs, tmp_path / "o", options)
    result = tokenmill.prepare(inputs, tmp_path / "o", workers=2, **options)
    counts = result.manifest.counts
    assert not found.tokens_exact
    assert found.tokens == pytest.approx(counts["tokens"], rel=0.2)
    assert found.text_bytes == pytest.approx(counts["text_bytes"], rel=0.2)
    assert found.rows == pytest.approx(counts["rows"], rel=0.2)
    needed = sum(p.stat().st_size for p in (tmp_path / "o").rglob("*") if p.is_file())
    assert found.disk_bytes == pytest.approx(needed, rel=0.2)


def test_a_short_probe_of_large_files_is_close_too(
    large_inputs: list[Path], tmp_path: Path
) -> None:
    found = estimate(large_inputs, tmp_path / "o", probe_seconds=0.3)
    result = tokenmill.prepare(large_inputs, tmp_path / "o")
    assert found.probe_bytes < result.manifest.counts["text_bytes"] / 2
    assert found.tokens == pytest.approx(result.manifest.counts["tokens"], rel=0.2)
    assert 0.1 < found.seconds < 60


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


def test_files_of_each_rule() -> None:
    llmc = {"format": "llmc", "shard_tokens": 100, "name": "n"}
    val, train = split_files(settings(**llmc), 350, 10)
    assert (val.tokens, val.first, val.last_tokens) == (100, "n_val_000000.bin", 100)
    assert (train.files, train.first, train.last) == (3, "n_train_000001.bin", "n_train_000003.bin")
    assert train.last_tokens == 50
    val, train = split_files(settings(**llmc, val="docs:4"), 350, 10)
    assert (val.tokens, val.files, train.tokens, train.last_tokens) == (140, 2, 210, 10)
    val, train = split_files(settings(**llmc, val="tokens:200"), 350, 10)
    assert (val.files, train.files, train.last_tokens) == (2, 2, 50)
    (train,) = split_files(settings(**llmc, val="none"), 300, 10)
    assert (train.files, train.last_tokens) == (3, 100)
    val, train = split_files(settings(val=0.1), 350, 10)
    assert (val.first, val.tokens, train.first, train.tokens) == ("val.bin", 35, "train.bin", 315)
    val, train = split_files(settings(**llmc), 80, 10)
    assert (val.tokens, train.files, train.first) == (80, 0, "")


def test_a_short_last_shard_is_a_warning(tmp_path: Path) -> None:
    llmc = {"format": "llmc", "shard_tokens": "700k", "name": "n"}
    found = estimate(SAMPLES, tmp_path / "o", llmc)
    assert found.warnings == []  # 2,739,730 tokens: the last shard holds 639,730
    llmc["shard_tokens"] = "500k"
    found = estimate(SAMPLES, tmp_path / "o", llmc)
    assert len(found.warnings) == 2  # val is shorter than llm.c's usual batch, and the last one
    assert "n_train_000005.bin will hold 239,730 tokens" in found.warnings[1]
    assert estimate(SAMPLES, tmp_path / "o", llmc, min_shard_tokens=0).warnings == []
    llmc["tokenizer"] = "cl100k_base"
    found = estimate(SAMPLES, tmp_path / "o", llmc)
    assert "will probably hold" in found.warnings[-1]
    assert estimate(SAMPLES, tmp_path / "o", {}, min_shard_tokens=10**7).warnings
    empty = estimate(SAMPLES, tmp_path / "o", {"format": "llmc"})
    assert "the train split will be empty" in empty.warnings[0]


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


# --- the command -----------------------------------------------------------------------------


def test_plan_writes_nothing(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["x y z"] * 30)
    write_jsonl(tmp_path / "b.jsonl.gz", ["good day"] * 30)
    before = tree(tmp_path)
    for args in ([], ["--json"], ["--no-probe"], ["--format", "llmc", "--overwrite"]):
        done = command("plan", tmp_path, "-o", tmp_path / "deep/er/out", *args)
        assert done.returncode == 0, done.stderr
    assert tree(tmp_path) == before


def test_plan_says_all_of_it(tmp_path: Path) -> None:
    shown = command("plan", *SAMPLES, "-o", tmp_path / "o", "--format", "llmc",
                    "--shard-tokens", "1M", "--name", "n").stdout  # fmt: skip
    for line in (
        "tokens  2,739,730 from token_count and separators, ",
        "writes  n_val_000000.bin: 1,000,000 tokens of val",
        "n_train_000001.bin to n_train_000002.bin (2 files): 1,739,730 tokens of train",
        "disk    5.5 MB needed, ",
        "time    about ",
        "an estimate",
    ):
        assert line in shown
    other = command("plan", *SAMPLES, "-o", tmp_path / "o", "--tokenizer", "o200k_base").stdout
    assert "tokens  about 1," in other  # how near depends on how much the probe could read
    assert "estimated from a probe" in other
    unknown = command("plan", *SAMPLES, "-o", tmp_path / "o", "--tokenizer", "o200k_base",
                      "--no-probe").stdout  # fmt: skip
    assert "tokens  unknown" in unknown


def test_json_has_stable_keys(tmp_path: Path) -> None:
    done = command("plan", *SAMPLES, "-o", tmp_path / "o", "--json", "--min-shard-tokens", "1M")
    found = json.loads(done.stdout)
    assert found.keys() == {
        "plan", "fingerprint", "output", "input_bytes", "rows", "sources", "skipped", "estimate",
        "needs", "warnings", "run",
    }  # fmt: skip
    assert found["estimate"].keys() == {f.name for f in msgspec.structs.fields(Estimate)}
    assert found["estimate"]["tokens"] == 2739730
    assert found["estimate"]["files"][1]["first"] == "train.bin"
    assert found["sources"][0]["rows"] == 297
    assert "val.bin" in found["warnings"][0]


def test_bad_rows_do_not_stop_a_plan(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{oops\n' + '{"text": "good day"}\n' * 40)
    done = command("plan", tmp_path / "x.jsonl", "-o", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    assert "about 42 rows" in done.stdout or "in about 4" in done.stdout


def test_limits_are_part_of_the_estimate(tmp_path: Path) -> None:
    whole = command("plan", *SAMPLES, "-o", tmp_path / "o", "--json")
    some = command(
        "plan", *SAMPLES, "-o", tmp_path / "o", "--json", "--limit-docs", 70, "--min-tokens", 2
    )
    assert some.returncode == 0, some.stderr
    estimate = json.loads(some.stdout)["estimate"]
    all_of_it = json.loads(whole.stdout)["estimate"]
    assert estimate["documents"] == 70
    assert not estimate["tokens_exact"]
    assert abs(estimate["tokens"] / all_of_it["tokens"] - 70 / 707) < 0.001
    assert "--min-tokens" in "".join(json.loads(some.stdout)["warnings"])
