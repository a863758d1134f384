"""Help that guides: groups, the order of the work, suggestions, completion, strict numbers."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tokenmill.amounts import parse_count
from tokenmill.cli.main import cli
from tokenmill.errors import UsageError, did_you_mean
from tokenmill.formats import FORMATS, get_format
from tokenmill.tokenizer.bundled import get_encoding

TITLES = ["Input", "Tokenizer", "Output", "Splits and rows", "Run", "Other options"]


def help_of(*words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", ["prepare", "plan", "fineweb"])
def test_options_are_shown_in_groups_in_the_order_of_the_data(command: str) -> None:
    lines = help_of(command).splitlines()
    found = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert found == TITLES
    others = [line for line in lines[lines.index("Other options:") :] if line.startswith("  -")]
    assert len(others) == 1, "every option of ours has a group"


def test_commands_are_listed_in_the_order_of_the_work() -> None:
    told = help_of()
    names = [
        "plan",
        "prepare",
        "fineweb",
        "status",
        "verify",
        "inspect",
        "export",
        "import",
        "doctor",
    ]
    places = [told.index(f"\n  {name} ") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("command", list(cli.commands))
def test_every_option_has_a_sentence_and_every_command_examples(command: str) -> None:
    options = [p for p in cli.commands[command].params if isinstance(p, click.Option)]
    for option in options:
        text = (option.help or "").split("  [")[0]
        assert text.endswith("."), f"{command} {option.opts}: {text!r}"
        assert len(text.split()) > 1, f"{command} {option.opts}: {text!r}"
    assert "Examples:" in help_of(command)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llm.c", "llmc"), ("nanoGPT", "nanogpt"), ("megatron-lm", "megatron"), ("mosaicml", "mds"),
        ("lit-data", "litdata"), ("parqet", "parquet"), ("nanotron", "datatrove"),
    ],
)  # fmt: skip
def test_a_misspelt_format_is_suggested(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_format(typed)
    assert caught.value.hint.startswith(f"did you mean '{meant}'?")
    assert meant in FORMATS


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpt-2", "gpt2"), ("gpt4o", "o200k_base"), ("gpt-4", "cl100k_base"),
        ("O200K", "o200k_base"), ("cl100k", "cl100k_base"),
    ],
)  # fmt: skip
def test_a_model_named_for_a_tokenizer_is_suggested(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_encoding(typed)
    assert caught.value.hint.startswith(f"did you mean '{meant}'?")


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert did_you_mean("zzz", ["gpt2", "llmc"]) == ""
    assert did_you_mean("txt", ["text", "id"]) == "did you mean 'text'? "


@pytest.mark.parametrize(
    "value", ["１２", "", "1e3", "12 13", "0x10", "9" * 19, "9223372036854775808"]
)
def test_counts_take_ascii_digits_and_at_most_64_bits(value: str) -> None:
    with pytest.raises(UsageError, match="--limit-docs"):
        parse_count(value, what="--limit-docs")


def test_the_largest_count_is_taken() -> None:
    assert parse_count("9223372036854775807") == (1 << 63) - 1
    with pytest.raises(UsageError, match="too large"):
        parse_count(1 << 63)


@pytest.mark.parametrize("value", ["１", "", "1.0", "99999999999999999999"])
@pytest.mark.parametrize("option", ["--workers", "--seed", "--downloads"])
def test_a_wrong_number_is_refused_and_nothing_is_left_behind(
    option: str, value: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(cli, ["prepare", "a.txt", "-o", str(out), option, value])
    assert done.exit_code == 2
    assert option in done.output
    assert not out.exists()


def completed(*words: str) -> list[str]:
    *before, typed = words
    items = ShellComplete(cli, {}, "tokenmill", "_TOKENMILL_COMPLETE").get_completions(
        list(before), typed
    )
    return [item.value for item in items]


def test_completion_knows_commands_options_formats_and_tokenizers() -> None:
    assert completed("pre") == ["prepare"]
    assert "--format" in completed("prepare", "--for")
    assert completed("prepare", "--format", "llm") == ["llmc"]
    assert completed("prepare", "--format", "llmc,meg") == ["llmc,megatron"]
    assert completed("prepare", "--tokenizer", "o2") == ["o2", "o200k_base"]  # a file, or a name
    assert completed("export", "x", "--format", "para") == []
    assert completed("export", "x", "--format", "parq") == ["parquet"]
    assert completed("prepare", "--eot", "a") == ["append"]
    assert completed("inspect", "x", "--split", "") == ["train", "val"]


@pytest.mark.parametrize(
    "words",
    [
        ("prepare", ""), ("prepare", "a", "-o", ""), ("plan", ""), ("verify", ""), ("inspect", ""),
        ("export", ""), ("export", "a", "-o", ""), ("import", ""), ("doctor", ""), ("status", ""),
        ("prepare", "--tokenizer", ""), ("prepare", "--val-inputs", ""),
        ("verify", "a", "--source-root", ""),
    ],
)  # fmt: skip
def test_completion_offers_files(words: tuple[str, ...]) -> None:
    *before, typed = words
    items = ShellComplete(cli, {}, "tokenmill", "_TOKENMILL_COMPLETE").get_completions(
        before, typed
    )
    assert "file" in {item.type for item in items}
