"""docs/options.md: every command and option, from the commands themselves.

    .venv/bin/python scripts/option_page.py > docs/options.md

A test compares the page with what this makes.
"""

from __future__ import annotations

import re

import click

from tokenmill.cli.main import cli

HEAD = """\
# All commands and options

This page is made from the commands themselves (`scripts/option_page.py`); a test compares the two.
`tokenmill COMMAND --help` shows the same with examples. [command-line.md](command-line.md) explains
it, and how to have the options of `plan`, `prepare` and `fineweb` in a file (`--config`).
"""
BASE = "prepare"  # others that share its options list only what differs


def options_of(name: str) -> dict[str, list[tuple[str, str]]]:
    """By title: how each option is written, and its sentence."""
    command = cli.commands[name]
    context = click.Context(command, info_name=name, show_default=True)
    found: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None:
            title = getattr(param, "title", "")
            told = re.sub(r"\s+", " ", record[1])
            found.setdefault(title, []).append((record[0], told))
    return found


def rows(options: list[tuple[str, str]]) -> list[str]:
    shown = [(spelled.replace("|", "\\|"), told.replace("|", "\\|")) for spelled, told in options]
    return [
        "| option | |",
        "| --- | --- |",
        *(f"| `{spelled}` | {told} |" for spelled, told in shown),
    ]


def section(name: str) -> list[str]:
    command = cli.commands[name]
    context = click.Context(command, info_name=f"tokenmill {name}")
    usage = " ".join(["tokenmill", name, *command.collect_usage_pieces(context)])
    lines = [f"## {name}", "", f"    {usage}", "", command.get_short_help_str(200), ""]
    groups = options_of(name)
    if name != BASE and "Tokenizer" in groups:
        shared = {option for options in options_of(BASE).values() for option in options}
        own = [one for options in groups.values() for one in options if one not in shared]
        mine = {spelled for options in groups.values() for spelled, _ in options}
        missing = [spelled for spelled, _ in shared if spelled not in mine]
        without = ", ".join(f"`{spelled.split()[0].rstrip(',')}`" for spelled in sorted(missing))
        lines += [
            f"The options of `{BASE}`{f' without {without}' if without else ''}, and these:",
            "",
        ]
        return [*lines, *rows(own), ""]
    for title, options in groups.items():
        lines += [f"**{title}**", ""] if title else []
        lines += [*rows(options), ""]
    return lines


def page() -> str:
    lines = [line for name in cli.commands for line in section(name)]
    return HEAD + "\n" + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
