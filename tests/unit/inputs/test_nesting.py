"""How deep a row of JSON may be nested: the same everywhere, whatever the interpreter allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tokenmill
from tokenmill.errors import BadRowError
from tokenmill.inputs.readers import fields
from tokenmill.inputs.readers.fields import JSON_LEVELS, NESTED, is_nested_too_deeply, text_decoder
from tokenmill.inputs.rows.template import RowFaultError

WRITE = {
    "lines": lambda rows: b"\n".join(rows) + b"\n",
    "array": lambda rows: b"[" + b",".join(rows) + b"]",
}


def row(levels: int, text: bytes = b"some words", left: bytes = b"[", right: bytes = b"]") -> bytes:
    """A row of so many levels: the object itself is one."""
    inner = left * (levels - 1) + b"0" + right * (levels - 1)
    return b'{"z": ' + inner + b', "text": "' + text + b'"}'


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("rule", [{}, {"text": "{text}"}], ids=["column", "template"])
def test_800_levels_are_a_row_and_801_are_a_bad_row(
    kind: str, rule: dict[str, Any], tmp_path: Path
) -> None:
    assert JSON_LEVELS == 800, "a change would change the documents of a dataset"
    path = tmp_path / "x.json"
    path.write_bytes(WRITE[kind]([row(1), row(800), row(801), row(5000), row(2)]))
    with pytest.raises(BadRowError, match=f"row 2.*{NESTED}"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, val="none", **rule)
    result = tokenmill.prepare(
        path, tmp_path / "o", workers=0, val="none", on_bad_row="quarantine", **rule
    )
    assert result.manifest.counts["documents"] == 3
    lines = (tmp_path / "o" / "quarantine.jsonl").read_bytes().splitlines()
    told = [msgspec.json.decode(line) for line in lines]
    assert [(bad["row"], bad["reason"]) for bad in told] == [(2, NESTED), (3, NESTED)]


@pytest.mark.parametrize(
    "line",
    [
        row(801),
        row(801, left=b'{"a": ', right=b"}"),
        row(801, b"text " * 10_000),
        b'{"text": "a", "z": ' + b"[" * 800,
        b'{"text": "a", "z": ' + b"[" * 100_000,
        b'{"other": ' + b"[" * 800 + b"0" + b"]" * 800 + b"}",
        b'{"text": 7, "other": ' + b"[" * 800 + b"0" + b"]" * 800 + b"}",
        b'{"text": "a", "text": "b", "z": ' + b"[" * 800 + b"NaN" + b"]" * 800 + b"}",
    ],
    ids=lambda line: f"{line[:24].decode()} {len(line)}",
)
def test_the_reason_is_the_nesting_whatever_else_is_wrong(line: bytes) -> None:
    for given in (line, memoryview(line)):
        with pytest.raises(fields.DECODE_ERRORS) as fault:
            text_decoder("text")(given)
        assert fields.row_fault(fault.value, line, "text") == NESTED


def test_brackets_that_do_not_nest_are_not_counted() -> None:
    side_by_side = b'{"text": "a", "z": [' + b"[]," * 5000 + b"{}]}"
    assert text_decoder("text")(side_by_side) == b"a"
    inside = b'{"text": "' + b"[{" * 5000 + b'", "z": "' + b'\\"[{' * 5000 + b'"}'
    assert text_decoder("text")(inside) == b"[{" * 5000
    assert not is_nested_too_deeply(b'{"text": "' + b"[" * 5000), "a string that does not end"
    assert is_nested_too_deeply(b"x" * (3 << 20) + b"[" * 801)
    assert not is_nested_too_deeply(b"x" * (3 << 20) + b"[" * 800)


def at_depth(calls: int, what: Callable[[], Any]) -> Any:
    return what() if calls == 0 else at_depth(calls - 1, what)


@pytest.mark.parametrize("name", ["text", "z.text"])
def test_the_calls_of_the_caller_take_nothing_from_a_row(name: str) -> None:
    """Up to Python 3.11 calls and levels share one limit of 1000."""
    line = row(800) if name == "text" else b'{"z": {"text": "some words", "y": ' + row(798) + b"}}"
    assert at_depth(500, lambda: text_decoder(name)(line)) == b"some words"
    with pytest.raises(RowFaultError, match=NESTED):
        at_depth(500, lambda: text_decoder("text")(row(801)))
    whole = at_depth(500, lambda: fields.decoded(row(800)))
    assert whole["text"] == "some words"
