"""Datasets that version 0.1.0 made, in every format: they must stay readable for ever.

`golden/0.1.0/input` is what they were made of, with gpt2, `--val docs:3` and
`--on-bad-row quarantine` (`several`: `--format llmc,mds --val 0.2`; `imported`: shards of llm.c
without a manifest, adopted by `tokenmill import`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.inputs import ROOT

import tokenmill
from tokenmill.formats import FORMATS

GOLDEN = ROOT / "tests" / "golden" / "0.1.0"
INPUT = GOLDEN / "input"
END_OF_TEXT = 50256
DATASETS = [*FORMATS, "several", "imported"]


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of a dataset: nothing is ever written beside the golden ones."""
    target = tmp_path / request.param
    shutil.copytree(GOLDEN / request.param, target)
    return target


def test_there_is_a_golden_dataset_for_every_format() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {*DATASETS, "input"}


def tokens_of(dataset: Path, split: str) -> list[int]:
    """Without separators, which each format has at another place."""
    tokens = tokenmill.open_dataset(dataset)[split].tokens[:]
    return [int(token) for token in tokens if token != END_OF_TEXT]


@pytest.mark.parametrize("copy", DATASETS, indirect=True)
def test_it_opens_verifies_and_inspects(copy: Path) -> None:
    report = tokenmill.verify(copy)
    assert report.ok, report.problems
    summary = tokenmill.inspect(copy)
    assert summary.counts["documents"] == 24
    dataset = tokenmill.open_dataset(copy)
    texts = tokenmill.Tokenizer("gpt2")
    last = texts.decode(dataset["train"].documents[-1]).replace("<|endoftext|>", "")
    assert last == "last"


@pytest.mark.parametrize("copy", [*FORMATS, "several"], indirect=True)
def test_its_tokens_are_those_of_its_sources(copy: Path) -> None:
    report = tokenmill.verify_deep(copy, sample="all", source_root=INPUT)
    assert report.ok, report.problems
    assert report.complete
    assert report.documents == 24


@pytest.mark.parametrize("copy", DATASETS, indirect=True)
def test_it_is_exported_with_the_same_tokens(copy: Path, tmp_path: Path) -> None:
    target = tmp_path / "exported"
    tokenmill.export(copy, target, format="nanogpt")
    for split in ("train", "val"):
        assert tokens_of(target, split) == tokens_of(copy, split)


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_command_gives_the_same_files_today(name: str, tmp_path: Path) -> None:
    golden = GOLDEN / name
    sharded = name not in ("nanogpt", "megatron", "flat")
    tokenmill.prepare(
        [INPUT / "a.jsonl", INPUT / "b.parquet"],
        tmp_path / name,
        format=name,
        val="docs:3",
        on_bad_row="quarantine",
        workers=0,
        **({"shard_tokens": 300} if sharded else {}),
        **({"name": "golden"} if name == "build-nanogpt" else {}),
    )
    files = sorted(p.relative_to(golden) for p in golden.rglob("*") if p.is_file())
    assert files == sorted(
        p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*") if p.is_file()
    )
    for file in files:
        if file.name != "run.json":
            assert (golden / file).read_bytes() == (tmp_path / name / file).read_bytes(), file
