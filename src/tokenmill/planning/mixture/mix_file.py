"""A mixture as a user writes it: `mix.toml`, read strictly.

Keys of the file are `tokens` or `documents` (the total), `unit`, and a table `[source.NAME]` for
each source of the mixture. A source of a mixture is a named group of inputs, with its share.
Unknown keys, values of a wrong type and amounts that contradict each other are errors. Relative
paths begin at the folder of the file. Numbers stay exact: a weight of 0.1 is a tenth.
"""

from __future__ import annotations

import glob
import os
import tomllib
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import msgspec

from tokenmill.amounts import parse_count
from tokenmill.errors import UsageError, did_you_mean
from tokenmill.settings import MixSettings, MixShare, Val
from tokenmill.system.buckets.address import is_bucket

Unit = Literal["tokens", "documents"]
REST = "rest"
FRACTION_VAL = "0.0005"
DATASET = "dataset:"  # a prepared dataset as an input
MEANT = {
    "ratio": "weight", "share": "weight", "fraction": "weight", "proportion": "weight",
    "target_ratio": "weight", "paths": "inputs", "path": "inputs", "files": "inputs",
    "epochs": "max_epochs", "max_repetition_ratio": "max_epochs", "repeat": "max_epochs",
    "column": "text_column", "text_key": "text_column", "kind": "as", "sources": "source",
    "total": "tokens", "docs": "documents", "budget": "tokens",
}  # fmt: skip


