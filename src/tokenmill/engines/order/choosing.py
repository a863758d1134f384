"""Between the halves of a mixed job: how much of each source is taken, and which documents.

All documents are encoded, sorted by key, and in files of the work folder. Their keys and lengths
are read a few times, in blocks: first to count what there is, then to find the bound up to which
documents are taken, at last to count what is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.engines.order.sorted_run import CONTINUED, Entries, SortedRun
from tokenmill.engines.writing.stream_writer import StreamWriter
from tokenmill.errors import UsageError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.durability import UnitTable
from tokenmill.planning.mixture.budgets import budgets
from tokenmill.planning.mixture.mix_file import Mixture
from tokenmill.planning.plan import Plan
from tokenmill.texts import I64
from tokenmill.tokens.counts import Counts, MixCounts
from tokenmill.tokens.epochs import Amounts, Choice, choose

if TYPE_CHECKING:
    from tokenmill.engines.run import EncodingRun

BLOCK = 1 << 18  # entries that are read at once: 8 MB
MOST_COPIES = 1_000  # of a document: each copy of a unit is a file of its own, and a task


class ChosenDocuments(msgspec.Struct, frozen=True):
    """How often documents of each source of the mixture are taken; counts for each input file."""

    choices: tuple[Choice, ...]
    group_of: tuple[int, ...]  # of each input file: its source of the mixture
    by_source: list[Counts]
    mix_counts: list[MixCounts]

    def choice_for(self, unit: UnitId) -> Choice:
        return self.choices[self.group_of[unit.source]]


def choose_documents(run: EncodingRun) -> ChosenDocuments | None:
    """What a mixture takes of each source, once all is encoded; None where there is no mixture.
    Raises if the mixture cannot be met: nothing is written then, and amounts may change."""
    if run.plan.settings.mixture is None:
        return None
    writer = StreamWriter(run.plan.settings, run.books.workspace.open_files())
    with contextlib.closing(writer.files):
        return _chosen(run.plan, run.books.ledger, writer.open_sorted, run.check_interrupt)


def _chosen(
    plan: Plan,
    ledger: UnitTable,
    open_run: Callable[[UnitId], SortedRun],
    check_interrupt: Callable[[], None],
) -> ChosenDocuments:
    mixed = plan.settings.mixture
    assert mixed is not None
    mixture, names = Mixture.of(mixed), mixed.names
    group_of = tuple(names.index(source.mix) for source in plan.sources)
    units: list[list[UnitId]] = [[] for _ in names]
    for unit in ledger.all_units():
        units[group_of[unit.source]].append(unit)

    def train(group: int) -> Iterator[tuple[UnitId, Entries, I64]]:
        for unit in units[group]:
            check_interrupt()
            for entries, lengths in _blocks(open_run(unit), 0):
                yield unit, entries, lengths

    def amounts(group: int) -> Iterator[Amounts]:
        for _, entries, lengths in train(group):
            begun = (entries["flags"] & CONTINUED == 0).astype(np.int64)
            yield entries["key"], lengths if mixed.unit == "tokens" else begun

    there = [sum(int(part.sum()) for _, part in amounts(group)) for group in range(len(names))]
    try:
        wanted = budgets(mixture, there)
    except UsageError as error:
        hint = (
            f"{error.hint}. With other weights, amounts or max_epochs in the mix.toml, the same "
            "command goes on and encodes nothing again; other sources or inputs need --overwrite"
        )
        raise error.advised(hint) from None
    choices = tuple(
        choose(lambda group=group: amounts(group), budget.there, budget.amount)  # type: ignore[misc]
        for group, budget in enumerate(wanted)
    )
    counted = [MixCounts() for _ in plan.sources]
    for group, choice in enumerate(choices):
        for unit, entries, lengths in train(group):
            _count(counted[unit.source], choice, entries, lengths)
    by_source = [_taken(*pair) for pair in zip(ledger.by_source, counted, strict=True)]
    return ChosenDocuments(choices, group_of, by_source, counted)


def _blocks(run: SortedRun, stream: int) -> Iterator[tuple[Entries, I64]]:
    """Entries and their lengths, some at a time."""
    end = 0
    for first in range(0, run.sections[stream].entries, BLOCK):
        stop = min(first + BLOCK, run.sections[stream].entries)
        entries = run.entries(stream, first, stop)
        ends = entries["end"].astype(np.int64)
        yield entries, np.diff(ends, prepend=end)
        end = int(ends[-1])


def _count(counts: MixCounts, choice: Choice, entries: Entries, lengths: I64) -> None:
    copies = choice.copies(entries["key"])
    begun = entries["flags"] & CONTINUED == 0
    counts.there_documents += int(begun.sum())
    counts.there_tokens += int(lengths.sum())
    counts.taken_documents += int((begun & (copies > 0)).sum())
    counts.taken_tokens += int((lengths * copies).sum())
    counts.copies += int((np.maximum(copies, 1) - 1)[begun].sum())


def _taken(encoded: Counts, train: MixCounts) -> Counts:
    """What was encoded of an input file, without the documents that are not taken."""
    missing = train.there_documents - train.taken_documents
    return msgspec.structs.replace(
        encoded,
        documents=encoded.documents - missing,
        tokens=encoded.tokens - train.there_tokens + train.taken_tokens,
        not_chosen=encoded.not_chosen + missing,
        copies=train.copies,
    )


def parts_of(runs: Sequence[UnitId], chosen: ChosenDocuments) -> list[tuple[int, int]]:
    """The runs that documents are taken from: the number of a unit and of a copy. All first
    copies of a source that is taken whole are the unit itself, and not among these."""
    copies = max((chosen.choice_for(unit).most for unit in runs), default=0)
    if copies > MOST_COPIES:
        raise UsageError(
            f"the mixture takes documents of a source {copies:,} times, and {MOST_COPIES:,} times "
            "is the most",
            hint="lower max_epochs, its weight or the total; or repeat the texts in its files",
        )
    return [
        (number, copy)
        for number, unit in enumerate(runs)
        for copy in range(chosen.choice_for(unit).most)
        if copy or not chosen.choice_for(unit).whole
    ]
