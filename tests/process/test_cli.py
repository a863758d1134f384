"""The command line as a person meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from support.cases import quick
from support.commands import command
from support.inputs import SAMPLES, write_jsonl, write_parquet


def test_every_help_has_examples_and_nothing_heavy_is_imported() -> None:
    for args in ([], ["prepare"], ["plan"], ["inspect"], ["verify"]):
        shown = command(*args, "--help")
        assert shown.returncode == 0
        assert "Examples:" in shown.stdout
    script = "import sys, tokenmill.cli.main; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    for heavy in ("numpy", "pyarrow", "awkward", "tiktoken", "rich", "msgspec", "multiprocessing"):
        assert f"'{heavy}'" not in done.stdout


def test_prepare_then_verify_shows_what_was_done_and_how_to_load_it(tmp_path: Path) -> None:
    done = command("prepare", *SAMPLES, "-o", tmp_path / "o", "--val", "0.05")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("plan: 2 files, ")
    assert "707 rows" in done.stderr
    assert "rows:  707 read = 707 written + 0 dropped + 0 quarantined" in done.stdout
    code = [line.strip() for line in done.stdout.split("load it:")[1].splitlines() if line.strip()]
    namespace: dict[str, object] = {}
    exec("\n".join(code), namespace)
    checked = command("verify", tmp_path / "o")
    assert checked.returncode == 0
    assert checked.stdout.startswith("ok: ")


def test_llmc_load_lines_run_as_printed(tmp_path: Path) -> None:
    done = command("prepare", *SAMPLES, "-o", tmp_path / "o", "--format", "llmc", "--val", "none")
    code = [line.strip() for line in done.stdout.split("load it:")[1].splitlines() if line.strip()]
    namespace: dict[str, object] = {}
    exec("\n".join(code), namespace)
    assert namespace["tokens"][0] == 50256  # type: ignore[index]


def test_json_is_json_and_alone_on_stdout(tmp_path: Path) -> None:
    done = command("prepare", *SAMPLES, "-o", tmp_path / "o", "--json")
    result = json.loads(done.stdout)
    assert result["counts"]["rows"] == 707
    assert result["counts"]["tokens"] == 2739023 + 707  # the sample's own count and separators
    assert json.loads(command("verify", tmp_path / "o", "--json").stdout)["ok"] is True
    plan = json.loads(command("plan", *SAMPLES, "-o", tmp_path / "p", "--json").stdout)
    assert plan["rows"] == [297, 410]
    assert not (tmp_path / "p").exists(), "a plan writes nothing"


def test_plan_lists_files_chains_and_what_is_skipped(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl.gz", ["x"])
    write_parquet(tmp_path / "b.parquet", ["x", "y"])
    (tmp_path / "_SUCCESS").write_text("")
    shown = command(
        "plan", tmp_path, "-o", tmp_path / "o", "--format", "llmc", "--name", "n", "--no-probe"
    )
    assert shown.returncode == 0, shown.stderr
    assert "a.jsonl.gz" in shown.stdout
    assert "one chain" in shown.stdout
    assert re.search(r"b\.parquet: \d+ bytes, 2 rows", shown.stdout)
    assert "_SUCCESS: starts with an underscore" in shown.stdout
    assert "n_val_000000.bin, n_train_000001.bin" in shown.stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    quick(
        [
            (["prepare", "gone.parquet", "-o", "o"], 2, "no such file"),
            (["prepare", "bad.jsonl", "-o", "o"], 1, "bad.jsonl: row 1 (line 2)"),
            (["prepare", "x.jsonl"], 2, "Missing option"),
            (["prepare", "x.jsonl", "-o", "o", "--tokenizer", "gpt9"], 2, "unknown tokenizer"),
            (["prepare", "x.jsonl", "-o", "o", "--text-column", "body"], 2, "no field 'body'"),
            (["prepare", "x.jsonl", "-o", "o", "--val", "shard"], 2, "no shards"),
            (
                ["prepare", "bad.jsonl", "-o", "o", "--on-bad-row", "quarantine", "--val", "none"],
                4,
                "",
            ),
            (["verify", "."], 2, "not a finished dataset"),
            (["frobnicate"], 2, "No such command"),
        ],
        first=2,
        several=True,
    ),
)
def test_mistakes_have_a_message_an_exit_code_and_no_traceback(
    args: list[str], code: int, message: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "x.jsonl", ["a", "b"])
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{oops\n')
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", *args], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_closed_output_streams_do_no_harm(tmp_path: Path) -> None:
    run = f"{sys.executable} -m tokenmill prepare {SAMPLES[1]} --val docs:9 -o {tmp_path}"
    assert subprocess.run(f"{run}/a >&-", shell=True, stderr=subprocess.DEVNULL).returncode == 0
    assert subprocess.run(f"{run}/b 2>&-", shell=True, stdout=subprocess.DEVNULL).returncode == 0


def test_verification_failure_is_exit_3(tmp_path: Path) -> None:
    command("prepare", *SAMPLES, "-o", tmp_path / "o", "--workers", "0")
    with open(tmp_path / "o/train.bin", "r+b") as file:
        file.write(b"\xff")
    done = command("verify", tmp_path / "o")
    assert done.returncode == 3
    assert "train.bin: changed in bytes 0 to" in done.stdout


@pytest.mark.parametrize(
    ("columns", "words"),
    [("140", [b"MB/s", b"tok/s", b"tokens", b"workers"]), ("80", ["\u2501".encode() * 20])],
)
def test_a_terminal_gets_a_live_bar(columns: str, words: list[bytes], tmp_path: Path) -> None:
    """Through a pseudo-terminal, as a person would see it."""
    import pty

    texts = ["some words here and there " * 400] * 2000
    write_parquet(tmp_path / "x.parquet", texts, rows=500)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "prepare", tmp_path / "x.parquet", "-o", tmp_path / "o",
         "--encoder", "reference"],
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env={**os.environ, "COLUMNS": columns, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(leader)
    assert process.wait(60) == 0
    for word in (b"encoding", b"%", b"eta", *words):
        assert word in shown


def test_the_package_exports_what_it_says() -> None:
    import tokenmill

    assert tokenmill.__all__ == sorted(tokenmill.__all__)
    for name in tokenmill.__all__:
        assert getattr(tokenmill, name) is not None
    with pytest.raises(AttributeError):
        _ = tokenmill.nonsense
    version = metadata.version("tokenmill")
    assert tokenmill.__version__ == version
