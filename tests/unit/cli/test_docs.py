"""The docs and the commands say the same: every command, every option, nothing else."""

from __future__ import annotations

import re
import runpy

import click
import pytest
from support.inputs import ROOT

from tokenmill.cli.main import cli

DOCS = ROOT / "docs"
PAGE = runpy.run_path(str(ROOT / "scripts" / "option_page.py"))["page"]
# Options of other tools that the docs mention.
OTHERS = {
    "--shm-size", "--ulimit", "--split", "--num-proc", "--train-data-path", "--valid-data-path",
    "--data-path", "--dataset", "--tokenizer-type", "--tokenizer-model",
}  # fmt: skip


def options(command: click.Command) -> set[str]:
    found = [p for p in command.params if isinstance(p, click.Option)]
    return {name for p in found for name in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}


def test_the_page_of_all_options_is_made_from_the_commands() -> None:
    how = "run `.venv/bin/python scripts/option_page.py > docs/options.md`"
    assert (DOCS / "options.md").read_text() == PAGE(), how


@pytest.mark.parametrize("name", list(cli.commands))
def test_the_page_has_every_option_of_every_command(name: str) -> None:
    """Of `plan` and `fineweb`: what differs from `prepare`."""
    sections = re.split(r"^## ", (DOCS / "options.md").read_text(), flags=re.MULTILINE)[1:]
    told = {one.partition("\n")[0]: one for one in sections}
    shared = "The options of `prepare`" in told[name]
    for param in cli.commands[name].params:
        if isinstance(param, click.Option) and not param.hidden:
            spelled = f"{max(param.opts, key=len)}"
            where = told[name] + (told["prepare"] if shared else "")
            assert re.search(rf"`(-o, )?{spelled}[ `]", where), f"{name} {spelled}"


def test_the_synopsis_has_every_command_in_order() -> None:
    text = (DOCS / "command-line.md").read_text().partition("\n## ")[0]
    told = re.findall(r"^    tokenmill (\w+)", text, flags=re.MULTILINE)
    assert list(dict.fromkeys(told)) == list(cli.commands), "a command may have several lines"


@pytest.mark.parametrize(
    "page", sorted(p.name for p in DOCS.glob("*.md") if p.name not in ("log.md",))
)
def test_the_docs_name_no_option_that_is_not_there(page: str) -> None:
    """In the commands that they show, those of the command; elsewhere, those of any."""
    text = (DOCS / page).read_text()
    every = set().union(*(options(command) for command in cli.commands.values())) | OTHERS
    for name, words in re.findall(r"^(?:\$ |    )tokenmill (\w+)(.*)$", text, flags=re.MULTILINE):
        assert name in cli.commands, f"{page}: tokenmill {name}"
        typed = words.partition(" -- ")[0].partition(" | ")[0].partition("  #")[0]
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", typed):
            assert option in options(cli.commands[name]), f"{page}: tokenmill {name} {option}"
    for option in re.findall(r"`(--[a-z][a-z-]+)", text):
        assert option in every | {"--version"}, f"{page}: {option}"
