"""The text's name: a column or field, or the path of one inside objects ('data.text').

A column or field of exactly that name comes first; only where there is none, the dots are a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tokenmill.errors import InputError

SHOWN = 40  # names listed in a hint
DEPTH = 8  # levels of nesting looked into for them
MISSING = "missing required field"  # msgspec's words


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
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def column_path(schema: Any, name: str) -> tuple[str, ...]:
    """The names that lead to the text in a schema; empty where there is no such column."""
    if name in schema.names:
        return (name,)
    parts = path_of(name)
    fields = list(schema)
    for part in parts:
        found = [field for field in fields if field.name == part]
        if not found:
            return ()
        fields = _inner(found[0].type)
    return parts


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
            hint="the file is damaged: fetch or write it again",
        ) from None
    parts = column_path(schema, name)
    if not parts:
        raise InputError(
            f"{where}: no column {name!r}",
            hint=f"columns are: {listed(there)}; choose one with --text-column",
        )
    fields, kind = list(schema), None
    for part in parts:
        found = [field for field in fields if field.name == part]
        if len(found) > 1:
            raise InputError(
                f"{where}: more than one column is called {name!r}",
                hint="write the file with one of them, or choose another with --text-column",
            )
        kind = found[0].type
        fields = _inner(kind)
    if not is_text_type(kind):
        raise InputError(
            f"{where}: column {name!r} is {kind}, not text",
            hint="choose a string or binary column with --text-column"
            + (f": {listed(_leaves(kind, name))}" if fields else ""),
        )
    return parts


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


def text_decoder(name: str) -> Callable[[bytes | memoryview], bytes]:
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


def row_fault(error: Exception, line: bytes, name: str) -> str:
    """Why a line is no row with a text: for people."""
    text = str(error)
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    if isinstance(error, UnicodeError):
        return f"not valid UTF-8: {text}"
    if not isinstance(error, msgspec.ValidationError):
        return f"not valid JSON: {text.removeprefix('JSON is malformed: ')}"
    if len(path_of(name)) > 1:
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            row = None
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
            return f"no field {name!r}: {'.'.join(at)!r} is {_kind(value)}, not an object"
        if part not in value:
            return f"no field {name!r}"
        value = value[part]
        at.append(part)
    return f"field {name!r} is {_kind(value)}, where text should be"


def _kind(value: Any) -> str:
    names = {"NoneType": "null", "dict": "object", "list": "array"}
    return names.get(type(value).__name__, type(value).__name__)


def has_field(row: dict[str, Any], name: str) -> bool:
    value: Any = row
    if name in row:
        return True
    for part in path_of(name):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


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
    return ", ".join(names[:SHOWN]) + (" ..." if len(names) > SHOWN else "")
