"""The text's name: a column or field, or the path of one inside objects ('data.text').

A column or field of exactly that name comes first; only where there is none, the dots are a path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from tokenmill.errors import InputError, did_you_mean
from tokenmill.inputs.rows.row_rule import rule_of
from tokenmill.inputs.rows.template import RowFaultError
from tokenmill.settings import Reading
from tokenmill.texts import is_large, is_view

NAMES_SHOWN = 40  # names listed in a hint
DEPTH = 8  # levels of nesting looked into for them
JSON_LEVELS = 800  # of nesting in a row; the interpreter's own limit depends on its version
NESTED = "JSON nested too deeply"
COUNT_BYTES = 1 << 20
PATH_FAULT_BYTES = 8 << 20  # a longer line is not decoded into objects to explain its fault
MISSING = "missing required field"  # msgspec's words
NO_FIELD = "no field"
DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError, RowFaultError)
# Strings are skipped, so that only what JSON does not know is found: Python writes it.
_NOT_A_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:NaN|Infinity)\b', re.DOTALL)
# The same for brackets; a quote alone begins a string without an end.
_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}"]', re.DOTALL)


def path_of(name: str) -> tuple[str, ...]:
    """'data.text' -> ('data', 'text'); one part where the name is no path."""
    parts = tuple(name.split("."))
    return parts if all(parts) else (name,)


# --- columns of parquet and Arrow ------------------------------------------------------------


def is_text_type(kind: Any) -> bool:
    """Whether an Arrow type holds text or bytes, also under a dictionary."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_binary(kind) or is_large(kind) or is_view(kind))


def column_path(schema: Any, name: str) -> tuple[str, ...]:
    """The names that lead to the text in a schema; empty where there is no such column."""
    if name in schema.names:
        return (name,)
    parts = path_of(name)
    return parts if all(_fields_along(schema, parts)) else ()


def _fields_along(fields: Any, parts: tuple[str, ...]) -> Iterator[list[Any]]:
    """For each step of a path the fields of that name: one, or none, or several."""
    for part in parts:
        found = [field for field in fields if field.name == part]
        yield found
        fields = _inner(found[0].type) if found else []


def _inner(kind: Any) -> list[Any]:
    from pyarrow import types

    return list(kind) if types.is_struct(kind) else []


def check_column(where: str, schema: Any, name: str) -> tuple[str, ...]:
    """The path of the text column; an error when it is missing, there twice, or not text."""
    try:
        there = _leaves(schema)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: a column's name is not UTF-8: {error}",
            hint="the file is damaged: download or write it again",
        ) from None
    parts = column_path(schema, name)
    if not parts:
        raise InputError(
            f"{where}: no column {name!r}",
            hint=f"{did_you_mean(name, there)}columns are: {listed(there)}; choose one with "
            "--text-column",
        )
    found = list(_fields_along(schema, parts))
    if any(len(fields) > 1 for fields in found):
        raise ambiguous(where, name)
    kind = found[-1][0].type
    if not is_text_type(kind):
        raise InputError(
            f"{where}: column {name!r} is {kind}, not text",
            hint="choose a string or binary column with --text-column"
            + (f": {listed(_leaves(kind, name))}" if _inner(kind) else ""),
        )
    return parts


def check_path(where: str, schema: Any, name: str) -> tuple[str, ...]:
    """The path of a column of any plain type; an error when it is missing or there twice."""
    from pyarrow import types

    parts = column_path(schema, name)
    if not parts:
        raise InputError(
            f"{where}: no column {name!r}", hint=f"columns are: {listed(_leaves(schema))}"
        )
    along = list(_fields_along(schema, parts))
    if any(len(found) > 1 for found in along):
        raise ambiguous(where, name)
    if types.is_nested(along[-1][0].type):
        raise InputError(
            f"{where}: column {name!r} is {along[-1][0].type}, not one value in each row",
            hint=f"columns are: {listed(_leaves(schema))}",
        )
    return parts


def ambiguous(where: str, name: str) -> InputError:
    return InputError(
        f"{where}: more than one column is called {name!r}",
        hint="write the file with one of them, or choose another with --text-column",
    )


def _leaves(fields: Any, prefix: str = "", depth: int = DEPTH) -> list[str]:
    """Names of columns, nested ones with their path."""
    names: list[str] = []
    for field in fields:
        name = f"{prefix}.{field.name}" if prefix else field.name
        names += (_leaves(_inner(field.type), name, depth - 1) if depth else []) or [name]
    return names


