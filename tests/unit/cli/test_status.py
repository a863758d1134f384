"""How far a folder is, and what a resumed run says. Another format is an export."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.commands import dataset_bytes, in_process

from tokenmill import pipeline
from tokenmill.dataset.status import status
from tokenmill.errors import UsageError
from tokenmill.output.workspace import Workspace
from tokenmill.planning.options import make_options


def rows(name: str, *texts: object) -> None:
    Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that stops at the bad row of its second file."""
    monkeypatch.chdir(tmp_path)
    rows("a.jsonl", "one", "two", "three")
    rows("b.jsonl", "four", 5)
    common = ["prepare", "a.jsonl", "b.jsonl", "-o", "out", "--val", "none"]
    return [*common, "--workers", "0", "--limit-docs", "1000"]


def test_an_unfinished_folder_says_how_far_it_is_and_how_to_go_on(words: list[str]) -> None:
    assert in_process(*words).returncode == 1
    before = dataset_bytes(Path("out"))
    found = status("out")
    assert (found.state, found.made_by, found.process) == ("unfinished", "prepare", 0)
    assert found.counts["documents"] == 3
    assert found.input_bytes_done == os.path.getsize("a.jsonl")
    assert found.input_bytes == found.input_bytes_done + os.path.getsize("b.jsonl")
    assert shlex.split(found.command) == ["tokenmill", *words]
    told = in_process("status", "out").stdout
    share = 100 * found.input_bytes_done / found.input_bytes
    assert f"out: unfinished, {share:.0f} % of the input is done" in told
    assert "3 documents" in told
    assert "format nanogpt, tokenizer gpt2, val none" in told
    assert "limit docs 1000" in told
    assert f"\n    {found.command}\n" in told
    assert dataset_bytes(Path("out")) == before, "asking changes nothing"


def test_from_another_folder_the_command_begins_with_cd(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(*words)
    monkeypatch.chdir("/")
    told = in_process("status", str(tmp_path / "out")).stdout
    assert f"\n    cd {tmp_path} && tokenmill prepare a.jsonl" in told


def test_json_has_the_same_facts(words: list[str]) -> None:
    in_process(*words)
    found = json.loads(in_process("status", "out", "--json").stdout)
    assert found["state"] == "unfinished"
    assert found["counts"]["tokens"] > 0
    assert found["settings"]["limit_docs"] == 1000


def test_a_resumed_run_says_so_first_and_a_finished_folder_is_finished(words: list[str]) -> None:
    first = in_process(*words)
    assert "resuming" not in first.stderr
    done = in_process(*words, "--on-bad-row", "quarantine")
    assert done.returncode == 4
    plan, note, *_ = done.stderr.splitlines()
    assert plan.startswith("plan: ")
    assert note.startswith("note: resuming a run that was stopped: 3 documents (")
    found = status("out")
    assert (found.state, found.counts["documents"]) == ("finished", 4)
    assert found.finished
    told = in_process("status", "out").stdout
    assert told.startswith("out: finished\n")
    assert "tokenmill verify out" in told


def test_an_overwriting_run_does_not_say_that_it_resumes(words: list[str]) -> None:
    in_process(*words)
    assert "resuming" not in in_process(*words, "--overwrite").stderr


def test_a_job_with_nothing_durable_says_so(words: list[str]) -> None:
    rows("a.jsonl", 1)
    assert in_process(*words).returncode == 1
    told = in_process("status", "out").stdout
    assert "out: unfinished, 0 % of the input is done" in told
    assert "done      nothing that is durable yet" in told
    assert "input     2 files" in told


def test_an_input_that_is_gone_leaves_the_share_unknown(words: list[str]) -> None:
    parquet.write_table(pa.table({"text": ["one", "two", "three"]}), "a.parquet")
    in_process(*[word.replace("a.jsonl", "a.parquet") for word in words])
    os.remove("a.parquet")
    found = status("out")
    assert (found.input_bytes_done, found.counts["documents"]) == (-1, 3)
    assert in_process("status", "out").stdout.startswith("out: unfinished\n")


def test_a_folder_at_work_names_the_process(words: list[str]) -> None:
    in_process(*words)
    lock = Workspace("out").lock()
    try:
        assert status("out").process == os.getpid()
        assert f"process {os.getpid()} is at work here now" in in_process("status", "out").stdout
    finally:
        lock.release()
    assert status("out").process == 0


def test_foreign_empty_and_missing_folders(words: list[str]) -> None:
    os.makedirs("theirs")
    rows("theirs/x.jsonl", "text")
    assert status("theirs").state == "foreign"
    assert "tokenmill import theirs --format NAME" in in_process("status", "theirs").stdout
    os.makedirs("nothing")
    assert status("nothing").state == "empty"
    assert "tokenmill prepare INPUTS -o nothing" in in_process("status", "nothing").stdout
    with pytest.raises(UsageError, match="no such folder"):
        status("nowhere")
    with pytest.raises(UsageError, match="not a folder"):
        status("a.jsonl")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (["--format", "llmc"], "tokenmill export out -o out-llmc --format llmc"),
        (
            ["--format", "llmc", "--shard-tokens", "1000", "--min-shard-tokens", "10"],
            "tokenmill export out -o out-llmc --format llmc --shard-tokens 1000",
        ),
        (["--format", "megatron"], "tokenmill export out -o out-megatron --format megatron"),
        (["--format", "llmc,mds"], "tokenmill export out -o out-llmc-mds --format llmc,mds"),
    ],
)
def test_another_format_of_a_finished_dataset_is_an_export(
    options: list[str], command: str, words: list[str]
) -> None:
    words += ["--on-bad-row", "quarantine"]
    assert in_process(*words).returncode == 4
    done = in_process(*words, *options)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f": {command}")
    made = in_process(*shlex.split(command)[1:])
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize(
    "options", [["--format", "llmc", "--seed", "1"], ["--text-column", "body"], ["--drop-empty"]]
)
def test_other_differences_are_no_export(options: list[str], words: list[str]) -> None:
    words += ["--on-bad-row", "quarantine"]
    in_process(*words)
    done = in_process(*words, *options)
    assert done.returncode == 2
    assert "export" not in done.stderr