class MixSource(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a mixture. Of `weight`, `amount` and `rest`, exactly one is there."""

    name: str
    inputs: tuple[str, ...]
    weight: Fraction = Fraction(0)
    amount: int = 0  # a budget of its own: tokens, or documents where these are the unit
    rest: bool = False  # what the others leave of the total
    max_epochs: Fraction = Fraction(1)
    text_column: str = ""
    as_kind: str = ""


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """All sources in the order of the file. `total` 0: the largest that is possible."""

    sources: tuple[MixSource, ...]
    unit: Unit = "tokens"
    total: int = 0

    @property
    def settings(self) -> MixSettings:
        """As a plan has it: without the inputs, which are its sources."""
        shares = tuple(
            MixShare(
                name=source.name,
                weight=REST if source.rest else str(source.weight) if source.weight else "",
                amount=source.amount,
                max_epochs=str(source.max_epochs),
            )
            for source in self.sources
        )
        return MixSettings(shares=shares, unit=self.unit, total=self.total)

    @classmethod
    def of(cls, settings: MixSettings) -> Mixture:
        sources = tuple(
            MixSource(
                name=share.name,
                inputs=(),
                weight=Fraction(0 if share.weight in ("", REST) else share.weight),
                amount=share.amount,
                rest=share.weight == REST,
                max_epochs=Fraction(share.max_epochs),
            )
            for share in settings.shares
        )
        return cls(sources=sources, unit=settings.unit, total=settings.total)


def read_mixture(path: str | os.PathLike[str]) -> Mixture:
    """The mixture that a file describes."""
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            # A Decimal is what is written; a float of 0.1 is not a tenth.
            content = tomllib.loads(file.read().decode(), parse_float=Decimal)
    except OSError as error:
        raise UsageError(f"--mix {path}: {error.strerror or error}") from None
    except ValueError as error:  # of TOML, and of UTF-8
        raise UsageError(f"{path}: is not TOML: {error}") from None
    try:
        return parse_mixture(content, os.path.dirname(path))
    except UsageError as error:
        raise error.located(path) from None


def parse_mixture(content: dict[str, Any], folder: str = "") -> Mixture:
    """The content of a mix.toml; `folder`: where relative paths begin."""
    _refuse_unknown("", content, ("tokens", "documents", "unit", "source"))
    tables = content.get("source")
    if not isinstance(tables, dict) or not tables:
        raise UsageError(
            "no source is described", hint="add a table [source.NAME] with inputs and a weight"
        )
    unit = _unit(content, tables)
    total = _amount("", content, unit)
    sources = tuple(_source(name, table, unit, folder) for name, table in tables.items())
    _check_shares(sources)
    return Mixture(sources=sources, unit=unit, total=total)


def _unit(content: dict[str, Any], tables: dict[str, Any]) -> Unit:
    unit = content.get("unit", "tokens")
    if unit not in ("tokens", "documents"):
        near = did_you_mean(str(unit), ("tokens", "documents"), {"docs": "documents"})
        hint = f"{near}weights count tokens or documents"
        raise UsageError(f"unit: must be 'tokens' or 'documents', not {unit!r}", hint=hint)
    other = "documents" if unit == "tokens" else "tokens"
    named = [table for table in tables.values() if isinstance(table, dict)]
    if any(other in table for table in (content, *named)):
        raise UsageError(
            f"{other}: the unit of this mixture is {unit}",
            hint=f"write {unit} = ..., or unit = '{other}' at the beginning of the file",
        )
    return "tokens" if unit == "tokens" else "documents"


def _source(name: str, table: Any, unit: Unit, folder: str) -> MixSource:
    where = f"source {name}"
    if not name or not name.isprintable():
        raise UsageError(f"source {name!r}: cannot be a name", hint="use letters and digits")
    if not isinstance(table, dict):
        raise UsageError(f"{where}: must be a table", hint=f"write [source.{name}]")
    _refuse_unknown(where, table, ("inputs", "weight", unit, "max_epochs", "text_column", "as"))
    inputs = _inputs(where, table.get("inputs"), folder)
    weight, amount = table.get("weight"), _amount(where, table, unit)
    if (weight is None) == (unit not in table):
        what = "neither a weight nor a budget" if weight is None else "a weight and a budget"
        raise UsageError(
            f"{where}: has {what}",
            hint=f"give it one of weight = 3, weight = 'rest' and {unit} = '5B'",
        )
    rest = weight == REST
    if isinstance(weight, str) and not rest:
        near = did_you_mean(weight, (REST,))
        raise UsageError(f"{where}: weight {weight!r}: must be a number or 'rest'", hint=near)
    return MixSource(
        name=name,
        inputs=inputs,
        weight=Fraction(0) if rest or weight is None else _positive(where, "weight", weight),
        amount=amount,
        rest=rest,
        max_epochs=_positive(where, "max_epochs", table.get("max_epochs", 1)),
        text_column=_text(where, "text_column", table),
        as_kind=_text(where, "as", table),
    )


def _refuse_unknown(where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            meant = {word: name for word, name in MEANT.items() if name in known}
            raise UsageError(
                f"{where + ': ' if where else ''}{key}: no such key",
                hint=f"{did_you_mean(key, known, meant)}known are {', '.join(known)}",
            )


def _inputs(where: str, value: Any, folder: str) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise UsageError(
            f"{where}: inputs: must be a list of files, folders, globs or URLs",
            hint='write inputs = ["data/*.parquet"]',
        )
    if not listed or "" in listed:
        raise UsageError(
            f"{where}: inputs: is empty", hint="name the files, folders, globs or URLs with text"
        )
    for one in listed:
        if listed.count(one) > 1:
            raise UsageError(f"{where}: inputs: {one} is named twice")
        if one == "-":
            raise UsageError(f"{where}: inputs: standard input cannot be in a mixture")
        if one.startswith(DATASET):
            _check_dataset(f"{where}: inputs: {one}", one.removeprefix(DATASET))
    return tuple(_joined(folder, one) for one in listed)


def _check_dataset(where: str, path: str) -> None:
    if not path or ("://" in path and not is_bucket(path)):
        what = "names no folder" if not path else "is not on this machine"
        raise UsageError(
            f"{where}: {what}",
            hint='write inputs = ["dataset:DIR"], DIR as seen from this file, or an address (s3://)',
        )


def _joined(folder: str, name: str) -> str:
    """As seen from here; of a folder's name with brackets in it, no pattern is made."""
    if name.startswith(DATASET) and not is_bucket(name.removeprefix(DATASET)):
        return DATASET + os.path.join(folder, name.removeprefix(DATASET))
    if "://" in name or os.path.isabs(name) or not folder:
        return name
    has_pattern = glob.has_magic(name) and not os.path.exists(os.path.join(folder, name))
    return os.path.join(glob.escape(folder) if has_pattern else folder, name)


def _text(where: str, key: str, table: dict[str, Any]) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or (key in table and not value):
        raise UsageError(f"{where}: {key}: must be text that is not empty")
    return value


def _amount(where: str, table: dict[str, Any], unit: Unit) -> int:
    """A count of tokens or documents: a whole number, or text such as '100B'. 0: none is given."""
    if unit not in table:
        return 0
    value, what = table[unit], f"{where + ': ' if where else ''}{unit}"
    if isinstance(value, str):
        number = parse_count(billions(value), what=what)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = parse_count(value, what=what)
    else:
        raise UsageError(f"{what}: must be a whole number or text such as '100B'")
    if number < 1:
        raise UsageError(f"{what}: must be at least 1", hint="or leave it out")
    return number


def billions(text: str) -> str:
    """`100B` as `100G`: of tokens, B is a billion, and a byte nowhere."""
    return text[:-1] + "G" if text[-1:] in ("B", "b") and text[-2:-1].isdigit() else text


def _positive(where: str, key: str, value: Any) -> Fraction:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or (isinstance(value, Decimal) and not value.is_finite()):
        raise UsageError(f"{where}: {key}: must be a number, not {value!r}")
    if value <= 0:
        hint = "leave the source out" if key == "weight" else "1.0: each document at most once"
        raise UsageError(f"{where}: {key} = {value}: must be above 0", hint=hint)
    if abs(Decimal(value).adjusted()) > 18:
        raise UsageError(f"{where}: {key} = {value}: is too large or too small")
    return Fraction(value)


def _check_shares(sources: tuple[MixSource, ...]) -> None:
    """At most one takes the rest, and then the others leave one."""
    rests = [source.name for source in sources if source.rest]
    if len(rests) > 1:
        raise UsageError(
            f"sources {' and '.join(rests)}: only one can have weight = 'rest'",
            hint="give the others a weight",
        )
    weights = sum((source.weight for source in sources), Fraction(0))
    if rests and weights >= 1:
        raise UsageError(
            f"source {rests[0]}: the weights of the others sum to {show_fraction(weights)}, which "
            "leaves nothing for weight = 'rest'",
            hint="beside 'rest', a weight is a share of the total: 0.6 is 60 %",
        )


def show_fraction(value: Fraction) -> str:
    """At most four decimals, none where there are none."""
    text = f"{value.numerator * 10000 // value.denominator / 10000:.4f}"
    return text.rstrip("0").rstrip(".")


def mixture_val(val: Val, is_default: bool) -> Val:
    """A document of the validation split must be in no epoch of the other one, so that the split
    cannot be a part of the stream."""
    if val.kind in ("fraction", "none"):
        return val
    if is_default:
        return Val.parse(FRACTION_VAL)
    raise UsageError(
        f"--val {val}: cannot be the validation split of a mixture",
        hint="use a fraction of the documents, such as --val 0.0005, or --val none",
    )
