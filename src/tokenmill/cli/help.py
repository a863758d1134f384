"""How help is laid out: options in groups, commands in the order of the work. And completion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tokenmill.errors import did_you_mean

if TYPE_CHECKING:
    _Number = click.ParamType[int]
else:
    _Number = click.ParamType  # takes no brackets in click 8.1

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
OTHER = "Other options"
OTHER_WORDS = {  # for commands
    "tokenize": "prepare", "encode": "prepare", "run": "prepare", "build": "prepare",
    "resume": "prepare", "estimate": "plan", "check": "verify", "show": "inspect",
    "info": "inspect", "convert": "export", "adopt": "import", "progress": "status",
}  # fmt: skip


class WholeNumber(_Number):
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


def unknown(
    what: str,
    name: str,
    known: Iterable[str],
    ctx: click.Context,
    meant: Mapping[str, str] | None = None,
) -> click.UsageError:
    """The error for a word that is none of those that are known, with the nearest of them."""
    near = did_you_mean(name, known, meant)
    return click.UsageError(f"No such {what} {name!r}. {near[:1].upper()}{near[1:]}".strip(), ctx)


class GroupedCommand(click.Command):
    """Its help shows options under the titles that `grouped` gave them. An empty value, which is
    what a shell makes of a variable that is not set, is refused."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise unknown("option", error.option_name, self._option_names(), ctx) from None
        for param in self.params:
            value = ctx.params.get(param.name or "")
            given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
            if given and (value == "" or (isinstance(value, tuple) and "" in value)):
                raise click.BadParameter("is empty.", ctx, param)
        return rest

    def _option_names(self) -> list[str]:
        shown = (p for p in self.params if isinstance(p, click.Option) and not p.hidden)
        return [name for param in shown for name in (*param.opts, *param.secondary_opts)]

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


class FiledArgument(click.Argument):
    """An argument that a file may give too, where none is typed."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        value, source = super().consume_value(ctx, opts)
        filed = (ctx.default_map or {}).get(self.name or "")
        if filed and not opts.get(self.name or ""):
            return filed, ParameterSource.DEFAULT_MAP
        return value, source


class OrderedGroup(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            raise unknown("command", name, self.commands, ctx, OTHER_WORDS)
        return super().resolve_command(ctx, args)


def takes_value(option: click.Parameter) -> bool:
    """Whether the next word is its value, whatever that word is."""
    return (
        isinstance(option, click.Option)
        and not option.is_flag
        and not isinstance(option.flag_value, str)  # else the value may be left out
    )


def flag_places(flag: str, words: list[str], params: Iterable[click.Parameter]) -> list[int]:
    """Where in a command a flag stands: not where it is another option's value, or behind `--`."""
    values = {name for option in params for name in option.opts if takes_value(option)}
    end = words.index("--") if "--" in words else len(words)
    return [i for i in range(end) if words[i] == flag and (i == 0 or words[i - 1] not in values)]


def asks_for_json(group: click.Group, words: list[str]) -> bool:
    """Whether --json is among the words, also where they cannot be parsed."""
    command = next((group.commands[word] for word in words[:1] if word in group.commands), None)
    return bool(flag_places("--json", words, command.params if command else ()))


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
    """Bundled encodings, and files. Files come first: bash forgets what came before them."""
    from tokenmill.tokenizer.bundled import ENCODINGS

    found = [CompletionItem(name) for name in ENCODINGS if name.startswith(typed)]
    return [CompletionItem(typed, type="file"), *found]


def choices(*names: str) -> dict[str, Any]:
    """Attributes of an option that takes one of these: shown, completed, and checked later with
    the others, so that a call in Python is refused in the same words."""

    def complete(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names if name.startswith(typed)]

    return {"metavar": f"[{'|'.join(names)}]", "shell_complete": complete}
