"""The plain part of YAML that configurations of trainers are written in, read without a library.

Mappings, lists, and texts on one line: quoted, plain, or in [brackets] and {braces}. Every value
is text. What else YAML has (anchors, tags, texts over several lines) is refused, never guessed.
A YAML library can make objects of a file's text; this reader makes texts, lists and dicts only.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from tokenmill.errors import UsageError

Value = str | list["Value"] | dict[str, "Value"]

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'')
_KEY = re.compile(
    rf"({_QUOTED.pattern}|[^\s\"'\[\]{{}},&*!|>%@`?#-][^\n]*?|-\S[^\n]*?)\s*:(?:\s+|$)"
)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_DEEPEST = 50


class _Line(NamedTuple):
    number: int  # in the file, from 1
    indent: int
    text: str

    def refuse(self, why: str) -> NoReturn:
        raise UsageError(
            f"line {self.number}: {why}",
            hint="only the plain part of YAML is read: write this line in another way, or write "
            "the mix.toml by hand",
        )


def read_yaml(text: str) -> Value:
    lines = [
        line for number, raw in enumerate(text.splitlines(), 1) if (line := _line(number, raw))
    ]
    if lines and lines[0].text == "---":
        del lines[0]
    if not lines:
        return ""
    value, after = _block(lines, 0, lines[0].indent, 0)
    if after < len(lines):
        lines[after].refuse("is not indented like the lines before it")
    return value


def _line(number: int, raw: str) -> _Line | None:
    """Without its comment; None where nothing is left."""
    content = raw.lstrip(" ")
    line = _Line(number, len(raw) - len(content), content)
    if content.startswith("\t"):
        line.refuse("a tab in front of it")
    kept = ""
    while content:
        quoted = _QUOTED.match(content) if not kept or kept[-1] in " [{,:" else None
        if quoted:
            kept, content = kept + quoted[0], content[quoted.end() :]
        elif content[0] == "#" and (not kept or kept[-1] in " \t"):
            break
        else:
            kept, content = kept + content[0], content[1:]
    return line._replace(text=kept.rstrip()) if kept.strip() else None


def _block(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    """The list, mapping or text that begins at a line, and the number of the line after it."""
    line = lines[at]
    if depth > _DEEPEST:
        line.refuse("is nested too deeply")
    if _is_item(line):
        return _list(lines, at, indent, depth)
    if _KEY.match(line.text):
        return _mapping(lines, at, indent, depth)
    if at + 1 < len(lines) and lines[at + 1].indent >= indent and not _is_item(lines[at + 1]):
        lines[at + 1].refuse("a text over several lines")
    return _scalar(line, line.text), at + 1


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _list(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    found: list[Value] = []
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at]):
        line = lines[at]
        rest = line.text[1:].lstrip(" ")
        if rest:
            inner = indent + len(line.text) - len(rest)
            lines[at] = _Line(line.number, inner, rest)
            value, at = _block(lines, at, inner, depth + 1)
        else:
            value, at = _below(lines, at, indent + 1, depth)
        found.append(value)
    return found, at


def _mapping(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[Value, int]:
    found: dict[str, Value] = {}
    while at < len(lines) and lines[at].indent == indent and not _is_item(lines[at]):
        line = lines[at]
        match = _KEY.match(line.text)
        if not match:
            line.refuse("is neither a key with its value nor an item of a list")
        key = str(_scalar(line, match[1]))
        if key in found:
            line.refuse(f"{key} stands twice")
        if key == "<<":
            line.refuse("a merge of mappings")
        rest = line.text[match.end() :]
        if rest:
            found[key] = _scalar(line, rest)
            at += 1
            if at < len(lines) and lines[at].indent > indent:
                lines[at].refuse("a text over several lines, or a wrong indent")
        else:
            # The items of a list may begin where their key does.
            same = at + 1 < len(lines) and lines[at + 1].indent == indent
            least = indent if same and _is_item(lines[at + 1]) else indent + 1
            found[key], at = _below(lines, at, least, depth)
    return found, at


def _below(lines: list[_Line], at: int, least: int, depth: int) -> tuple[Value, int]:
    """What is under a key or a dash: nothing, or a block that is indented by at least so much."""
    if at + 1 < len(lines) and lines[at + 1].indent >= least:
        return _block(lines, at + 1, lines[at + 1].indent, depth + 1)
    return "", at + 1


def _scalar(line: _Line, text: str) -> Value:
    if text[0] in "[{":
        value, rest = _flow(line, text, 0)
    elif text[0] in "\"'":
        value, rest = _quoted(line, text)
    else:
        if text[0] in "&*!|>%@`" or text in ("?", ":"):
            line.refuse(f"{text[0]} has a meaning in YAML that is not read here")
        if ": " in text or text.endswith(":"):
            line.refuse("a second colon: quote the text")
        return text
    if rest.strip():
        line.refuse(f"{rest.strip()!r} behind the value")
    return value


def _quoted(line: _Line, text: str) -> tuple[str, str]:
    match = _QUOTED.match(text)
    if not match:
        line.refuse("a quote without its end")
    inner, rest = match[0][1:-1], text[match.end() :]
    if text[0] == "'":
        return inner.replace("''", "'"), rest
    if any(found not in _ESCAPES for found in re.findall(r"\\(.)", inner)):
        line.refuse("an escape sequence that is not read here")
    return re.sub(r"\\(.)", lambda found: _ESCAPES[found[1]], inner), rest


def _flow(line: _Line, text: str, depth: int) -> tuple[Value, str]:
    """`[a, b]` or `{a: 1, b: 2}`, and what is behind it."""
    if depth > _DEEPEST:
        line.refuse("is nested too deeply")
    close = "]" if text[0] == "[" else "}"
    items: list[Value] = []
    pairs: dict[str, Value] = {}
    text = text[1:].lstrip()
    while not text.startswith(close):
        value, text = _flow_value(line, text, depth)
        if close == "]":
            items.append(value)
        else:
            key = str(value)
            if not isinstance(value, str) or not text.startswith(":") or key in pairs:
                line.refuse("not a mapping of names to values")
            pairs[key], text = _flow_value(line, text[1:].lstrip(), depth)
        if text.startswith(","):
            text = text[1:].lstrip()
        elif not text.startswith(close):
            line.refuse(f"{close} is missing on this line")
    return (items if close == "]" else pairs), text[1:]


def _flow_value(line: _Line, text: str, depth: int) -> tuple[Value, str]:
    if text[:1] in ("[", "{"):
        value, rest = _flow(line, text, depth + 1)
    elif text[:1] in ('"', "'"):
        value, rest = _quoted(line, text)
    else:
        match = re.match(r"(?:[^,\[\]{}:]|:(?=\S))*", text)
        value = match[0].strip() if match else ""
        rest = text[len(match[0]) :] if match else text
        if not value or value[0] in "&*!|>%@`#?" or value == "-" or value.startswith("- "):
            line.refuse("a value in brackets that is not read here")
    return value, rest.lstrip()
