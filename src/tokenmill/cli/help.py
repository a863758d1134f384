"""How help is laid out: options in groups, commands in the order of the work. And completion."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
OTHER = "Other options"


class WholeNumber(click.ParamType[int]):
    """A whole number of at most 64 bits in the digits 0 to 9; Python's `int` takes more."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,20}", value):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            self.fail(f"{value!r} is too large.", param, ctx)
        return number


WHOLE_NUMBER = WholeNumber()


class GroupedCommand(click.Command):
    """Its help shows options under the titles that `grouped` gave them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(param, "title", OTHER), []).append(record)
        others = groups.pop(OTHER, [])
        groups[OTHER if groups else "Options"] = others  # the last ones
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class OrderedGroup(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def grouped(title: str, *options: Decorator) -> list[Decorator]:
    """The same options, shown under this title."""

    def marked(option: Decorator) -> Decorator:
        def decorate(command: Command) -> Command:
            decorated = option(command)
            decorated.__click_params__[-1].title = title  # type: ignore[attr-defined]
            return decorated

        return decorate

    return [marked(option) for option in options]


def complete_format(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of formats, also behind a comma."""
    from tokenmill.formats import FORMATS

    before, comma, last = typed.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{name}", help=form.trainer)
        for name, form in FORMATS.items()
        if name.startswith(last)
    ]


def complete_tokenizer(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Bundled encodings, and files."""
    from tokenmill.tokenizer.bundled import ENCODINGS

    found = [CompletionItem(name) for name in ENCODINGS if name.startswith(typed)]
    return [*found, CompletionItem(typed, type="file")] if not found or typed == "" else found
