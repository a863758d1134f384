"""Options in a file: the same names, strict, overridden by what is typed; and `plan --save`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from support.commands import in_process

from tokenmill.cli.config import TYPED_ONLY, key_of
from tokenmill.cli.main import cli


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n\nfour")
    (tmp_path / "b.txt").write_text("five")
    return tmp_path


def planned(*words: str) -> dict[str, Any]:
    done = in_process("plan", *words, "--json", "--no-probe")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(text: str, name: str = "tokenmill.toml") -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return name


FILE = r"""
inputs = ["a.txt"]
output = "out"
text-separator = "\\n\\n"
format = ["llmc", "megatron"]
shard-tokens = 1000
val = 0.25
seed = 7
drop-empty = true
keep-downloads = false
workers = 0
"""


def test_a_file_is_the_same_as_typing(folder: Path) -> None:
    typed = planned(
        *("a.txt", "-o", "out", "--text-separator", r"\n\n", "--format", "llmc,megatron"),
        *("--shard-tokens", "1000", "--val", "0.25", "--seed", "7", "--drop-empty"),
        *("--no-keep-downloads", "--workers", "0"),
    )
    filed = planned("--config", write(FILE))
    assert filed["fingerprint"] == typed["fingerprint"]
    assert filed["run"] == typed["run"]
    assert filed["output"] == typed["output"]


def test_what_is_typed_overrides_the_file() -> None:
    name = write(FILE)
    words = ("b.txt", "--config", name, "-o", "other", "--seed", "8", "--keep-downloads")
    found = planned(*words, "--val", "0.5")
    assert [source["name"] for source in found["sources"]] == ["b.txt"]
    assert found["output"] == "other"
    assert found["plan"]["settings"]["seed"] == 8
    assert found["plan"]["settings"]["val"]["fraction"] == "0.5"
    assert found["run"]["keep_downloads"] is True
    assert found["plan"]["settings"]["drop_empty"] is True, "the rest is the file's"


def test_prepare_reads_it_too_and_the_same_file_serves_plan() -> None:
    name = write(FILE + "no-probe = true\nquiet = true\n")
    done = in_process("prepare", "--config", name, "--val", "none")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "quiet"
    assert Path("out/manifest.json").exists()
    assert in_process("plan", "--config", name, "-o", "new").returncode == 0


def test_an_encoder_check_of_the_file_is_overridden() -> None:
    name = write('inputs = "a.txt"\noutput = "o"\nencoder-check = "all"\nval = "none"\n')
    assert planned("--config", name)["run"]["encoder_check"] == "all"
    assert planned("--config", name, "--no-encoder-check")["run"]["encoder_check"] == "none"
    assert planned("--config", name, "--encoder-check")["run"]["encoder_check"] == "sample"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ('text_column = "a"', "text_column: no such option", "did you mean 'text-column'?"),
        ('formt = "llmc"', "formt: no such option", "did you mean 'format'?"),
        ('zzz = "llmc"', "zzz: no such option", "a key is an option's name"),
        ("[tokenizer]\nname = 'gpt2'", "tokenizer: must be a string, not a table", ""),
        ('seed = "7"', "seed: must be a whole number, not text", ""),
        ("seed = true", "seed: must be a whole number, not true or false", ""),
        ("drop-empty = 1", "drop-empty: must be true or false, not a number", ""),
        ("shard-tokens = 1.5", "shard-tokens: must be a whole number or a string", ""),
        ("inputs = [1]", "inputs: must be a string, or a list of strings, not a list", ""),
        ('tokenizer = ""', "tokenizer: is empty", "leave it out"),
        ('inputs = [""]', "inputs: is empty", "leave it out"),
        ("overwrite = true", "overwrite: cannot be in a file", "start over"),
        ("json = true", "json: cannot be in a file", "type it"),
        ('config = "b"', "config: cannot be in a file", ""),
        ('version = "10B"', "version: no such option", ""),
        ("seed = ", "is not TOML", ""),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_name_and_key(text: str, told: str, hint: str) -> None:
    name = write(text)
    done = in_process("prepare", "a.txt", "-o", "out", "--config", name)
    assert done.returncode == 2
    assert f"error: {name}: {told}" in done.stderr
    assert hint in done.stderr
    assert not Path("out").exists()


def test_a_missing_file_and_a_wrong_value_are_sentences() -> None:
    done = in_process("prepare", "--config", "none.toml")
    assert (done.returncode, "--config none.toml: No such file" in done.stderr) == (2, True)
    name = write(
        'inputs = "a.txt"\noutput = "out"\nlimit-docs = "99999999999999999999"\nworkers = 0'
    )
    done = in_process("prepare", "--config", name)
    assert (done.returncode, "too large" in done.stderr) == (2, True)
    assert not Path("out").exists()


def test_fineweb_has_its_own_keys() -> None:
    done = in_process("fineweb", "--config", write('version = "11B"'))
    assert done.returncode == 2
    assert "11B" in done.stderr
    done = in_process("fineweb", "--config", write('inputs = "a.txt"'))
    assert "inputs: no such option" in done.stderr


def test_relative_paths_begin_at_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'inputs = ["../a.*", "../b.txt"]\noutput = "out"\nval = "none"\n'
    name = write(text, "sub/mine.toml")
    found = planned("--config", name)
    assert [source["name"] for source in found["sources"]] == ["a.txt", "b.txt"]
    assert found["output"] == "sub/out"
    typed = planned("a.txt", "b.txt", "-o", "sub/out", "--val", "none")
    assert found["fingerprint"] == typed["fingerprint"]
    monkeypatch.chdir("/")
    away = planned("--config", str(folder / name))
    assert away["fingerprint"] == typed["fingerprint"]
    assert away["output"] == str(folder / "sub" / "out")
    name = write('inputs = "hf://datasets/A/B/c.parquet"\noutput = "/x"', str(folder / "u.toml"))
    done = in_process("prepare", "--config", name, "--workers", "0", "--text-column", '"')
    assert str(folder) not in done.stderr, "URLs and absolute paths stay"


def test_save_writes_what_config_reads(folder: Path) -> None:
    words = ["a.txt", "-o", "out", "--text-separator", '\\n\\n"', "--val", "docs:1", "--seed", "3"]
    words += ["--format", "llmc", "--shard-tokens", "1M", "--limit-docs", "3", "--drop-empty"]
    words += ["--no-keep-downloads", "--workers", "0"]
    (folder / "sub").mkdir()
    typed = planned(*words, "--save", "sub/mine.toml")
    saved = tomllib.loads(Path("sub/mine.toml").read_text())
    assert saved == {
        "inputs": ["../a.txt"], "output": "../out", "text-separator": '\\n\\n"', "val": "docs:1",
        "seed": 3, "format": "llmc", "shard-tokens": "1M", "limit-docs": 3, "drop-empty": True,
        "keep-downloads": False, "workers": 0,
    }  # fmt: skip
    filed = planned("--config", "sub/mine.toml")
    assert (filed["fingerprint"], filed["run"]) == (typed["fingerprint"], typed["run"])
    planned("--config", "sub/mine.toml", "--seed", "4", "--save", "next.toml")
    again = tomllib.loads(Path("next.toml").read_text())
    assert again == {**saved, "seed": 4, "inputs": ["a.txt"], "output": "out"}


def test_save_keeps_a_file_that_is_there_and_a_refused_plan_saves_nothing() -> None:
    name = write("# mine\n")
    done = in_process("plan", "a.txt", "-o", "out", "--no-probe", "--save", name)
    assert done.returncode == 2
    assert "is there already" in done.stderr
    assert Path(name).read_text() == "# mine\n"
    done = in_process("plan", "none.txt", "-o", "out", "--save", "new.toml")
    assert done.returncode == 2
    assert not Path("new.toml").exists()


@pytest.mark.parametrize("command", ["plan", "prepare", "fineweb"])
def test_every_option_has_a_key_of_its_name(command: str) -> None:
    for param in cli.commands[command].params:
        key = key_of(param)
        assert isinstance(param, click.Argument) or f"--{key}" in param.opts
        if command == "prepare" and key in TYPED_ONLY:
            assert key in ("overwrite", "json", "download-only", "config")
