"""`plan`: exact where the sources count their tokens, close where they do not, and read-only."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.commands import command
from support.estimate import estimate
from support.inputs import SAMPLES, write_jsonl, write_parquet

import tokenmill
from tokenmill.planning.estimate import Estimate


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
    }


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
        "needs", "warnings", "run", "encoder", "reuse",
    }  # fmt: skip
    assert found["estimate"].keys() == {f.name for f in msgspec.structs.fields(Estimate)}
    assert found["estimate"]["tokens"] == 2739730
    assert found["estimate"]["files"][1]["first"] == "train.bin"
    assert found["sources"][0]["rows"] == 297
    assert "the val split will be empty" in found["warnings"][0]
    assert "val.bin" in found["warnings"][1]


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
