"""`--text`: fields, braces and escapes."""

from __future__ import annotations

import pytest

from tokenmill.errors import UsageError
from tokenmill.inputs.rows.template import RowFaultError, parse_template


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (r"{title}\n\n{text}", "T\n\nbody"),
        ("{{{title}}}", "{T}"),
        (r"a\tb\\n{text}", "a\tb\\nbody"),
        ("{text}{text}", "bodybody"),
        ("{year}: {a.b}", "1999: x"),
        ("{text}\n", "body\n"),
    ],
)
def test_the_text_of_a_row(template: str, text: str) -> None:
    row = {"title": "T", "text": "body", "year": 1999, "a.b": b"x"}
    assert parse_template(template).text(row) == text.encode()


@pytest.mark.parametrize(
    "template", ["", "no field", "{}", "{a", "a}", "{a}}", "{{a}", r"{a}\x", "{a}\\"]
)
def test_what_is_not_a_template(template: str) -> None:
    with pytest.raises(UsageError, match="--text"):
        parse_template(template)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "field 'a' is missing"),
        ({"a": None}, "field 'a' is null"),
        ({"a": 1.5}, "field 'a' is float"),
        ({"a": True}, "field 'a' is bool"),
        ({"a": ["x"]}, "field 'a' is list"),
        ({"a": "\ud800"}, "field 'a' is not valid Unicode"),
    ],
)
def test_a_row_without_the_field_is_bad_with_its_name(row: dict[str, object], reason: str) -> None:
    with pytest.raises(RowFaultError, match=reason):
        parse_template("{a}").text(row)
