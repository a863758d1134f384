"""`--where`: rows chosen by their columns. The grammar (docs/inputs.md explains it):

    condition  = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation   = "not" negation | "(" condition ")" | comparison
    comparison = column ("==" | "!=" | "<" | "<=" | ">" | ">=") literal
               | column ["not"] "in" "(" literal { "," literal } ")"
               | column "is" ["not"] "null"
    column     = name, or `any name in backquotes`
    literal    = 'string' or "string" (with \\\\ \\' \\" \\n \\t), number, true, false

A comparison with null, or with a field that a row does not have, is false. Nothing is evaluated
but this: there is no `eval`, and no function can be called.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from tokenmill.errors import UsageError

Literal = str | int | float | bool
Values = Mapping[str, Any]  # a row: columns to values

MAX_NESTING = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`[^`]+`)
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<name>[^\W\d][\w.-]*)
    |(?P<sign>==|!=|<=|>=|<|>|\(|\)|,))""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


class Statistics(NamedTuple):
    """What is known of a column in a part of a file; None where nothing is."""

    low: Any = None
    high: Any = None
    nulls: int | None = None
    rows: int = 0


# --- the tree --------------------------------------------------------------------------------


class Comparison(NamedTuple):
    column: str
    sign: str  # of the comparisons, or "in"
    literals: tuple[Literal, ...]

    def holds(self, row: Values) -> bool:
        value = plain(row.get(self.column))
        if value is None:
            return False
        if self.sign == "in":
            return any(_compares("==", value, literal) for literal in self.literals)
        return _compares(self.sign, value, self.literals[0])

    def may_hold(self, known: Callable[[str], Statistics]) -> bool:
        """Whether it holds for any value from the lowest to the highest."""
        low, high, nulls, rows = known(self.column)
        if nulls is not None and nulls == rows:
            return False
        return any(_may_compare(self.sign, low, high, literal) for literal in self.literals)


class NullTest(NamedTuple):
    column: str
    wanted: bool

    def holds(self, row: Values) -> bool:
        return (row.get(self.column) is None) == self.wanted

    def may_hold(self, known: Callable[[str], Statistics]) -> bool:
        statistics = known(self.column)
        if statistics.nulls is None:
            return True
        return statistics.nulls > 0 if self.wanted else statistics.nulls < statistics.rows


class Negation(NamedTuple):
    part: Node

    def holds(self, row: Values) -> bool:
        return not self.part.holds(row)

    def may_hold(self, known: Callable[[str], Statistics]) -> bool:
        return True  # that all rows hold is not what statistics tell


class Junction(NamedTuple):
    every: bool  # and; else or
    parts: tuple[Node, ...]

    def holds(self, row: Values) -> bool:
        return (all if self.every else any)(part.holds(row) for part in self.parts)

    def may_hold(self, known: Callable[[str], Statistics]) -> bool:
        return (all if self.every else any)(part.may_hold(known) for part in self.parts)


Node = Comparison | NullTest | Negation | Junction


def columns_of(node: Node) -> tuple[str, ...]:
    """The columns that a condition looks at, each once."""
    return tuple(dict.fromkeys(_columns(node)))


def _columns(node: Node) -> Iterator[str]:
    if isinstance(node, Junction):
        for part in node.parts:
            yield from _columns(part)
    elif isinstance(node, Negation):
        yield from _columns(node.part)
    else:
        yield node.column


# --- values ----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as it is compared: bytes are text, dates are ISO 8601."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    return value


def _compares(sign: str, value: Any, literal: Literal) -> bool:
    pair = _comparable(value, literal)
    if pair is None:
        return sign == "!="  # values of different kinds are different, and have no order
    one, other = pair
    match sign:
        case "==":
            return bool(one == other)
        case "!=":
            return bool(one != other)
        case "<":
            return bool(one < other)
        case "<=":
            return bool(one <= other)
        case ">":
            return bool(one > other)
    return bool(one >= other)


def _comparable(value: Any, literal: Literal) -> tuple[Any, Any] | None:
    """Both as numbers, as text or as truth values; None where they are of different kinds.

    Text that reads as a number is that number beside a number: a CSV file has no other.
    """
    if isinstance(literal, bool):
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            value = value.strip().lower() == "true"
        return (value, literal) if isinstance(value, bool) else None
    if isinstance(literal, str):
        return (value, literal) if isinstance(value, str) else None
    if isinstance(value, str):
        value = _number(value)
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        return None
    return value, literal


def _number(text: str) -> int | float | None:
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _may_compare(sign: str, low: Any, high: Any, literal: Literal) -> bool:
    """False only where no value from low to high compares so."""
    value: Any = literal
    kinds = str if isinstance(literal, str) else int | float
    if isinstance(literal, bool) or isinstance(low, bool) or sign == "!=":
        return True
    if not (isinstance(low, kinds) and isinstance(high, kinds)) or low != low or high != high:
        return True
    if sign in ("==", "in"):
        return bool(low <= value <= high)
    if sign in ("<", "<="):
        return _compares(sign, low, literal)
    return _compares(sign, high, literal)


# --- the parser ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def parse_where(text: str) -> Node:
    """The condition that a text says; UsageError with the place where it does not."""
    parser = _Parser(text)
    node = parser.condition(0)
    if parser.kind:
        parser.fail("and, or, or the end")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.start = text, 0, 0
        self.kind = self.word = ""
        self.next()

    def next(self) -> str:
        """Step to the next word; returns the one before."""
        before = self.word
        self.start = self.at
        if not self.text[self.at :].strip():
            self.kind = self.word = ""
            return before
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            self.kind = "other"
            self.fail("a column, a string or a number")
        self.at = found.end()
        self.kind = found.lastgroup or ""
        self.word = found[self.kind]
        if self.kind == "name" and self.word.lower() in _KEYWORDS:
            self.kind, self.word = "keyword", self.word.lower()
        return before

    def fail(self, wanted: str) -> NoReturn:
        rest = self.text[self.start :].strip()
        where = f"at {rest[:20]!r}" if rest else "at its end"
        hint = "for example: --where \"language == 'de' and score > 0.8\" (docs/inputs.md)"
        if re.match(r"=[^=]", rest):
            hint = "write == to compare"
        raise UsageError(f"--where {self.text!r}: {wanted} should be {where}", hint=hint)

    def keyword(self, *words: str) -> bool:
        if self.kind == "keyword" and self.word in words:
            self.next()
            return True
        return False

    def sign(self, word: str) -> None:
        if self.kind != "sign" or self.word != word:
            self.fail(repr(word))
        self.next()

    def condition(self, depth: int) -> Node:
        return self._junction("or", lambda: self._junction("and", self._negation(depth)))

    def _junction(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self.keyword(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word == "and", tuple(parts))

    def _negation(self, depth: int) -> Callable[[], Node]:
        def parse() -> Node:
            negated = False
            while self.keyword("not"):
                negated = not negated
            if self.kind == "sign" and self.word == "(":
                if depth >= MAX_NESTING:
                    raise UsageError(f"--where: more than {MAX_NESTING} parentheses deep")
                self.next()
                node = self.condition(depth + 1)
                self.sign(")")
            else:
                node = self._comparison()
            return Negation(node) if negated else node

        return parse

    def _comparison(self) -> Node:
        if self.kind not in ("name", "quoted"):
            self.fail("a column")
        column = self.next().strip("`")
        if self.kind == "sign" and self.word in _COMPARISONS:
            return Comparison(column, self.next(), (self._literal(),))
        if self.keyword("is"):
            wanted = not self.keyword("not")
            if not self.keyword("null"):
                self.fail("null")
            return NullTest(column, wanted)
        negated = self.keyword("not")
        if not self.keyword("in"):
            self.fail("==, !=, <, <=, >, >=, in or is")
        self.sign("(")
        literals = [self._literal()]
        while self.kind == "sign" and self.word == ",":
            self.next()
            literals.append(self._literal())
        self.sign(")")
        node = Comparison(column, "in", tuple(literals))
        # `x not in (...)` of a null is false, as every comparison with null is.
        return Junction(True, (NullTest(column, False), Negation(node))) if negated else node

    def _literal(self) -> Literal:
        if self.kind == "string":
            return self._string(self.next())
        if self.kind == "number":
            number = _number(self.next())
            assert number is not None
            return number
        if self.kind == "keyword" and self.word in ("true", "false"):
            return self.next() == "true"
        return self.fail("a string in quotes or a number")

    def _string(self, word: str) -> str:
        def letter(match: re.Match[str]) -> str:
            if match[1] not in _ESCAPES:
                raise UsageError(f"--where {self.text!r}: {match[0]!r} is not an escape sequence")
            return _ESCAPES[match[1]]

        return re.sub(r"\\(.)", letter, word[1:-1], flags=re.DOTALL)
