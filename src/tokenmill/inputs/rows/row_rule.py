"""Which rows become documents, and what their text is: the filter and the template of a plan."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokenmill.inputs.rows.template import RowFaultError, Template, parse_template
from tokenmill.inputs.rows.where import Node, columns_of, parse_where
from tokenmill.settings import Reading

NULL = "null, where text should be"


class RowRule(NamedTuple):
    text_column: str
    template: Template | None
    where: Node | None

    @property
    def columns(self) -> tuple[str, ...]:
        """All that is read of a row, each once; the text first."""
        texts = self.template.fields if self.template else (self.text_column,)
        wanted = columns_of(self.where) if self.where else ()
        return tuple(dict.fromkeys((*texts, *wanted)))

    def text(self, row: Mapping[str, Any]) -> bytes | None:
        """The document of a row; None: the row is not wanted. RowFaultError: it has none."""
        if self.where is not None and not self.where.holds(row):
            return None
        if self.template is not None:
            return self.template.text(row)
        return plain_text(row, self.text_column)


def plain_text(row: Mapping[str, Any], name: str) -> bytes:
    if name not in row:
        raise RowFaultError(f"no field {name!r}")
    value = row[name]
    if value is None:
        raise RowFaultError(f"field {name!r} is {NULL}")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise RowFaultError(f"field {name!r} is {type(value).__name__}, where text should be")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise RowFaultError(f"field {name!r} is not valid Unicode") from None


@functools.lru_cache(maxsize=8)
def rule_of(reading: Reading) -> RowRule | None:
    """None where every row is a document, and its text is one column."""
    if not reading.template and not reading.where:
        return None
    return RowRule(
        reading.text_column,
        parse_template(reading.template) if reading.template else None,
        parse_where(reading.where) if reading.where else None,
    )


def columns_needed(reading: Reading) -> tuple[str, ...]:
    """The columns that a template or a filter reads; empty where there is neither."""
    rule = rule_of(reading)
    return rule.columns if rule else ()


def columns_read(reading: Reading) -> tuple[str, ...]:
    """The columns that a file must have."""
    rule = rule_of(reading)
    return rule.columns if rule else (reading.text_column,)
