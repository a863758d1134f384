"""Mixtures that other tools describe, as a mix.toml: Megatron, OLMo-core and levanter.

Trainers name files of tokens, or text files. Text files become inputs. The text of token files is
not known: their source gets no inputs, and a comment that names the token files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

import msgspec

from tokenmill.errors import InputError, UsageError, printable
from tokenmill.inputs.kinds import kind_of_path
from tokenmill.inputs.remote.address import is_url
from tokenmill.planning.mixture.yaml_subset import Value, read_yaml

MOST_FILES = 100_000  # that a pattern in braces may stand for
TOKENS_OF = "_text_document"  # what Megatron's tool adds to a name


class ForeignSource(msgspec.Struct, frozen=True, kw_only=True):
    """One source as the other tool names it. `tokens`: files that are not text."""

    name: str
    weight: Decimal
    inputs: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    max_epochs: Decimal = Decimal(1)
    text_column: str = ""
    comment: str = ""


class ForeignMix(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    sources: tuple[ForeignSource, ...]
    total: int = 0
    comment: str = ""

    @property
    def without_text(self) -> list[str]:
        return [source.name for source in self.sources if not source.inputs]


REPEATS = "{} repeats a source that is too short; here, max_epochs says how often at most."


def read_foreign(words: Sequence[str]) -> ForeignMix:
    """What is typed: a YAML file, a data-args file, or the words of Megatron's --data-path."""
    if len(words) == 1 and os.path.splitext(words[0])[1].lower() in (".yaml", ".yml"):
        return _located(words[0], _from_yaml)
    if len(words) == 1 and os.path.isfile(words[0]):
        return _located(words[0], lambda text: from_megatron(text.split()))
    return from_megatron(words)


def _located(path: str, read: Callable[[str], ForeignMix]) -> ForeignMix:
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not text in UTF-8") from None
    try:
        return read(content)
    except UsageError as error:
        raise error.located(path) from None


def _from_yaml(text: str) -> ForeignMix:
    root = read_yaml(text)
    if isinstance(root, dict):
        for inner in (root, root.get("data")):
            if isinstance(inner, dict) and "train_weights" in inner:
                return from_levanter(inner)
        for inner in (root, root.get("source_list"), root.get("source_mixture_config")):
            if isinstance(inner, dict) and "sources" in inner:
                return from_olmo(inner, root)
    raise UsageError(
        "is neither a mixture of OLMo-core (sources) nor one of levanter (train_weights)",
        hint="name the file that has one of these keys",
    )


# --- Megatron --------------------------------------------------------------------------------


def from_megatron(words: Sequence[str]) -> ForeignMix:
    """`0.3 a_text_document 0.7 b_text_document`, as Megatron reads it."""
    weights = [_decimal(word) for word in words[::2]]
    if not words or len(words) % 2 or None in weights:
        raise UsageError(
            "not a list of weights and prefixes, such as 0.3 web_text_document 0.7 code",
            hint="without weights Megatron takes everything: `tokenmill prepare` with all inputs "
            "does that without a mix.toml",
        )
    names = _unique([_name_of(prefix) for prefix in words[1::2]])
    sources = [
        ForeignSource(name=name, weight=_weight(name, weight), tokens=(f"{prefix}.bin",))
        for name, weight, prefix in zip(names, weights, words[1::2], strict=True)
    ]
    return ForeignMix(tool="Megatron", sources=_used(sources), comment=REPEATS.format("Megatron"))


def _name_of(prefix: str) -> str:
    return os.path.basename(prefix.rstrip("/")).removesuffix(TOKENS_OF) or "source"


