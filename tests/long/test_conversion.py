"""From one format to others: `export`, several formats from one run, and short last shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.commands import command, dataset_bytes
from support.conversion import OURS, PLANS_OWN, SHARDS, files_in, inputs, options_for, source  # noqa: F401  # noqa: F401  # noqa: F401

import tokenmill
from reliability.small_job import died, in_child, using
from tokenmill.errors import TokenmillError
from tokenmill.formats import FORMATS
from tokenmill.output.manifest import Manifest
from tokenmill.system.failpoints import FaultyDisk, Operation, WatchedDisk


class Counting(WatchedDisk):
    operations = 0

    def perform(self, operation: Operation, call: Any, *args: Any) -> Any:
        self.operations += 1
        return super().perform(operation, call, *args)


def killed_at_some(run: Any, folder: Path) -> None:
    """Kill `run` before some of its operations on the disk, resume it: the same bytes."""
    clean, disk = folder / "clean", Counting()
    with using(disk):
        run(clean)
    expected = dataset_bytes(clean)
    for at in range(9, disk.operations, disk.operations // 8):
        out = folder / f"o{at}"
        with using(FaultyDisk(f"kill@{at}")):
            code, said = in_child(lambda out=out: run(out))
        assert died(code), said
        visible = [p for p in out.rglob("*") if p.is_file() and ".tokenmill" not in p.parts]
        if (out / "manifest.json").exists():
            assert tokenmill.verify(out).ok
        else:
            assert not visible or (out / ".tokenmill/commit.json").exists()
        run(out)
        assert dataset_bytes(out) == expected, f"killed before operation {at}"
        assert not (out / ".tokenmill").exists()
        shutil.rmtree(out)


@pytest.mark.parametrize("format", ["mds", "datatrove"])
def test_an_export_killed_anywhere_is_resumed_to_the_same_bytes(
    format: str, source: Path, tmp_path: Path
) -> None:
    killed_at_some(lambda out: tokenmill.export(source, out, **options_for(format)), tmp_path)


def test_a_merge_killed_anywhere_gives_the_same_bytes(inputs: list[Path], tmp_path: Path) -> None:
    def run(out: Path) -> None:
        tokenmill.prepare(
            inputs[:2], out, workers=0, format="llmc", val="none", name="x", encoder_check=False,
            shard_tokens="50k", min_shard_tokens="49k", last_shard="merge",
        )  # fmt: skip

    killed_at_some(run, tmp_path)
    tokens = [f.tokens for f in Manifest.load(tmp_path / "clean").files if f.tokens]
    assert tokens[-1] > 50_000


GROUPS = [
    ("llmc", "megatron", {"val": 0.1}),
    ("hf", "parquet", {}),
    ("mds", "llmc", {}),
    ("nanogpt", "datatrove", {}),
    ("build-nanogpt", "litdata", {"val": "shard"}),
]


@pytest.mark.parametrize(("one", "two", "options"), GROUPS)
def test_several_formats_of_one_run_are_those_of_several_runs(
    one: str, two: str, options: dict[str, Any], inputs: list[Path], tmp_path: Path
) -> None:
    both = tmp_path / "both"
    result = tokenmill.prepare(
        inputs, both, workers=2, name="x", **options_for(one, two, **options)
    )
    assert {s.format for s in result.manifest.splits} == {one, two}
    for format in (one, two):
        alone = tmp_path / format
        val = options.get("val", FORMATS[one].val)  # one rule for all: the first one's
        shards = {"shard_tokens": SHARDS} if "shard_tokens" in options_for(one, two) else {}
        tokenmill.prepare(inputs, alone, workers=0, name="x", format=format, val=val, **shards)
        theirs = {k: v for k, v in files_in(alone).items() if not k.startswith("index/")}
        assert files_in(both / format) == theirs
        a, b = tokenmill.open_dataset(both, format=format), tokenmill.open_dataset(alone)
        assert list(a) == list(b)
        assert all(
            np.array_equal(x, y)
            for s in b
            for x, y in zip(a[s].documents, b[s].documents, strict=True)
        )
    assert [p.name for p in sorted(both.iterdir())] == sorted(
        ["index", "manifest.json", "run.json", one, two]
    )
    assert tokenmill.verify(both).problems == []
    assert tokenmill.verify_deep(both, sample="50").ok


def test_formats_with_shards_of_different_sizes_hold_out_the_same_documents(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llm.c's 100M and streaming's 33.5M: what one trains on, another must not hold out."""
    for name, size in (("modded", 30_000), ("mds", 10_000)):
        small = msgspec.structs.replace(FORMATS[name], shard_tokens=size)
        monkeypatch.setitem(FORMATS, name, small)
    out = tmp_path / "o"
    tokenmill.prepare(inputs, out, workers=0, format="modded,mds")
    modded, mds = (tokenmill.open_dataset(out, format=name) for name in ("modded", "mds"))
    held = [d.tolist()[1:] for d in modded["val"].documents]
    assert [d.tolist()[:-1] for d in mds["val"].documents] == held
    assert tokenmill.verify_deep(out).problems == []
    tokenmill.export(out, tmp_path / "e", format="build-nanogpt", name="x", shard_tokens=7000)
    again = tokenmill.open_dataset(tmp_path / "e")
    assert len(again["val"].tokens) == 30_000, "an exact cut, as where it was a shard"
    tokenmill.export(out, tmp_path / "m", format="mds,megatron")
    again = tokenmill.open_dataset(tmp_path / "m")
    assert [d.tolist()[:-1] for d in again["val"].documents] == held
    assert tokenmill.verify_deep(tmp_path / "e").problems == []
    assert tokenmill.verify_deep(tmp_path / "m").problems == []


