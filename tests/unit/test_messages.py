"""docs/errors.md has every message of the source, and the messages are in plain English."""

from __future__ import annotations

import ast
import os
import re

import pytest
from support import messages
from support.inputs import ROOT

PAGE = ROOT / "docs" / "errors.md"
# Of STYLE: words that a reader whose first language is not English stumbles over.
AVOIDED = (
    "anew", "whoever", "minded", "is said", "is told", "lies", "lay", "set aside", "sets aside",
    "held out", "alike", "of ours", "not ours", "at hand", "in the way", "is gone by", "nobody",
)  # fmt: skip


def test_the_page_of_errors_is_made_from_the_source() -> None:
    """TOKENMILL_WRITE_DOCS=1 (make docs) writes it."""
    if os.environ.get("TOKENMILL_WRITE_DOCS"):
        PAGE.write_text(messages.page())
    assert PAGE.read_text() == messages.page(), "run `make docs`"


@pytest.mark.parametrize("word", AVOIDED)
def test_messages_avoid_words_that_are_hard_to_read(word: str) -> None:
    found = [
        message
        for message in messages.all_messages()
        if re.search(rf"\b{word}\b", f"{message.text} {message.hint}")
        and message.topic != "Diagnosis with `tokenmill doctor`"
    ]
    assert not found


KINDS = (
    "error, exit 1", "error, exit 2", "error, exit 3", "warning", "note", "found by verify",
    "stopped by a signal", "why the fast encoder is not used",
)  # fmt: skip


def test_messages_of_every_kind_are_found() -> None:
    assert {message.kind for message in messages.all_messages()} >= set(KINDS)


def read(source: str) -> tuple[str, str]:
    function = ast.parse(source).body[0]
    call = next(node for node in ast.walk(function) if isinstance(node, ast.Call))
    reader = messages.Reader(function)
    hint = next((k.value for k in call.keywords if k.arg == "hint"), None)
    return messages._plain(reader.texts(call.args[0])), messages._plain(reader.texts(hint))


@pytest.mark.parametrize(
    ("source", "text", "hint"),
    [
        ("def f(): raise E(f'{a}: no {b!r}', hint='do ' 'it')", "…: no …", "do it"),
        ("def f(x): raise E('a' if x else 'b')", "a / b", ""),
        ("def f(x):\n what = 'is empty'\n raise E(f'{x}: {what}')", "…: is empty", ""),
        ("def f(x): raise E('one ' + f'{x}', hint=x)", "one …", ""),
        ("def f(x): raise E(f'{a}{b} {c} files')", "… files", ""),
    ],
)
def test_the_wordings_of_a_message_are_read_from_the_source(
    source: str, text: str, hint: str
) -> None:
    assert read(source) == (text, hint)
