"""Options in a file: `--config tokenmill.toml` reads them, `plan --save` writes them.

Keys are the names of the options without their dashes in front, and `inputs`. Unknown keys and
values of a wrong type are refused. Options that are typed override the file. Relative paths begin
at the folder of the file, so that a file and its data can be moved together.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tokenmill.cli.help import WHOLE_NUMBER
from tokenmill.errors import UsageError, did_you_mean

# What a file may not say, and why not.
TYPED_ONLY = {
    "overwrite": "in a file it would start over with every run; type it",
    "json": "it says who reads the output; type it",
    "download-only": "it is a command of its own; type it",
    "config": "a file names no other",
    "save": "it is for `plan`; type it",
    "help": "type it",
}
PATHS = ("inputs", "output", "val-inputs", "reuse", "mix")
NUMBERS = (
    "shard-tokens", "min-shard-tokens", "min-tokens", "max-tokens", "limit-docs", "limit-tokens",
    "memory", "eot-token", "bos-token",
)  # fmt: skip
CONFIG_HELP = "Read options from a TOML file; options that are typed override it."


def key_of(param: click.Parameter) -> str:
    """The name of an option as a file has it: `text-column`."""
    longest = max(param.opts, key=len)
    return longest.lstrip("-") if isinstance(param, click.Option) else longest


def use_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """What the file says becomes the defaults of this command."""
    if path is None or context.resilient_parsing:
        return
    content = _read(path)
    mine = {key_of(param): param for param in _known(context.command)}
    known = dict(mine)
    group = context.parent.command if context.parent else None
    if isinstance(group, click.Group) and context.command.name in ("plan", "prepare"):
        for name in ("plan", "prepare"):  # a file serves both
            known |= {key_of(param): param for param in _known(group.commands[name])}
    defaults: dict[str, Any] = {}
    for key, value in content.items():
        if key in TYPED_ONLY:
            raise UsageError(f"{path}: {key}: cannot be in a file", hint=TYPED_ONLY[key])
        if key not in known:
            hint = f"{did_you_mean(key, known)}a key is an option's name, such as text-column"
            raise UsageError(f"{path}: {key}: no such option", hint=hint)
        checked = _checked(path, key, known[key], value)
        if key in mine:
            defaults[mine[key].name or key] = _placed(path, key, checked)
    context.default_map = {**(context.default_map or {}), **defaults}


def _known(command: click.Command) -> list[click.Parameter]:
    return [
        param
        for param in command.params
        if key_of(param) not in TYPED_ONLY and not getattr(param, "hidden", False)
    ]


def _read(path: str) -> dict[str, Any]:
    import tomllib  # `tokenmill --help` must be quick

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not TOML: {error}") from None


def _checked(path: str, key: str, param: click.Parameter, value: Any) -> Any:
    """A value of the type that the option takes; lists as lists."""
    texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    many = getattr(param, "multiple", False) or param.nargs == -1 or key == "format"
    number = isinstance(value, int) and not isinstance(value, bool)
    if getattr(param, "is_flag", False):
        right, what = isinstance(value, bool), "true or false"
    elif param.type is WHOLE_NUMBER:
        right, what = number, "a whole number"
    elif many:
        right, what = isinstance(value, str) or texts, "a string, or a list of strings"
    elif key in NUMBERS:
        right, what = isinstance(value, str) or number, "a whole number or a string"
    elif key == "val":
        right = isinstance(value, str | float) or number
        what = "a number or a string"
    else:
        right, what = isinstance(value, str), "a string"
    if not right:
        raise UsageError(f"{path}: {key}: must be {what}, not {_shown(value)}")
    if value in ("", []) or (texts and "" in value):
        raise UsageError(f"{path}: {key}: is empty", hint="leave it out")
    if key == "format":
        return value if isinstance(value, str) else ",".join(value)
    return [value] if many and isinstance(value, str) else value


def _shown(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number with a point", str: "text"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), type(value).__name__)


def _placed(path: str, key: str, value: Any) -> Any:
    """Relative paths as seen from here; a tokenizer only if it is a file or folder there."""
    folder = os.path.dirname(path)
    if not folder:
        return value
    if key in PATHS:
        placed = [_joined(folder, one) for one in ([value] if isinstance(value, str) else value)]
        return placed[0] if isinstance(value, str) else placed
    if key == "tokenizer" and os.path.exists(os.path.join(folder, value)):
        return os.path.join(folder, value)
    return value


def _joined(folder: str, name: str) -> str:
    if "://" in name or name == "-" or os.path.isabs(name):
        return name
    has_pattern = glob.has_magic(name) and not os.path.exists(os.path.join(folder, name))
    joined = os.path.join(glob.escape(folder) if has_pattern else folder, name)
    short = os.path.normpath(joined)  # not where the folder is a link: its parent is elsewhere
    return short if os.path.realpath(short) == os.path.realpath(joined) else joined


# --- plan --save -----------------------------------------------------------------------------


def refuse_existing(path: str) -> None:
    """Before anything is estimated."""
    if os.path.lexists(path):
        raise UsageError(
            f"--save {path}: is there already", hint="remove it, or save under another name"
        )


def save_config(path: str, context: click.Context) -> None:
    """The options that were given, typed or by --config; all others keep their defaults."""
    from tokenmill.system.disk import create_exclusively

    given = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)
    lines = [
        f"# tokenmill prepare --config {os.path.basename(path)}",
        "# Options as on the command line; those that are typed override these. Relative paths",
        "# begin at the folder of this file.",
    ]
    for param in _known(context.command):
        key, value = key_of(param), context.params.get(param.name or "")
        if context.get_parameter_source(param.name or "") in given and key != "no-probe":
            lines.append(f"{key} = {_toml(key, _as_seen_from(os.path.dirname(path), key, value))}")
    try:
        content = ("\n".join(lines) + "\n").encode()
    except UnicodeEncodeError:
        raise UsageError(f"--save {path}: a name that is not UTF-8 cannot be saved") from None
    create_exclusively(Path(path), content)


def _as_seen_from(folder: str, key: str, value: Any) -> Any:
    if not folder:
        return value
    if key in PATHS:
        if isinstance(value, tuple):
            return tuple(_relative(folder, one) for one in value)
        return _relative(folder, value)
    return _relative(folder, value) if key == "tokenizer" and os.path.exists(value) else value


def _relative(folder: str, name: str) -> str:
    is_elsewhere = "://" in name or name == "-" or os.path.isabs(name)
    return name if is_elsewhere else os.path.relpath(name, folder)


def _toml(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml('', one) for one in value)}]"
    if isinstance(value, int):
        return str(value)
    plain = key in NUMBERS and re.fullmatch(r"0|[1-9][0-9]{0,17}", value)
    if plain or (key == "val" and re.fullmatch(r"0\.[0-9]{1,15}", value)):
        return str(value)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    letters = [
        escapes.get(one) or (one if one >= " " and one != "\x7f" else f"\\u{ord(one):04x}")
        for one in text
    ]
    return f'"{"".join(letters)}"'
