"""Splits that a trainer cannot use are warned of: too short for a block, or not there at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inputs import write_jsonl

import tokenmill

LONG = "word " * 3000


def test_a_split_shorter_than_a_usual_block_is_warned_of(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["a short text", LONG])
    done = tokenmill.prepare(path, tmp_path / "o", val="docs:1", workers=0)
    told = [
        "the val split holds 4 tokens, and a trainer that takes blocks of 1,024 tokens (a usual "
        "default) cannot use it; a larger val gives it more"
    ]
    assert done.warnings == told
    export = tokenmill.export(tmp_path / "o", tmp_path / "e", format="flat", workers=0)
    assert export.warnings == told
    planned = tokenmill.plan(path, tmp_path / "p", val="docs:1", quiet=True).warnings
    assert not any("train split" in line for line in planned)
    whole = tokenmill.prepare(path, tmp_path / "w", val="none", format="flat", workers=0)
    assert whole.warnings == []


def test_a_short_train_split_is_warned_of_too_and_by_the_plan(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [LONG, "a short text"])
    done = tokenmill.prepare(path, tmp_path / "o", val="docs:1", workers=0)
    assert [line[:35] for line in done.warnings] == ["the train split holds 4 tokens, and"]
    assert done.warnings[0].endswith("; a smaller val gives it more")
    small = write_jsonl(tmp_path / "b.jsonl", ["one two", "three four"])
    planned = tokenmill.plan(small, tmp_path / "p", val="docs:1", quiet=True).warnings
    assert [line.partition(" will ")[0] for line in planned] == ["the val split", "the train split"]
    assert not any("gives it more" in line for line in planned), "no other split would help"


def test_a_shard_that_is_too_short_is_warned_of_once(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["a short text", LONG])
    done = tokenmill.prepare(path, tmp_path / "o", format="llmc", val="docs:1", workers=0)
    assert len(done.warnings) == 2
    assert all("fewer than the 524,289 of a usual batch" in line for line in done.warnings)


@pytest.mark.parametrize(
    ("format", "missing"),
    [
        ("nanogpt", ["nanoGPT stops without val.bin"]),
        ("build-nanogpt", ["build-nanogpt stops without o_val_000000.npy"]),
        ("megatron,nanogpt", ["nanoGPT stops without nanogpt/val.bin"]),
        ("megatron", []),
    ],
)
def test_a_trainer_that_always_opens_a_validation_split_is_named(
    tmp_path: Path, format: str, missing: list[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [LONG])
    planned = tokenmill.plan(path, tmp_path / "o", format=format, val="none", quiet=True).warnings
    done = tokenmill.prepare(path, tmp_path / "o", format=format, val="none", workers=0).warnings
    flat = tokenmill.prepare(path, tmp_path / "f", format="flat", val="none", workers=0)
    assert flat.warnings == []
    export = tokenmill.export(flat.output, tmp_path / "e" / "o", format=format, workers=0).warnings
    for told in (planned, done, export):
        assert [line.split(", and ")[1].partition(";")[0] for line in told] == missing
        assert all(line.startswith("there is no validation split, and ") for line in told)
        assert all(line.endswith("`prepare` writes one with val=0.01") for line in told)