def field_of(column: Any, parts: tuple[str, ...]) -> Any:
    """The column inside a column; where the outer one is null, it is null too."""
    from pyarrow import compute

    for part in parts[1:]:
        column = compute.struct_field(column, part)
    return column


# --- fields of JSON rows ---------------------------------------------------------------------


def row_decoder(reading: Reading) -> Callable[[bytes | memoryview], bytes | None]:
    """One row of JSON to its text as UTF-8; None: the row is not wanted."""
    rule = rule_of(reading)
    if rule is None:
        return text_decoder(reading.text_column)
    columns, text = rule.columns, rule.text

    def decode(line: bytes | memoryview) -> bytes | None:
        row = _whole_row(bytes(line))
        if not isinstance(row, dict):
            raise RowFaultError("not a JSON object")
        found = ((name, value_of(row, name)) for name in columns)
        return text({name: value for name, value in found if value is not msgspec.UNSET})

    return decode


@functools.cache  # to make one takes 0.2 ms: as long as a small file
def text_decoder(name: str) -> Callable[[bytes | memoryview], bytes]:
    """The text of a row. Numbers that are none (NaN) in other fields, and keys that come twice
    (the last one counts), take a second look."""
    decode = _quick_decoder(name)

    def decode_row(line: bytes | memoryview) -> bytes:
        try:
            text = decode(line)
            # Brackets in the text do not nest, and a line is never shorter than its text.
            if len(line) - len(text) > JSON_LEVELS:
                refuse_nested(line)
            return text
        except msgspec.ValidationError:
            if len(line) > PATH_FAULT_BYTES:
                raise
            row = decoded(bytes(line))
            value = value_of(row, name) if isinstance(row, dict) else None
            if not isinstance(value, str):
                raise
            return value.encode()
        except msgspec.DecodeError:
            content = bytes(line)
            if b"NaN" not in content and b"Infinity" not in content:
                raise
            refuse_nested(content)
            return decode(_without_nan(content))

    def decode_again(line: bytes | memoryview) -> bytes:
        try:
            return decode_row(line)
        except RecursionError:
            text: bytes = _with_a_fresh_stack(decode_row, line)
            return text

    return decode_again


def _without_nan(line: bytes) -> bytes:
    return _NOT_A_NUMBER.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", line)


def _whole_row(line: bytes) -> Any:
    refuse_nested(line)
    try:
        return msgspec.json.decode(line)
    except RecursionError:
        return _with_a_fresh_stack(msgspec.json.decode, line)
    except msgspec.DecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        return msgspec.json.decode(_without_nan(line))


def refuse_nested(line: bytes | memoryview) -> None:
    if is_nested_too_deeply(line):
        raise RowFaultError(NESTED)


def is_nested_too_deeply(line: bytes | memoryview) -> bool:
    """Whether a row has more than JSON_LEVELS levels; also of a row that is not valid JSON."""
    if len(line) <= JSON_LEVELS:
        return False
    data = np.frombuffer(line, np.uint8)
    pieces = (data[at : at + COUNT_BYTES] for at in range(0, len(data), COUNT_BYTES))
    # [ and { differ in one bit
    if sum(int(np.count_nonzero((piece & 0xDF) == ord("["))) for piece in pieces) <= JSON_LEVELS:
        return False
    depth = 0
    for mark in _BRACKET.finditer(line):
        sign = mark[0][:1]
        if sign in (b"[", b"{"):
            depth += 1
            if depth > JSON_LEVELS:
                return True
        elif sign in (b"]", b"}"):
            depth -= 1
        elif mark.end() - mark.start() == 1:
            break
    return False


def _with_a_fresh_stack(decode: Callable[[Any], Any], line: bytes | memoryview) -> Any:
    """Decode a row for which the caller's own calls left too little of the interpreter's stack."""
    from concurrent.futures import ThreadPoolExecutor

    refuse_nested(line)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(decode, line).result()  # a thread has a stack of its own


def value_of(row: dict[str, Any], name: str) -> Any:
    """A field by its name, or by its path where there is none of that name; UNSET: neither."""
    if name in row:
        return row[name]
    value: Any = row
    for part in path_of(name):
        if not isinstance(value, dict) or part not in value:
            return msgspec.UNSET
        value = value[part]
    return value


