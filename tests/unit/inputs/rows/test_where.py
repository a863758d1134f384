"""The grammar of `--where`: what it says, what is refused, and what null means."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.inputs.rows.where import Statistics, columns_of, parse_where

ROW = {"n": 5, "f": 0.5, "s": "de", "none": None, "b": True, "a.b": "x", "digits": " 42 "}


@pytest.mark.parametrize(
    "condition",
    [
        "n == 5",
        "n != 6",
        "n >= 5 and n <= 5",
        "f > .4 and f < 5e-1 or s == 'de'",
        "s in ('en', 'de')",
        's == "de"',
        "s not in ('en', 'fr')",
        "s < 'e'",
        "none is null",
        "missing is null",
        "n is not null",
        "not n == 6",
        "not (n == 5 and s == 'en')",
        "NOT none == 1",
        "n == 6 or n == 5 and s == 'de'",
        "`a.b` == 'x'",
        "a.b == 'x'",
        "b == true",
        "digits == 42",
        "digits > 41.5",
        "digits != 'x'",
        "s != 5",
        "(((n == 5)))",
        "n==5 and s=='de'",
        "n > -1",
        "n < +6",
    ],
)
def test_conditions_that_hold(condition: str) -> None:
    assert parse_where(condition).holds(ROW)


@pytest.mark.parametrize(
    "condition",
    [
        "n == 6",
        "n == '5'",
        "s == 5",
        "s < 5",
        "none == 1",
        "none != 1",
        "none in (1, 2)",
        "none not in (1, 2)",
        "missing == 'x'",
        "missing < 3",
        "b == 1",
        "n == 6 or n == 5 and s == 'en'",
        "not not n == 6",
        "s is null",
        "digits == '42'",
    ],
)
def test_conditions_that_do_not_hold(condition: str) -> None:
    assert not parse_where(condition).holds(ROW)


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "n",
        "n ==",
        "n = 5",
        "5 == n",
        "n == m",
        "n == 5 and",
        "(n == 5",
        "n == 5)",
        "n in ()",
        "n in (5",
        "n in 5",
        "n is 5",
        "n is not",
        "n == 'open",
        "n == 5 n == 6",
        "n <> 5",
        "__import__('os')",
        "f(n) == 5",
        "n == 5; n == 6",
        "n == 1x",
        r"s == 'a\z'",
        "and == 5",
        "(" * 60 + "n == 5" + ")" * 60,
    ],
)
def test_what_is_not_a_condition_is_refused_with_the_place(condition: str) -> None:
    with pytest.raises(UsageError, match="--where"):
        parse_where(condition)


def test_values_of_files() -> None:
    row: dict[str, Any] = {
        "day": datetime.date(2024, 5, 1),
        "at": datetime.datetime(2024, 5, 1, 12),
        "money": decimal.Decimal("1.50"),
        "bytes": b"de",
        "nan": float("nan"),
        "list": [1],
        "big": 2**60 + 1,
    }
    for condition in (
        "day >= '2024-05-01'",
        "at == '2024-05-01T12:00:00'",
        "money == 1.5",
        "bytes == 'de'",
        "nan != 1",
        "list != 1",
        f"big == {2**60 + 1}",
    ):
        assert parse_where(condition).holds(row), condition
    for condition in ("nan == 1", "nan < 1", "list == 1", f"big == {2**60}"):
        assert not parse_where(condition).holds(row), condition


def test_strings_with_escapes() -> None:
    assert parse_where(r"s == 'it\'s\n\\'").holds({"s": "it's\n\\"})
    assert parse_where(r'''s == "it's"''').holds({"s": "it's"})


def test_the_columns_of_a_condition() -> None:
    node = parse_where("a > 1 and (b == 'x' or not a in (1, 2)) and `c d` is null")
    assert columns_of(node) == ("a", "b", "c d")


numbers = st.integers(-5, 5) | st.floats(-5, 5, width=16)
signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


@given(st.lists(numbers | st.none(), min_size=1), signs, numbers, signs, numbers)
def test_statistics_never_exclude_a_row_that_holds(
    values: list[float | None], one: str, first: float, other: str, second: float
) -> None:
    there = [value for value in values if value is not None]
    known = Statistics(
        min(there) if there else None,
        max(there) if there else None,
        len(values) - len(there),
        len(values),
    )
    for joined in ("and", "or", "and not"):
        node = parse_where(f"x {one} {first!r} {joined} x {other} {second!r}")
        holds = any(node.holds({"x": value}) for value in values)
        assert node.may_hold(lambda _: known) or not holds
    for condition in ("x is null", "x is not null", f"x in ({first!r}, {second!r})"):
        node = parse_where(condition)
        holds = any(node.holds({"x": value}) for value in values)
        assert node.may_hold(lambda _: known) or not holds


@pytest.mark.parametrize(
    ("condition", "may"),
    [
        ("x > 10", False),
        ("x < 1", False),
        ("x == 7", True),
        ("x in (0, 11)", False),
        ("x in (0, 5)", True),
        ("x > 10 or x == 2", True),
        ("x == 2 and x > 10", False),
        ("x is null", False),
        ("x == 'a'", True),
        ("not x > 0", True),
    ],
)
def test_statistics_exclude_what_cannot_be(condition: str, may: bool) -> None:
    known = Statistics(1, 10, 0, 100)
    assert parse_where(condition).may_hold(lambda _: known) == may
