"""`--mix` through the command line: the same bytes with any number of workers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.commands import command, dataset_bytes
from support.inputs import sample_texts, write_jsonl, write_parquet

import tokenmill
from tokenmill.system.failpoints import VARIABLE
from tokenmill.tokens.order import pass_source

# Several ranges; and of a source that is taken in part too little is encoded at first.
SMALL = {
    "TOKENMILL_RANGE_BYTES": "9000",
    "TOKENMILL_PART_BYTES": "1",
    "TOKENMILL_BOUND_PERCENT": "30",
}

MIX = """
tokens = 30_000
[source.web]
inputs = ["web.parquet"]
weight = 0.3
[source.code]
inputs = ["code.jsonl"]
weight = 0.4
max_epochs = 4
[source.math]
inputs = ["dataset:math"]
tokens = 4000
max_epochs = 2
[source.wiki]
inputs = ["wiki.jsonl.gz"]
weight = "rest"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    texts = [text[:600] for text in sample_texts()]
    write_parquet(folder / "web.parquet", texts[:150], rows=25)
    write_jsonl(folder / "code.jsonl", texts[150:200])
    write_jsonl(folder / "wiki.jsonl.gz", texts[200:250])
    write_jsonl(folder / "math.jsonl", texts[120:140])
    options = ("--format", "llmc", "--val", "0.1", "--workers", 0)
    made = command("prepare", folder / "math.jsonl", "-o", folder / "math", *options)
    assert made.returncode == 0, made.stderr
    (folder / "mix.toml").write_text(MIX)
    return folder


def mixed_bytes(
    folder: Path, output: Path, *options: object, fault: str = ""
) -> dict[str, bytes] | None:
    """What the command writes; None where a fault has killed it."""
    env = {**SMALL, **({VARIABLE: fault, "TOKENMILL_SYNC_SECONDS": "0"} if fault else {})}
    done = command(
        "prepare", "--mix", folder / "mix.toml", "-o", output, "--val", "0.1", *options, env=env
    )
    if fault and done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    assert "tokens there  tokens taken  epochs" in done.stdout
    return dataset_bytes(output)


def test_any_number_of_workers_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    found = [
        mixed_bytes(folder, tmp_path / str(workers), "--shuffle", "--workers", workers)
        for workers in (0, 2)
    ]
    assert found[0] == found[1]


@pytest.mark.long
def test_a_kill_in_either_half_and_in_a_further_pass_is_resumed_to_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    """Without a shuffle, and by another number of workers each time."""
    expected = mixed_bytes(folder, tmp_path / "whole", "--workers", 3)
    output = tmp_path / "o"
    sources = tokenmill.open_dataset(tmp_path / "whole").manifest.sources
    web = next(number for number, one in enumerate(sources) if one["mix"] == "web")
    again = f"kill@2 write *sorted-{pass_source(1, web, len(sources))}.*"
    for fault in ("kill@4 write *sorted-*", again, "kill@2 write *tokens-train*"):
        assert mixed_bytes(folder, output, "--workers", 0, fault=fault) is None
    assert mixed_bytes(folder, output, "--workers", 1) == expected


def test_inputs_are_needed_unless_a_mixture_names_them(tmp_path: Path) -> None:
    done = command("prepare", "-o", tmp_path / "o")
    assert done.returncode == 2
    assert "Missing argument 'INPUTS...'" in done.stderr
