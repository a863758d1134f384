"""`--val tail:FRACTION` and empty splits: small data gets both splits, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.commands import command
from support.inputs import write_jsonl, write_parquet

import tokenmill
from tokenmill import pipeline
from tokenmill.errors import RefusedError, TokenmillError, UsageError
from tokenmill.planning.options import make_options
from tokenmill.settings import Val

TEXT = "To be, or not to be, that is the question. " * 40


def tokens(path: Path) -> list[int]:
    return np.fromfile(path, np.uint16).tolist()


@pytest.fixture(autouse=True)
def an_empty_split_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "make_options", make_options)


@pytest.fixture
def play(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text(TEXT)
    return path


def whole(text: str = TEXT) -> list[int]:
    return [*reference.encoding("gpt2").encode_ordinary(text), 50256]


@given(st.integers(1, 10**15), st.sampled_from(["0.1", "0.25", "0.3", "0.001", "1e-09"]))
def test_the_tail_is_exact_and_never_empty(count: int, fraction: str) -> None:
    start = Val.parse(f"tail:{fraction}").tail_start(count)
    assert 0 <= start < count
    if count % 10**9 == 0:
        assert count - start == round(count * float(fraction))


def test_a_rule_of_a_tail() -> None:
    assert str(Val.parse("tail:0.1")) == "tail:0.1"
    assert Val.parse("tail:0.1").tail_start(10) == 9
    assert Val.parse("tail:0.1").tail_start(1_000_000) == 900_000
    for wrong in ("tail:", "tail:0", "tail:1", "tail:x", "tail"):
        with pytest.raises(UsageError, match="not a validation rule"):
            Val.parse(wrong)


def test_a_single_text_has_a_tail_by_default(play: Path, tmp_path: Path) -> None:
    result = tokenmill.prepare(play, tmp_path / "o", workers=0)
    expected = whole()
    cut = len(expected) * 9 // 10
    assert tokens(tmp_path / "o/train.bin") == expected[:cut]
    assert tokens(tmp_path / "o/val.bin") == expected[cut:]
    splits = {s.name: (s.tokens, s.documents) for s in result.manifest.splits}
    assert splits == {"train": (cut, 1), "val": (len(expected) - cut, 1)}
    assert str(result.manifest.settings.val) == "tail:0.1"
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    assert tokenmill.prepare(play, tmp_path / "o", workers=0).already_done


def test_the_default_is_for_exactly_that_case(play: Path, tmp_path: Path) -> None:
    def val(*inputs: Path, **options: Any) -> str:
        out = tmp_path / f"o{len(list(tmp_path.iterdir()))}"
        options = {"workers": 0, "allow_empty_split": True, **options}
        return str(tokenmill.prepare(list(inputs), out, **options).manifest.settings.val)

    other = tmp_path / "other.txt"
    other.write_text(TEXT)
    assert val(play, other) == "0.0005"
    assert val(play, text_separator=". ") == "0.0005"
    assert val(write_jsonl(tmp_path / "x.jsonl", [TEXT])) == "0.0005"
    assert val(play, format="llmc") == "shard"
    assert val(play, val="none") == "none"
    assert val(play, format="nanogpt,megatron") == "tail:0.1"
    for whole in ("flat", "datatrove", "mds", "parquet"):
        assert val(play, format=whole, allow_empty_split=False) == "none"


@pytest.mark.parametrize("form", ["llmc", "flat", "datatrove", "mds", "nanogpt,megatron"])
def test_a_tail_in_every_kind_of_format(form: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [f"{i} {TEXT[: 10 * i]}" for i in range(40)])
    options: dict[str, Any] = {"format": form, "val": "tail:0.2", "workers": 0}
    if form == "llmc":
        options["shard_tokens"] = 500
    result = tokenmill.prepare(path, tmp_path / "o", **options)
    sizes = {s.name: s.tokens for s in result.manifest.splits if s.format == form.split(",")[0]}
    assert 0 < sizes["val"] <= sizes["train"]
    if form == "llmc":
        total = sum(sizes.values())
        assert sizes["train"] == total * 8 // 10
        assert [f.tokens for f in result.manifest.files if f.split == "train"][:-1] == [500] * (
            sizes["train"] // 500
        )
    report = tokenmill.verify_deep(tmp_path / "o", sample="all")
    assert report.ok, report.problems
    exported = tokenmill.export(tmp_path / "o", tmp_path / "e", format="nanogpt")
    assert {s.name for s in exported.manifest.splits if s.tokens} == {"train", "val"}
    assert tokenmill.verify_deep(tmp_path / "e", sample="all").ok


# --- empty splits ----------------------------------------------------------------------------


def test_an_empty_split_is_an_error_before_the_commit_and_the_folder_goes_on(
    tmp_path: Path,
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["text"] * 20)
    with pytest.raises(TokenmillError, match="val split is empty") as refused:
        tokenmill.prepare(path, tmp_path / "o", workers=0)
    assert refused.value.exit_code == 1
    assert "overwrite=True, val='tail:0.1'" in refused.value.hint
    assert not (tmp_path / "o/train.bin").exists()
    assert not (tmp_path / "o/manifest.json").exists()
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, allow_empty_split=True)
    assert result.run["units_encoded"] == 0  # nothing is done twice
    assert any("val split is empty" in line for line in result.warnings)
    tokenmill.prepare(path, tmp_path / "o", workers=0, overwrite=True, val="tail:0.1")
    assert (tmp_path / "o/val.bin").exists()


def test_a_first_shard_that_takes_all_is_an_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["some text"] * 20)
    with pytest.raises(TokenmillError, match="train split is empty") as refused:
        tokenmill.prepare(path, tmp_path / "o", workers=0, format="llmc")
    assert "overwrite=True, val='tail:0.1'" in refused.value.hint


@pytest.mark.parametrize(
    ("options", "split"),
    [
        ({"val": "0.5"}, "train or the val"),
        ({"val": "docs:1"}, "train"),
        ({"val": "tokens:5"}, "train"),
        ({"format": "llmc"}, "train"),
        ({"format": "mds", "val": "tail:0.1"}, "val"),
    ],
)
def test_what_the_plan_can_tell_is_refused_before_encoding(
    options: dict[str, Any], split: str, play: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=f"the {split} split would be empty"):
        tokenmill.prepare(play, tmp_path / "o", workers=0, **options)
    assert not (tmp_path / "o").exists()
    tokenmill.prepare(play, tmp_path / "o", workers=0, allow_empty_split=True, **options)


def test_rows_that_a_footer_counts(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", ["some text"] * 20)
    with pytest.raises(RefusedError, match="train split would be empty"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, val="docs:20")
    tokenmill.prepare(path, tmp_path / "o", workers=0, val="docs:19")


def test_a_trial_only_warns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["some text"] * 20)
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, limit_docs=5)
    assert any("val split is empty" in line for line in result.warnings)


def test_the_command_says_what_to_do(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["text"] * 20)
    done = command("prepare", path, "-o", tmp_path / "o", "--workers", 0)
    assert done.returncode == 1
    assert "--overwrite --val tail:0.1" in done.stderr
    done = command("prepare", path, "-o", tmp_path / "o", "--workers", 0, "--allow-empty-split")
    assert done.returncode == 0


def test_a_val_split_of_one_source_of_many_is_mentioned(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", ["some text"] * 20) for i in range(3)]

    def warned(val: str) -> list[str]:
        out = tmp_path / val.replace(":", "")
        result = tokenmill.prepare(paths, out, workers=0, val=val)
        return [line for line in result.warnings if "one of 3 sources" in line]

    assert "0.jsonl" in warned("docs:5")[0]
    assert "2.jsonl" in warned("tail:0.1")[0]
    assert not warned("docs:25")
    assert not warned("0.3")


def test_plan_does_not_recommend_to_merge_what_has_no_neighbour(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [TEXT] * 100)
    done = command("plan", path, "-o", tmp_path / "o", "--format", "llmc", "--val", "none")
    assert "no other shard to merge it with" in done.stdout
    assert "--last-shard merge" not in done.stdout
