"""The Python functions: keywords that can be discovered, and that cannot drift from the options."""

from __future__ import annotations

import inspect
import os
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import msgspec
import numpy as np
import pytest
from support.inputs import ROOT, write_parquet

import tokenmill
from tokenmill import settings
from tokenmill.api import functions as api
from tokenmill.api.keywords import MEANT, SENTENCES, in_keywords, sentence
from tokenmill.cli.main import cli
from tokenmill.errors import TokenmillError, UnknownKeywordError, UsageError
from tokenmill.planning.options import Options

FUNCTIONS = (
    "prepare", "plan", "fineweb", "download", "finish", "export", "adopt", "verify", "verify_deep",
    "inspect", "inspect_document", "inspect_row", "open_dataset",
)  # fmt: skip
PAGE = ROOT / "docs" / "python.md"
# Options that say what is printed, or where options come from; Python has other ways for these.
PRINTED = {
    "as_json", "progress", "download_only", "config", "save", "full", "deep", "help", "by_source",
}  # fmt: skip
PRINTED |= {"quarantine"}  # Python reads quarantine.jsonl, or tokenmill.dataset.inspection


def keywords(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(tokenmill, name)).parameters)


def options(command: str) -> dict[str, click.Parameter]:
    names = {"no_probe": "probe", "kind": "type"}
    shown = [param for param in cli.commands[command].params if param.expose_value]
    return {names.get(param.name or "", param.name or ""): param for param in shown}


@pytest.mark.parametrize(
    ("commands", "functions", "python_only"),
    [
        (("prepare",), ("prepare",), {"observer", "on_plan"}),
        (("prepare",), ("download",), {"observer", "on_plan"}),
        (("plan",), ("plan",), {"quiet"}),
        (("fineweb",), ("fineweb",), {"observer", "on_plan"}),
        (("export",), ("export",), {"observer"}),
        (("finish",), ("finish",), {"observer"}),
        (("import",), ("adopt",), {"quiet"}),
        (("verify",), ("verify", "verify_deep"), {"threads", "seconds", "on_progress"}),
        (("inspect",), ("inspect", "inspect_document", "inspect_row"), set()),
    ],
)
def test_keywords_and_options_are_the_same(
    commands: tuple[str], functions: tuple[str, ...], python_only: set[str]
) -> None:
    there = {name: param for command in commands for name, param in options(command).items()}
    here = {name: one for function in functions for name, one in keywords(function).items()}
    assert there.keys() - PRINTED == here.keys() - python_only
    for name in there.keys() & here.keys():
        said, default = there[name].default, here[name].default
        if name in ("probe", "type", "text_column", "output") or default is inspect.Parameter.empty:
            continue  # --no-probe; the command says which type was taken; a list there
        given = said if isinstance(said, str | int | float) else None
        assert (given or None) == (default or None), name


def test_keywords_of_prepare_are_the_options_of_a_job() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(Options)}
    shown = {"inputs", "output", "quiet", "observer", "on_plan"}
    assert keywords("prepare").keys() - shown - {"as_kind"} == (
        fields.keys() - {"column_rules", "kind_rules"}
    )
    for name, field in fields.items():
        if name in keywords("prepare"):
            assert keywords("prepare")[name].default in (field.default, ()), name


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    known = dict.fromkeys(("Observer", "Proposal", "Result", "Place"), Any)
    return get_type_hints(inspect.unwrap(function), vars(settings) | vars(api), known)


def test_types_of_keywords_name_the_choices_that_there_are() -> None:
    hints = hints_of(tokenmill.prepare)
    for field in msgspec.structs.fields(Options):
        choices = {word for kind in (field.type, *get_args(field.type)) for word in get_args(kind)}
        words = {word for word in choices if isinstance(word, str)}
        if words:
            told = hints[field.name]
            assert words == {w for k in (told, *get_args(told)) for w in get_args(k)
                             if isinstance(w, str)}, field.name  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_has_a_sentence_for_every_keyword(name: str) -> None:
    told = pydoc.plain(pydoc.render_doc(getattr(tokenmill, name)))
    assert ">>> " in told
    for keyword in keywords(name):
        assert re.search(rf"^ +{keyword} +{re.escape(sentence(name, keyword))}$", told, re.M), (
            keyword
        )


def test_every_sentence_is_for_a_keyword_that_there_is() -> None:
    known = {keyword for name in FUNCTIONS for keyword in keywords(name)}
    assert SENTENCES.keys() == known
    assert set(MEANT.values()) <= known
    assert not MEANT.keys() & known


def page_tables() -> str:
    """What docs/python.md has between its marks: a table for each function."""
    lines: list[str] = []
    before: dict[str, inspect.Parameter] = {}
    for name in FUNCTIONS:
        mine = keywords(name)
        first = (inspect.getdoc(getattr(tokenmill, name)) or "").partition("\n")[0]
        lines += [f"### `{name}`", "", first, ""]
        shared = set(mine) & set(before)
        if name in ("plan", "fineweb", "download"):
            mine = {
                k: v for k, v in mine.items() if k not in shared or v.default != before[k].default
            }
            lines += [
                "All keywords of `prepare`, and:" if mine else "All keywords of `prepare`.",
                "",
            ]
        else:
            before = before or mine
        if mine:
            lines += ["| keyword | default | meaning |", "| --- | --- | --- |"]
            for keyword, parameter in mine.items():
                empty = parameter.default is inspect.Parameter.empty
                default = "required" if empty else f"`{parameter.default!r}`"
                said = sentence(name, keyword).replace("|", "\\|")
                lines.append(f"| `{keyword}` | {default} | {said} |")
            lines.append("")
    return "\n".join(lines).strip()


