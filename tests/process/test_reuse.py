"""`--reuse` with worker processes, and on a job that was interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import command, dataset_bytes, interrupted
from support.inputs import write_parquet

import tokenmill


@pytest.fixture(scope="module")
def old(large_inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two of the inputs, with other settings."""
    output = tmp_path_factory.mktemp("old") / "o"
    tokenmill.prepare(large_inputs[:2], output, val="docs:5", format="megatron", workers=2)
    return output


@pytest.fixture(scope="module")
def fresh(large_inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("fresh") / "o"
    tokenmill.prepare(large_inputs, output, val=0.01, workers=2)
    return dataset_bytes(output)


def test_workers_give_the_bytes_of_a_fresh_run(
    large_inputs: list[Path], old: Path, fresh: dict[str, bytes], tmp_path: Path
) -> None:
    before, output = dataset_bytes(old), tmp_path / "o"
    run = command(
        "prepare", *large_inputs, "-o", output, "--val", "0.01", "--workers", 2, "--reuse", old
    )
    assert run.returncode == 0, run.stderr
    assert dataset_bytes(output) == fresh
    assert dataset_bytes(old) == before
    reused = json.loads((output / "run.json").read_bytes())["reused"]
    assert reused["documents"] > reused["encoded"] > 0
    told = f"reused {reused['documents']:,} documents of {old}, encoded {reused['encoded']:,}"
    assert told in run.stdout
    assert f"2 sources are as when {old} was made" in run.stderr
    assert "encoded: c.jsonl.gz: not in the old dataset" in run.stderr


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)])
def test_an_interrupted_job_goes_on_with_it_or_without_it(
    large_inputs: list[Path],
    old: Path,
    fresh: dict[str, bytes],
    tmp_path: Path,
    first: bool,
    then: bool,
) -> None:
    output = tmp_path / "o"
    interrupted(large_inputs, output, val=0.01, reuse=old if first else "")
    result = tokenmill.prepare(large_inputs, output, val=0.01, workers=2, reuse=old if then else "")
    assert result.run["units_resumed"] > 0
    assert ("reused" in result.run) == then
    assert dataset_bytes(output) == fresh


def test_plan_says_what_it_saves(large_inputs: list[Path], old: Path, tmp_path: Path) -> None:
    args = [*large_inputs, "-o", tmp_path / "o", "--reuse", old, "--no-probe"]
    told = command("plan", *args)
    assert told.returncode == 0, told.stderr
    assert "are not encoded again" in told.stdout
    assert "encoded: d.arrow: not in the old dataset" in told.stdout
    reuse = json.loads(command("plan", *args, "--json").stdout)["reuse"]
    assert reuse["sources"] == {"0": 0, "1": 1}
    assert reuse["documents"] > 0
    other = write_parquet(tmp_path / "other.parquet", ["other"])
    refused = command("plan", other, "-o", tmp_path / "o", "--reuse", old)
    assert refused.returncode == 2
    assert "no source is the same" in refused.stderr