def _unique(names: Iterable[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        one, number = name, 1
        while one in found:
            number += 1
            one = f"{name}-{number}"
        found.append(one)
    return found


# --- OLMo-core -------------------------------------------------------------------------------


def from_olmo(listed: Mapping[str, Value], root: Mapping[str, Value]) -> ForeignMix:
    """OLMo-core's `SourceMixtureList`, with `requested_tokens` where the file has it."""
    sources = []
    for number, entry in enumerate(_list("sources", listed["sources"]), 1):
        table = _mapping(f"source {number}", entry)
        name = _text(f"source {number}: source_name", table.get("source_name"))
        fraction, repeated = (
            _weight(f"{name}: {key}", _decimal(_text(f"{name}: {key}", table.get(key, "1"))))
            for key in ("max_source_fraction", "max_repetition_ratio")
        )
        ratio = _text(f"{name}: target_ratio", table.get("target_ratio"))
        text, tokens = _sorted(_texts(f"{name}: paths", table.get("paths")))
        source = ForeignSource(
            name=name,
            weight=_weight(name, _decimal(ratio)),
            inputs=text,
            tokens=tokens,
            max_epochs=fraction * repeated,
        )
        sources.append(source)
    asked = root.get("requested_tokens", root.get("max_tokens", "0"))
    total = _text("requested_tokens", asked).replace("_", "")
    if not re.fullmatch("[0-9]{1,18}", total):
        raise UsageError(f"requested_tokens: {total!r} is not a whole number")
    return ForeignMix(tool="OLMo-core", sources=_used(sources), total=int(total))


# --- levanter --------------------------------------------------------------------------------


def from_levanter(data: Mapping[str, Value]) -> ForeignMix:
    """levanter's mixture of datasets: `configs` or `components`, and `train_weights`."""
    weights = data["train_weights"]
    if isinstance(weights, list):
        raise UsageError(
            "train_weights: changes during training, which one dataset cannot",
            hint="make a mix.toml and a dataset for each stage: give the weights of one stage",
        )
    described = _mapping("configs", data.get("configs", data.get("components", {})))
    sources = []
    for name, weight in _mapping("train_weights", weights).items():
        if name not in described:
            raise UsageError(f"train_weights: {name} is not described in configs")
        number = _weight(name, _decimal(_text(f"train_weights: {name}", weight)))
        sources.append(_levanter_source(name, number, _mapping(name, described[name])))
    return ForeignMix(tool="levanter", sources=_used(sources), comment=REPEATS.format("levanter"))


def _levanter_source(name: str, weight: Decimal, table: Mapping[str, Value]) -> ForeignSource:
    origin = _mapping(f"{name}: source", table.get("source") or table)
    form = _mapping(f"{name}: format", table.get("format") or {})
    column = form.get("text_key", origin.get("text_key", table.get("text_key", "")))
    text_column = _text(f"{name}: text_key", column) if column else ""
    if isinstance(origin.get("id"), str):
        part = origin.get("name") or ""
        return ForeignSource(
            name=name,
            weight=weight,
            inputs=(f"hf://datasets/{origin['id']}",),
            text_column=text_column,
            comment=f"of the part {part!r}: name its files" if part else "",
        )
    urls = _texts(f"{name}: train_urls", origin.get("train_urls", ""))
    text, tokens = _sorted(url for pattern in urls for url in braces(pattern))
    return ForeignSource(
        name=name, weight=weight, inputs=text, tokens=tokens, text_column=text_column
    )


def braces(pattern: str) -> list[str]:
    """`x{08..10}` as x08, x09, x10 and `x{a,b}` as xa, xb, as a shell does it."""
    found = [pattern]
    while match := re.search(r"\{([^{}]*,[^{}]*|[0-9]{1,9}\.\.[0-9]{1,9})\}", found[0]):
        first, dots, last = match[1].partition("..")
        parts = match[1].split(",")
        if dots and "," not in match[1]:
            width = max(len(first), len(last)) if "0" in (first[0], last[0]) else 0
            if abs(int(last) - int(first)) >= MOST_FILES:
                raise UsageError(f"{pattern}: stands for too many files")
            parts = [f"{n:0{width}}" for n in range(int(first), int(last) + 1)]
        if not parts or len(parts) * len(found) > MOST_FILES:
            raise UsageError(f"{pattern}: stands for no files or too many")
        found = [one.replace(match[0], part, 1) for one in found for part in parts]
    return found


# --- values ----------------------------------------------------------------------------------


def _sorted(paths: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those that hold text, as far as their names tell, and the others."""
    text, other = [], []
    for path in paths:
        try:
            kind_of_path(path, searched=True)
        except InputError:
            other.append(path)
        else:
            text.append(path)
    return tuple(text), tuple(other)


def _used(sources: list[ForeignSource]) -> tuple[ForeignSource, ...]:
    """Without those of weight 0, which a trainer only validates on."""
    found = tuple(source for source in sources if source.weight)
    if not found:
        raise UsageError("no source has a weight above 0")
    return found


def _decimal(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= 18 else None


def _weight(what: str, number: Decimal | None) -> Decimal:
    if number is None or number < 0:
        raise UsageError(f"{what}: must be a number that is not below 0")
    return number


def _text(what: str, value: Value | None) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{what}: must be text or a number" if value else f"{what}: is missing")
    return value


def _list(what: str, value: Value | None) -> list[Value]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{what}: must be a list that is not empty")
    return value


def _texts(what: str, value: Value | None) -> list[str]:
    if isinstance(value, str) and value:
        return [value]
    return [_text(what, one) for one in _list(what, value)]


def _mapping(what: str, value: Value | Mapping[str, Value]) -> Mapping[str, Value]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}: must be a mapping")
    return value


# --- mix.toml --------------------------------------------------------------------------------


def mix_toml(mix: ForeignMix, folder: str = "") -> str:
    """The text of a mix.toml that is to be in `folder`."""
    lines = [f"# A mixture of {mix.tool}, for tokenmill."]
    lines += [f"# {mix.comment}"] if mix.comment else []
    lines += [f"tokens = {mix.total}"] if mix.total else []
    for source in mix.sources:
        lines += ["", f"[source.{_key(source.name)}]"]
        lines += [f"# {_one_line(source.comment)}"] if source.comment else []
        lines += [f"# tokens of: {_one_line(path)}" for path in source.tokens[:20]]
        if len(source.tokens) > 20:
            lines.append(f"# and of {len(source.tokens) - 20} more files")
        if not source.inputs:
            lines.append("# Name the text files that these tokens were made of:")
        lines += _inputs_lines([_relative(folder, path) for path in source.inputs])
        lines.append(f"weight = {_number(source.weight)}")
        if source.max_epochs != 1:
            lines.append(f"max_epochs = {_number(source.max_epochs)}")
        if source.text_column:
            lines.append(f"text_column = {_quoted(source.text_column)}")
    return "\n".join(lines) + "\n"


def _inputs_lines(inputs: list[str]) -> list[str]:
    if len(inputs) < 2:
        return [f"inputs = [{', '.join(map(_quoted, inputs))}]"]
    return ["inputs = [", *(f"    {_quoted(one)}," for one in inputs), "]"]


def _relative(folder: str, path: str) -> str:
    stays = not folder or is_url(path) or os.path.isabs(path)
    return path if stays else os.path.relpath(path, folder)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _number(value: Decimal) -> str:
    """In digits, with a point where there is a fraction."""
    return f"{value:f}"
