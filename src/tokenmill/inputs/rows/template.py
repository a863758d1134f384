"""`--text`: the text of a document from several columns, such as '{title}\\n\\n{text}'."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenmill.errors import UsageError

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\\(.?)|[^{}\\]+|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


class RowFaultError(ValueError):
    """Why a row is not a document: for people."""


class Template(NamedTuple):
    parts: tuple[tuple[str, bool], ...]  # text, or the name of a field

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for text, is_field in self.parts if is_field))

    def text(self, row: Mapping[str, Any]) -> bytes:
        return b"".join(
            field_text(row, text) if is_field else text.encode() for text, is_field in self.parts
        )


def field_text(row: Mapping[str, Any], name: str) -> bytes:
    """A field as text: strings and integers are; RowFaultError for null, a missing field, and
    values of other kinds."""
    value = row.get(name)
    if value is None:
        what = "is null" if name in row else "is missing"
        raise RowFaultError(f"field {name!r} {what}, where text should be")
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise RowFaultError(f"field {name!r} is not valid Unicode") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise RowFaultError(f"field {name!r} is {type(value).__name__}, where text should be")


@functools.lru_cache(maxsize=8)
def parse_template(text: str) -> Template:
    parts: list[tuple[str, bool]] = []
    for match in _PART.finditer(text):
        word = match[0]
        if match[3] is not None:
            raise UsageError(
                f"--text {text!r}: a single {word!r}", hint="write {{ and }} for braces"
            )
        if match[1] is not None:
            if not match[1]:
                raise UsageError(f"--text {text!r}: {{}} names no column", hint="write {column}")
            parts.append((match[1], True))
        elif match[2] is not None:
            if match[2] not in _ESCAPES:
                raise UsageError(
                    f"--text {text!r}: {word!r} is not an escape sequence",
                    hint=r"known are \n \t \\",
                )
            parts.append((_ESCAPES[match[2]], False))
        else:
            parts.append(({"{{": "{", "}}": "}"}.get(word, word), False))
    template = Template(tuple(parts))
    if not template.fields:
        raise UsageError(f"--text {text!r}: names no column", hint="write '{title}\\n\\n{text}'")
    return template