def test_plan_says_what_will_become_of_a_short_last_shard(
    inputs: list[Path], tmp_path: Path
) -> None:
    given = ["plan", inputs[0], "-o", tmp_path / "o", "--val", "none"]
    llmc = [*given, "--format", "llmc", "--shard-tokens", "20k", "--min-shard-tokens", "19k"]
    assert "a trainer may refuse it" in command(*llmc).stdout
    assert "`prepare` will refuse it" in command(*llmc, "--last-shard", "refuse").stdout
    assert "merged into the one before" in command(*llmc, "--last-shard", "merge").stdout
    alone = [*given, "--format", "llmc", "--min-shard-tokens", "9M", "--last-shard", "merge"]
    assert "none before it to merge it with" in command(*alone).stdout
    modded = command(*given, "--format", "modded").stdout
    assert "modded-nanogpt needs 2" in modded


@pytest.mark.parametrize("format", ["llmc", "modded", "mds", "datatrove"])
def test_a_short_last_shard_is_merged_kept_or_refused(
    format: str, inputs: list[Path], tmp_path: Path
) -> None:
    kept = tokenmill.prepare(
        inputs, tmp_path / "k", workers=2, name="x", **options_for(format, val=0.1)
    )
    train = [f.tokens for f in kept.manifest.files if f.kind == "tokens" and f.split == "train"]
    least = train[-1] + 1
    options = options_for(format, val=0.1, min_shard_tokens=least, workers=2, name="x")
    val = [f.tokens for f in kept.manifest.files if f.kind == "tokens" and f.split == "val"]
    options["val"] = "none" if val[-1] < least else 0.1
    merged = tokenmill.prepare(inputs, tmp_path / "m", last_shard="merge", **options)
    files = [f for f in merged.manifest.files if f.kind == "tokens" and f.split == "train"]
    assert files[-1].tokens >= least
    assert tokenmill.verify(tmp_path / "m").problems == []
    assert tokenmill.verify_deep(tmp_path / "m", sample="50").ok
    alone = tokenmill.prepare(
        inputs, tmp_path / "a", workers=0, name="x", **options_for(format, val=options["val"])
    )
    a, m = (tokenmill.open_dataset(tmp_path / name)["train"] for name in "am")
    assert np.array_equal(a.tokens[:], m.tokens[:])
    if [f.tokens for f in alone.manifest.files if f.kind == "tokens"][-1] < least:
        with pytest.raises(TokenmillError, match="the last train shard would hold"):
            tokenmill.prepare(inputs, tmp_path / "r", last_shard="refuse", **options)
        assert not (tmp_path / "r/manifest.json").exists()