def test_the_page_lists_every_keyword_with_its_sentence() -> None:
    """TOKENMILL_WRITE_DOCS=1 writes the tables."""
    page = PAGE.read_text()
    begin, end = page.index("<!-- keywords:"), page.index("<!-- end of keywords -->")
    start = page.index("-->", begin) + 3
    if os.environ.get("TOKENMILL_WRITE_DOCS"):
        PAGE.write_text(f"{page[:start]}\n\n{page_tables()}\n\n{page[end:]}")
    else:
        assert page[start:end].strip() == page_tables(), "make docs writes it"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_keyword_is_answered_with_a_suggestion(name: str) -> None:
    known = [k for k in keywords(name) if k != "directory"] or ["directory"]
    wrong = known[-1] + "s"
    with pytest.raises(UnknownKeywordError, match=rf"{name}\(\) has no keyword '{wrong}'") as error:
        getattr(tokenmill, name)("a", "b", **{wrong: 1})
    assert f"did you mean '{known[-1]}'?" in error.value.hint
    assert f"help(tokenmill.{name})" in error.value.hint
    assert isinstance(error.value, TypeError)
    assert isinstance(error.value, TokenmillError)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"num_proc": 8}, "no keyword 'num_proc'", "did you mean 'workers'?"),
        ({"eot": "apend"}, "eot='apend': must be one of append", "did you mean 'append'?"),
        ({"workers": "two"}, "workers='two': must be a whole number", ""),
        ({"drop_empty": "x"}, "drop_empty='x': must be True or False", ""),
        ({"seed": -1}, "seed=-1: must be from 0", ""),
        ({"text": "{a}", "text_column": "b"}, "text contradicts text_column", "leave one"),
        ({"format": "llm.c"}, "unknown format 'llm.c'", "did you mean 'llmc'?"),
        ({"format": ["llmc", "llmc"]}, "format='llmc,llmc': llmc is named twice", ""),
        ({"format": 7}, "format must be a string or a list of strings", ""),
        ({"last_shard": "merge", "format": "llmc", "shard_tokens": 9},
         "shard_tokens=9: below min_shard_tokens=524289", ""),
        ({"shard_tokens": "1M"}, "format='nanogpt' is one file per split: it takes no cut or "
         "shard_tokens", "use format='llmc' for shards"),
        ({"encoder": "gigatoken", "tokenizer": "nosuch"}, "unknown tokenizer 'nosuch'", ""),
        ({"memory": "1MB"}, "memory='1MB' is below the minimum", "give memory='"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_answered_in_terms_of_keywords(
    given: dict[str, Any], message: str, hint: str, tmp_path: Path
) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    for function in (tokenmill.prepare, tokenmill.plan):
        with pytest.raises(UsageError, match=re.escape(message)) as error:
            function(source, tmp_path / "o", **{"workers": 0, **given})
        assert hint in error.value.hint
        assert "--" not in str(error.value) + error.value.hint
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("said", "in_python"),
    [
        ("another -o, or --overwrite to start", "another output, or overwrite=True to start"),
        ("--val docs:5 leaves it nothing", "val='docs:5' leaves it nothing"),
        ("use --val 0.0005, docs:N or none", "use val=0.0005, docs:N or none"),
        ("--tokenizer /a/b.json: not a regular file", "tokenizer='/a/b.json': not a regular file"),
        ("or --no-keep-downloads, which", "or keep_downloads=False, which"),
        ("`tokenmill verify DIR --deep` compares", "`tokenmill verify DIR --deep` compares"),
        ("--data-path x --train-data-path y", "--data-path x --train-data-path y"),
        ("with --workers 1 --memory 1GB, or", "with workers=1, memory='1GB', or"),
        ("choose one with --text-column", "choose one with text_column"),
        ("run the same command with --workers 0", "run the same call with workers=0"),
    ],
)  # fmt: skip
def test_options_in_a_message_become_keywords(said: str, in_python: str) -> None:
    assert in_keywords(said) == in_python
    assert in_keywords(in_python) == in_python


def test_a_list_of_formats_is_what_the_command_line_takes_with_commas(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["one", "two"] * 50)
    made = {"name": "x", "workers": 0, "val": "none"}
    several = tokenmill.prepare(source, tmp_path / "a", format=["llmc", "megatron"], **made)
    same = tokenmill.prepare(source, tmp_path / "b", format="llmc,megatron", **made)
    assert several.manifest.checksum == same.manifest.checksum
    exported = tokenmill.export(tmp_path / "a", tmp_path / "c", format=("nanogpt", "hf"))
    assert {split.format for split in exported.manifest.splits} == {"nanogpt", "hf"}


def test_paths_and_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["one", "two"] * 50)
    result = tokenmill.prepare(
        source, tmp_path / "o", limit_docs=np.int64(7), workers=np.int8(0), val="none"
    )
    assert result.manifest.counts["documents"] == 7


def test_plan_is_a_function_that_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["one two three", "two"] * 50)
    report = tokenmill.plan(source, tmp_path / "o", format="llmc", val="none", quiet=True)
    assert capsys.readouterr() == ("", "")
    assert report.tokens > 0
    assert report.to_dict()["estimate"]["tokens"] == report.tokens
    assert repr(report).startswith("PlanReport(1 file, ")
    assert len(repr(report)) < 400
    assert "--" not in str(report)
    assert not (tmp_path / "o").exists()
    tokenmill.plan(source, tmp_path / "o", probe=False)
    assert "tokens  unknown (probe=False" in capsys.readouterr().err
    tokenmill.prepare(source, tmp_path / "o", val="none", workers=0)
    with pytest.raises(TokenmillError, match="another plan"):
        tokenmill.plan(source, tmp_path / "o", val="none", seed=7)