def test_status_says_why_a_job_stopped_until_it_goes_on(words: list[str]) -> None:
    failed = in_process(*words)
    [error] = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    found = status("out")
    assert found.stopped["message"] == error.removeprefix("error: ")
    assert "b.jsonl" in error
    told = in_process("status", "out").stdout
    assert f"  stopped   {found.stopped['message']} ({found.stopped['when']})\n" in told
    assert f"  hint      {found.stopped['hint']}\n" in told
    assert json.loads(in_process("status", "out", "--json").stdout)["stopped"] == found.stopped
    assert in_process(*words, "--on-bad-row", "quarantine").returncode == 4
    assert status("out").stopped == {}


def test_status_says_why_a_job_cannot_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "make_options", make_options)  # an empty split is an error
    rows("a.jsonl", *["one"] * 20)
    failed = in_process("prepare", "a.jsonl", "-o", "out", "--val", "0.0001", "--workers", "0")
    assert failed.returncode == 1
    told = in_process("status", "out").stdout
    assert "out: unfinished, 100 % of the input is done" in told
    assert "  stopped   the val split is empty: --val 0.0001 leaves it nothing of 20 docu" in told
    assert "--allow-empty-split" in told
    assert "go on     as the hint says" in told
    planned = in_process("plan", "a.jsonl", "-o", "out", "--val", "0.0001").stdout
    assert "all documents are encoded; `prepare` makes the files and commits" in planned


def test_a_job_that_was_killed_has_no_error_to_show(words: list[str]) -> None:
    in_process(*words)
    os.remove(f"out/{Workspace.stopped}")
    told = in_process("status", "out").stdout
    assert "no error is recorded: the process was killed, or the machine stopped" in told


def test_a_plan_counts_what_is_done_in_an_unfinished_folder(words: list[str]) -> None:
    rows("a.jsonl", *["some words of text"] * 2000)
    options = [word for word in words if word not in ("--limit-docs", "1000")]
    before = json.loads(in_process("plan", *options[1:], "--json").stdout)["estimate"]
    assert before["done"]["documents"] == 0
    in_process(*options)
    asked = in_process("plan", *options[1:])
    assert (
        "  done    2,000 documents, 10,000 tokens (100 % of the input) by a run that"
        in asked.stdout
    )
    after = json.loads(in_process("plan", *options[1:], "--json").stdout)["estimate"]
    assert (after["done"]["documents"], after["done"]["tokens"]) == (2000, 10_000)
    assert 0 <= after["disk_bytes"] < before["disk_bytes"]
    in_process(*options, "--on-bad-row", "quarantine")
    assert "the dataset is finished" in in_process("plan", *options[1:]).stdout
    again = json.loads(in_process("plan", *options[1:], "--overwrite", "--json").stdout)
    assert again["estimate"]["done"]["documents"] == 0
