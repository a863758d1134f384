"""What the commands print, item by item: numbers that agree, files that are there."""

from __future__ import annotations

import glob
import json
import re
from pathlib import Path

import pytest
from support.cases import quick
from support.commands import in_process

from tokenmill.cli import progress
from tokenmill.cli.progress import Rates
from tokenmill.engines.observer import Snapshot
from tokenmill.formats import FORMATS

TEXT = "Some words of a text, and some more of them.\n"


def rows(name: str, *texts: str) -> str:
    Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return name


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    """What a command prints, on stdout and stderr."""
    workers = ("--workers", "0") if words[0] in ("prepare", "plan") else ()
    done = in_process(*words, *workers)
    assert done.returncode == code, done.stderr
    return done.stderr + done.stdout


def test_special_strings_are_named_with_their_files() -> None:
    rows("a.jsonl", "plain")
    rows("b.jsonl", "one <|endoftext|> two <|endoftext|>")
    rows("c.jsonl", "and <|fim_prefix|>")
    told = run("prepare", "a.jsonl", "b.jsonl", "-o", "gpt2", "--val", "none")
    assert "2 strings of special tokens (<|endoftext|>) stand in documents of b.jsonl" in told
    words = ("--tokenizer", "cl100k_base", "--val", "none")
    told = run("prepare", "c.jsonl", "-o", "cl100k", *words)
    assert "1 string of special tokens (<|fim_prefix|>) stands in documents of c.jsonl" in told
    assert "<|endoftext|>" not in told, "of a string that stands nowhere nothing is said"
    told = run("prepare", "c.jsonl", "-o", "cl100k", *words)  # done already: which is not known
    assert "1 string of special tokens stands in documents of c.jsonl" in told


def test_plan_names_the_files_beside_the_tokens() -> None:
    rows("a.jsonl", *[TEXT] * 50)
    assert "a .idx beside each .bin; manifest.json" in run(
        "plan", "a.jsonl", "-o", "out", "--format", "megatron"
    )
    told = run("plan", "a.jsonl", "-o", "out", "--format", "llmc,megatron,flat", "--val", "none")
    assert "megatron: a .idx beside each .bin; flat: the offsets" in told


def test_separators_and_dtypes_are_shown_for_each_format() -> None:
    rows("a.jsonl", *[TEXT] * 50)
    told = run("plan", "a.jsonl", "-o", "out", "--format", "llmc,megatron", "--val", "none")
    assert "llmc uint16, eot prepend; megatron uint16, eot append, val none" in told
    told = run("plan", "a.jsonl", "-o", "out", "--format", "nanogpt,flat", "--dtype", "uint32")
    assert "(gpt2, uint32, eot append, val 0.0005)" in told


def test_megatrons_dtype_is_int32() -> None:
    rows("a.jsonl", *[TEXT] * 50)
    words = ("a.jsonl", "-o", "out", "--format", "megatron", "--tokenizer", "o200k_base")
    assert "(o200k_base, int32, eot append" in run("plan", *words)
    told = run("prepare", *words)
    assert "dtype: int32, since 200,019 ids do not fit uint16" in told
    assert "format     megatron, int32" in run("inspect", "out")
    assert (
        json.loads(Path("out/manifest.json").read_text())["plan"]["settings"]["dtype"] == "uint32"
    )


def test_bytes_per_token_of_plan_and_inspect_agree() -> None:
    rows("a.jsonl", *[TEXT * n for n in range(1, 60)])
    words = ("a.jsonl", "-o", "out", "--val", "none")
    (planned,) = re.findall(r"([0-9.]+) bytes of text each", run("plan", *words))
    run("prepare", *words)
    (found,) = re.findall(r"([0-9.]+) bytes per token", run("inspect", "out"))
    assert planned == found


def test_empty_documents_are_said_to_be_written_or_dropped() -> None:
    rows("a.jsonl", TEXT, "", "", "", TEXT)
    told = run("prepare", "a.jsonl", "-o", "kept", "--val", "none")
    assert "5 written + 0 dropped + 0 quarantined (3 of those written are empty)" in told
    assert "(3 of those written are empty)" in run("inspect", "kept")
    told = run("prepare", "a.jsonl", "-o", "out", "--val", "none", "--drop-empty")
    assert "2 written + 3 dropped + 0 quarantined (3 of those dropped are empty)" in told
    rows("b.jsonl", TEXT, TEXT)
    assert "empty" not in run("prepare", "b.jsonl", "-o", "full", "--val", "none")


