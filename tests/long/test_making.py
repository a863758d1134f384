"""Killed at 50 and more random moments while files are made, and the same bytes in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.commands import dataset_bytes
from support.inputs import write_jsonl

import tokenmill

# For each of three jobs; TOKENMILL_KILLS=50 was run too.
KILLS = int(os.environ.get("TOKENMILL_KILLS", "17"))
SHARDS = ["--shard-tokens", "4k"]


def begin(args: list[str]) -> subprocess.Popen[str]:
    env = {**os.environ, "TOKENMILL_MAKE_BYTES": "0", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *args, "--workers", "2", "--progress", "json", *SHARDS],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_until(args: list[str], files: int, rng: random.Random) -> tuple[list[str], bool]:
    """Kill the command, and all its processes, a moment after it has made so many files; returns
    the files it told of, and whether it came to its end before."""
    process = begin(args)
    assert process.stderr is not None
    made: list[str] = []
    try:
        for line in process.stderr:
            event: dict[str, Any] = json.loads(line)
            made += [event["file"]] if event["event"] == "file_made" else []
            if event["event"] in ("files_begun", "file_made") and len(made) == files:
                time.sleep(rng.random() * 0.02)
                os.killpg(process.pid, signal.SIGKILL)
                break
        made += [
            event["file"] for event in whole_lines(process.stderr) if event["event"] == "file_made"
        ]
    finally:
        process.wait()
        process.stderr.close()
    assert process.returncode in (0, -signal.SIGKILL)
    return made, process.returncode == 0


def whole_lines(lines: Any) -> list[dict[str, Any]]:
    """The last one may be torn."""
    return [json.loads(line) for line in lines if line.endswith("}\n")]


@pytest.mark.parametrize("command", ["prepare mds", "prepare llmc,hf,parquet", "export mds,flat"])
def test_fifty_kills_end_with_the_same_bytes_and_no_finished_file_is_made_again(
    command: str, tmp_path: Path
) -> None:
    rng = random.Random(command)
    texts = [f"some text {n} " * rng.randint(1, 80) for n in range(2000)]
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    what, _, formats = command.partition(" ")
    options: dict[str, Any] = {"name": "x", "workers": 0}
    if what == "export":
        tokenmill.prepare(source, tmp_path / "llmc", format="llmc", val="docs:9", **options)
        source = tmp_path / "llmc"
        tokenmill.export(source, tmp_path / "clean", format=formats, shard_tokens="4k", **options)
    else:
        options |= {"val": "docs:9", "shard_tokens": "4k", "format": formats}
        tokenmill.prepare(source, tmp_path / "clean", **options)
    expected = dataset_bytes(tmp_path / "clean")
    kills = jobs = 0
    while kills < KILLS:
        output = tmp_path / f"o{jobs}"
        args = [what, str(source), "-o", str(output), "--format", formats, "--name", "x"]
        args += ["--val", "docs:9"] if what == "prepare" else []
        told: list[str] = []
        for files in (*(rng.randint(0, 12) for _ in range(5)), 10**9):
            made, ended = run_until(args, files, rng)
            told += made
            kills += not ended
            if ended:
                break
        assert len(told) == len(set(told)), "a finished file was made again"
        assert dataset_bytes(output) == expected
        jobs += 1
    assert jobs < KILLS, "most runs must be killed"