def _quick_decoder(name: str) -> Callable[[bytes | memoryview], bytes]:
    """One line to its text as UTF-8; builds nothing else of the row: no dict, no other field."""
    exact = msgspec.defstruct("Row", [("text", str)], rename={"text": name})
    decode_exact = msgspec.json.Decoder(exact).decode
    parts = path_of(name)
    if len(parts) == 1:
        return lambda line: decode_exact(line).text.encode()  # type: ignore[attr-defined]
    inner: Any = str
    for part in reversed(parts[1:]):
        inner = msgspec.defstruct("Inner", [("inner", inner)], rename={"inner": part})
    either = msgspec.defstruct(
        "Row",
        [
            ("text", str | msgspec.UnsetType, msgspec.UNSET),
            ("inner", inner | msgspec.UnsetType, msgspec.UNSET),
        ],
        rename={"text": name, "inner": parts[0]},
    )
    decode_either = msgspec.json.Decoder(either).decode

    def decode(line: bytes | memoryview) -> bytes:
        try:
            row: Any = decode_either(line)
        except msgspec.ValidationError:
            row = decode_exact(line)  # what stands at the path's start does not matter then
        value = row.text
        if value is msgspec.UNSET:
            value = row.inner
            if value is msgspec.UNSET:
                raise msgspec.ValidationError(MISSING)
            for _ in parts[1:]:
                value = value.inner
        encoded: bytes = value.encode()
        return encoded

    return decode


def decoded(line: bytes) -> Any:
    """A line's JSON; None where it has none, of which the run will tell more."""
    try:
        return _whole_row(line)
    except DECODE_ERRORS:
        return None


def row_fault(error: Exception, line: bytes, name: str) -> str:
    """Why a line is no row with a text: for people."""
    text = str(error)
    if isinstance(error, RowFaultError):
        return text
    if isinstance(error, RecursionError) or is_nested_too_deeply(line):
        return NESTED
    if isinstance(error, UnicodeError):
        return f"not valid UTF-8: {text}"
    if not isinstance(error, msgspec.ValidationError):
        return f"not valid JSON: {text.removeprefix('JSON is malformed: ')}"
    if len(path_of(name)) > 1 and len(line) <= PATH_FAULT_BYTES:
        row = decoded(line)
        if isinstance(row, dict):
            return _path_fault(row, name)
    if MISSING in text:
        return f"no field {name!r}"
    if "at `$." in text:
        kind = text.partition("got `")[2].partition("`")[0]
        return f"field {name!r} is {kind or 'not text'}, where text should be"
    return f"not a JSON object: {text}"


def _path_fault(row: dict[str, Any], name: str) -> str:
    value: Any = row
    at: list[str] = []
    for part in (name,) if name in row else path_of(name):
        if not isinstance(value, dict):
            return f"{NO_FIELD} {name!r}: {'.'.join(at)!r} is {_kind(value)}, not an object"
        if part not in value:
            return f"{NO_FIELD} {name!r}"
        value = value[part]
        at.append(part)
    return f"field {name!r} is {_kind(value)}, where text should be"


def _kind(value: Any) -> str:
    names = {"NoneType": "null", "dict": "object", "list": "array"}
    return names.get(type(value).__name__, type(value).__name__)


def has_field(row: dict[str, Any], name: str) -> bool:
    return not _path_fault(row, name).startswith(NO_FIELD)


def check_fields(path: str, rows: Iterable[Any], names: Iterable[str]) -> None:
    """Refuse a file none of whose first rows has a field."""
    objects = [row for row in rows if isinstance(row, dict)]
    there = dict.fromkeys(name for row in objects for name in field_names(row))
    for name in names:
        if there and not any(has_field(row, name) for row in objects):
            raise InputError(
                f"{path}: no field {name!r} in its first rows",
                hint=f"{did_you_mean(name, there)}fields are: {listed(there)}; choose one with "
                "--text-column",
            )


def field_names(row: dict[str, Any], prefix: str = "", depth: int = DEPTH) -> list[str]:
    """The row's fields, those of objects in it with their path."""
    names: list[str] = []
    for key, value in row.items():
        name = f"{prefix}.{key}" if prefix else key
        inner = field_names(value, name, depth - 1) if isinstance(value, dict) and depth else []
        names += inner or [name]
    return names


def listed(names: Iterable[str]) -> str:
    """Names for a hint, the first of many."""
    names = list(names)
    return ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")
