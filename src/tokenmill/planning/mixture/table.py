"""The table of a mixture: what each source has, what is taken of it, in how many epochs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from tokenmill.errors import UsageError, warning
from tokenmill.planning.mixture.budgets import Budget, asked_amounts, budgets
from tokenmill.planning.mixture.mix_file import Mixture
from tokenmill.settings import MixSettings
from tokenmill.tokens.counts import MixCounts


class MixRow(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a mixture. Documents of the validation split count neither as there nor as
    taken. `taken_documents` counts copies; `share`: of all tokens that are taken."""

    source: str
    there_documents: int
    there_tokens: int
    taken_documents: int
    taken_tokens: int
    epochs: float
    share: float
    estimated: bool = False  # what there is was not counted: only a part was encoded


class KnownAmount(NamedTuple):
    """What a source has to train on, known before anything is encoded."""

    tokens: int
    documents: int

    def of(self, unit: str) -> int:
        return self.tokens if unit == "tokens" else self.documents


def mix_rows(mixture: MixSettings, counts: Sequence[MixCounts]) -> list[MixRow]:
    """`counts`: of each source of the mixture, in its order."""
    total = sum(one.taken_tokens for one in counts)
    rows = []
    for name, one in zip(mixture.names, counts, strict=True):
        documents = one.taken_documents + one.copies
        taken, there = one.taken_tokens, one.there_tokens
        if mixture.unit == "documents":
            taken, there = documents, one.there_documents
        row = MixRow(
            source=name,
            there_documents=one.there_documents,
            there_tokens=one.there_tokens,
            taken_documents=documents,
            taken_tokens=one.taken_tokens,
            epochs=round(taken / max(1, there), 4),
            share=round(one.taken_tokens / max(1, total), 6),
            estimated=one.estimated,
        )
        rows.append(row)
    return rows


def manifest_rows(settings: dict[str, Any], sources: Iterable[dict[str, Any]]) -> list[MixRow]:
    """The table of a finished dataset, from its manifest; empty where it is no mixture."""
    if "mixture" not in settings:
        return []
    mixture = msgspec.convert(settings["mixture"], MixSettings)
    counts = {name: MixCounts() for name in mixture.names}
    for source in sources:
        counts[source["mix"]].add(msgspec.convert(source["train"], MixCounts))
    return mix_rows(mixture, list(counts.values()))


def estimated_rows(
    mixture: MixSettings,
    tokens: Sequence[int],
    documents: Sequence[int],
    known: Collection[str] = (),
) -> tuple[list[MixRow], list[str]]:
    """What a run would take, if sources have so many tokens and documents to train on; with a
    warning if the mixture cannot be met then. `known`: sources of which this is no estimate."""
    there = tokens if mixture.unit == "tokens" else documents
    whole = Mixture.of(mixture)
    try:
        estimated = any(name not in known for name in mixture.names)
        found, warnings = budgets(whole, there, estimated=estimated), []
    except UsageError as error:
        warnings = [warning(f"{' '.join(error.message.split())} ({error.hint})")]
        try:
            amounts = asked_amounts(whole, there)
        except UsageError:
            return [], warnings
        found = [
            Budget(source=name, there=has, amount=amount)
            for name, has, amount in zip(mixture.names, there, amounts, strict=True)
        ]
    rows = _rows(mixture, found, tokens, documents)
    marked = [msgspec.structs.replace(row, estimated=row.source not in known) for row in rows]
    return marked, warnings


def _rows(
    mixture: MixSettings, found: list[Budget], tokens: Sequence[int], documents: Sequence[int]
) -> list[MixRow]:
    counts = [
        MixCounts(
            there_documents=its_documents,
            there_tokens=its_tokens,
            taken_documents=round(its_documents * budget.epochs),
            taken_tokens=round(its_tokens * budget.epochs),
        )
        for budget, its_tokens, its_documents in zip(found, tokens, documents, strict=True)
    ]
    return mix_rows(mixture, counts)


def table_lines(rows: Sequence[MixRow], *, estimated: bool = False) -> list[str]:
    """For a terminal. All documents are counted, and copies of them."""
    if not rows:
        return []
    head = ("tokens there", "tokens taken", "epochs", "share")
    cells = [
        (
            f"{'about ' * r.estimated}{r.there_tokens:,}",
            f"{r.taken_tokens:,}",
            f"{r.epochs:.2f}",
            f"{100 * r.share:.2f} %",
        )
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    name = max(len("mixture"), *(len(row.source) for row in rows))
    lines = []
    for first, line in zip(("mixture", *(r.source for r in rows)), (head, *cells), strict=True):
        shown = "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        lines.append(f"{first:{name}}  {shown}")
    return [*lines, "(estimated)"] if estimated else lines