def test_one_of_something_has_no_plural() -> None:
    Path("a.txt").write_text(TEXT)
    words = ("a.txt", "-o", "out", "--val", "none")
    for told in (
        run("plan", *words),
        run("prepare", *words),
        run("inspect", "out"),
        run("status", "out"),
        run("verify", "out", "--deep"),
        run("export", "out", "-o", "other", "--format", "llmc"),
    ):
        assert not re.search(r"\b1 (documents|rows|files|tokens|units|workers)\b", told), told


def test_no_more_documents_are_checked_than_written() -> None:
    rows("a.jsonl", *[f" {TEXT} {n} " for n in range(200)])
    told = run("prepare", "a.jsonl", "-o", "out", "--val", "none", "--limit-docs", "2")
    (checked,) = re.findall(r"check: ([0-9,]+) documents?", told)
    assert int(checked) <= 2
    rows("b.jsonl", *[f" {TEXT} {n} " for n in range(50)], TEXT * 100)
    told = run("prepare", "b.jsonl", "-o", "one", "--val", "none", "--min-tokens", "500")
    assert "train: 1 document, " in told
    assert "check: 1 document encoded again" in told


def test_inspect_refuses_a_split_that_it_would_ignore() -> None:
    rows("a.jsonl", *[TEXT] * 50)
    run("prepare", "a.jsonl", "-o", "out", "--val", "0.2")
    told = run("inspect", "out", "--split", "val", code=2)
    assert "--split val is for --document N or --token N" in told
    assert "val document 0 of" in run("inspect", "out", "--split", "val", "--document", "0")
    told = run("inspect", "out", "--split", "vall", "--document", "0", code=2)
    assert "did you mean 'val'?" in told


def test_the_time_that_is_left_is_not_zero_before_anything_is_done() -> None:
    (bar,) = Rates().bars(Snapshot(bytes_total=100))
    assert bar.details[0] == "eta ?"
    download, encoding = Rates().bars(Snapshot(bytes_total=100, fetch_total=100))
    assert (download.details[0], encoding.details[0]) == ("eta ?", "eta ?")
    (bar,) = Rates().bars(Snapshot(bytes_total=100, bytes_done=50))
    assert re.fullmatch(r"eta [0-9.]+ s", bar.details[0])


def test_a_large_document_is_said_to_be_under_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    show = progress.deep_progress()
    for done in (0, 0, 5_000_000):
        now[0] += 10
        show(done, 10_000_000)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.endswith("10.0 MB of text, a large document is under way (10.0 s so far)")
    assert second.endswith("(20.0 s so far)")
    assert third == "compared 5.0 MB of 10.0 MB of text, 0.2 MB/s"


PATHS = re.compile(r"""(?:^|[ '"=\[])(out[\w/.*-]*)""")


@pytest.mark.parametrize("val", ["none", "0.2"])
@pytest.mark.parametrize("name", quick(FORMATS, "nanogpt", "llmc", "mds", "megatron"))
def test_load_lines_name_files_that_are_there(name: str, val: str) -> None:
    rows("a.jsonl", *[TEXT * 3] * 60)
    options = ["--shard-tokens", "300"] if FORMATS[name].sharded else []
    told = run("prepare", "a.jsonl", "-o", "out", "--format", name, "--val", val, *options)
    lines = told.partition("load it:\n")[2].splitlines()
    named = [path for line in lines for path in PATHS.findall(line)]
    assert named
    for path in named:
        assert glob.glob(path) or glob.glob(f"{path}.*"), (path, lines)
    files = json.loads(Path("out/manifest.json").read_text())["files"]
    beside = [file for file in files if file["kind"] == "sidecar"]
    assert bool(beside) == bool(FORMATS[name].beside), "what `plan` says of the files beside"


@pytest.mark.parametrize("name", ["llmc", "modded", "megatron"])
def test_load_lines_name_no_split_without_documents(name: str) -> None:
    rows("a.jsonl", *[TEXT * 3] * 60)
    options = ["--shard-tokens", "300"] if FORMATS[name].sharded else []
    words = ("--format", name, "--val", "0.000001", "--allow-empty-split")
    told = run("prepare", "a.jsonl", "-o", "out", *words, *options)
    assert "_val_" not in told.partition("load it:\n")[2]
    told = run("prepare", "a.jsonl", "-o", "both", "--format", name, "--val", "0.2", *options)
    assert "_val_" in told.partition("load it:\n")[2]
