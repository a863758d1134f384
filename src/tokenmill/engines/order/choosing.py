"""Between the halves of a mixed job: how much of each source is taken, and which documents.

Documents are encoded, sorted by key, and in files of the work folder. Their keys and lengths are
read a few times, in blocks: first to count what there is, then to find the bound up to which
documents are taken, at last to count what is taken. Where a source was encoded in part, and the
part is too small, another pass over its inputs is asked for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.engines.writing.stream_writer import StreamWriter
from tokenmill.errors import UsageError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.durability import UnitTable
from tokenmill.output.order.sorted_run import CONTINUED, OPEN, Entries, SortedRun
from tokenmill.planning.mixture.bounds import MORE, needed_of, next_bound, sources_in_part
from tokenmill.planning.mixture.budgets import budgets
from tokenmill.planning.mixture.mix_file import Mixture
from tokenmill.planning.plan import Plan
from tokenmill.settings import Layout, PlanSettings
from tokenmill.texts import I64, Flags
from tokenmill.tokens.counts import Counts, MixCounts
from tokenmill.tokens.epochs import EVERYTHING, Amounts, Choice, choose
from tokenmill.tokens.order import STEPS, origin_of
from tokenmill.tokens.packing import DROPPED, EMPTY, LONG, SHORT, frame_of

if TYPE_CHECKING:
    from tokenmill.engines.run import PlanRun

BLOCK = 1 << 18  # entries that are read at once: 8 MB
MOST_COPIES = 1_000  # of a document: each copy of a unit is a file of its own, and a task


class ChosenDocuments(msgspec.Struct, frozen=True):
    """How often documents of each source of the mixture are taken; counts for each input file."""

    choices: tuple[Choice, ...]
    group_of: tuple[int, ...]  # of each number of an input file, in every pass: its mixture source
    by_source: list[Counts]
    mix_counts: list[MixCounts]

    def choice_for(self, unit: UnitId) -> Choice:
        return self.choices[self.group_of[unit.source]]


class MissingDocuments(msgspec.Struct, frozen=True):
    """The bounds of the next pass: more of some sources must be encoded."""

    bounds: dict[str, int]


Passes = Sequence[dict[str, int]]  # of each pass: bounds of sources of which a part is encoded


def choose_documents(run: PlanRun, passes: Passes) -> ChosenDocuments | MissingDocuments | None:
    """What a mixture takes of each source, once enough is encoded; None where there is no mixture.
    Raises if the mixture cannot be met: nothing is written then, and amounts may change."""
    if run.plan.settings.mixture is None:
        return None
    writer = StreamWriter(run.plan.settings, run.books.workspace.open_files())
    with contextlib.closing(writer.files):
        ledger = run.books.ledger
        return _Choosing(run.plan, ledger, writer.open_sorted, run.check_interrupt, passes).chosen()


class _Choosing:
    def __init__(
        self,
        plan: Plan,
        ledger: UnitTable,
        open_run: Callable[[str, int], SortedRun],
        check_interrupt: Callable[[], None],
        passes: Passes,
    ) -> None:
        assert plan.settings.mixture is not None
        self.plan, self.ledger, self.mixed = plan, ledger, plan.settings.mixture
        self.open_run, self.check_interrupt, self.passes = open_run, check_interrupt, passes
        self.bounds = {name: bound for one in passes for name, bound in one.items()}
        self.in_part = sources_in_part(plan)
        names = self.mixed.names
        own = tuple(names.index(source.mix) for source in plan.sources)
        self.group_of = own + (-1,) * STEPS + own * (len(passes) - 1)
        self.units: list[list[UnitId]] = [[] for _ in names]
        for unit in (*ledger.all_units(), *sorted(ledger.further)):
            self.units[self.group_of[unit.source]].append(unit)

    def _train(self, group: int) -> Iterator[tuple[UnitId, Entries, I64]]:
        for unit in self.units[group]:
            self.check_interrupt()
            for entries, lengths in _blocks(self.open_run(self.ledger.run_file(unit), 0), 0):
                yield unit, entries, lengths

    def _amounts(self, group: int) -> Iterator[Amounts]:
        for _, entries, lengths in self._train(group):
            begun = (entries["flags"] & (CONTINUED | DROPPED) == 0).astype(np.int64)
            yield entries["key"], lengths if self.mixed.unit == "tokens" else begun

    def chosen(self) -> ChosenDocuments | MissingDocuments:
        mixture, names = Mixture.of(self.mixed), self.mixed.names
        encoded = [
            sum(int(part.sum()) for _, part in self._amounts(group)) for group in range(len(names))
        ]
        # What there is of a source is known when all of it is encoded.
        is_whole = [self.bounds.get(name, EVERYTHING) == EVERYTHING for name in names]
        needs_all = [
            name
            for name, whole in zip(names, is_whole, strict=True)
            if not whole and name not in self.in_part  # its amount was changed since
        ]
        if needs_all:
            return MissingDocuments(dict.fromkeys(needs_all, EVERYTHING))
        there = [has if whole else MORE for has, whole in zip(encoded, is_whole, strict=True)]
        try:
            wanted = budgets(mixture, there)
        except UsageError as error:
            hint = (
                f"{error.hint}. With other weights, amounts or max_epochs in the mix.toml, the "
                "same command goes on and encodes nothing again; other sources or inputs need "
                "--overwrite"
            )
            raise error.advised(hint) from None
        missing = {
            budget.source: next_bound(self.bounds[budget.source], has, needed, len(self.passes))
            for source, budget, has, whole in zip(
                mixture.sources, wanted, encoded, is_whole, strict=True
            )
            for needed in [needed_of(source, budget.amount)]
            if not whole and has < needed
        }
        if missing:
            return MissingDocuments(missing)
        choices = tuple(
            choose(functools.partial(self._amounts, group), budget.whole_epochs, budget.part)
            for group, budget in enumerate(wanted)
        )
        return self._counted(choices)

    def _counted(self, choices: tuple[Choice, ...]) -> ChosenDocuments:
        count, frame = len(self.plan.sources), sum(map(len, frame_of(*self._layout)))
        counted = [MixCounts() for _ in range(count)]
        beyond = [Counts() for _ in range(count)]
        for group, choice in enumerate(choices):
            for unit, entries, lengths in self._train(group):
                source = origin_of(unit.source, count)
                _count(counted[source], choice, entries, lengths)
                if self._in_part(source, choice):
                    _count_beyond(beyond[source], choice, entries, lengths == frame)
        by_source = [
            _taken(*one) for one in zip(self.ledger.by_source, counted, beyond, strict=True)
        ]
        for number in range(count):
            choice = choices[self.group_of[number]]
            if self._in_part(number, choice):
                counted[number] = _scaled(counted[number], choice.bound)
        return ChosenDocuments(choices, self.group_of, by_source, counted)

    def _in_part(self, source: int, choice: Choice) -> bool:
        """Whether an input file may have been encoded in part: the plan says so, not the bounds."""
        return choice.whole == 0 and self.plan.sources[source].mix in self.in_part

    @property
    def _layout(self) -> tuple[PlanSettings, Layout]:
        return self.plan.settings, self.plan.settings.first


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
    begun = entries["flags"] & (CONTINUED | DROPPED) == 0
    counts.there_documents += int(begun.sum())
    counts.there_tokens += int(lengths.sum())
    counts.taken_documents += int((begun & (copies > 0)).sum())
    counts.taken_tokens += int((lengths * copies).sum())
    counts.copies += int((np.maximum(copies, 1) - 1)[begun].sum())


def _count_beyond(counts: Counts, choice: Choice, entries: Entries, is_empty: Flags) -> None:
    """Of a source that may be encoded in part: rows beyond the last one that is taken, though they
    were encoded. They count as not chosen, and not as dropped or empty: whether a row was encoded
    depends on an estimate, and the counts must not."""
    beyond = choice.copies(entries["key"]) == 0
    flags = entries["flags"]
    dropped = flags & DROPPED != 0
    is_empty = np.where(dropped, flags & EMPTY != 0, is_empty & (flags & (CONTINUED | OPEN) == 0))
    counts.dropped += int((beyond & dropped).sum())
    counts.too_short += int((beyond & (flags & SHORT != 0)).sum())
    counts.too_long += int((beyond & (flags & LONG != 0)).sum())
    counts.empty += int((beyond & is_empty).sum())


def _scaled(train: MixCounts, bound: int) -> MixCounts:
    """What a source has, from what was taken of it: choice keys are spread evenly."""
    documents, tokens = (
        (taken << 64) // (bound + 1) for taken in (train.taken_documents, train.taken_tokens)
    )
    return msgspec.structs.replace(
        train, there_documents=documents, there_tokens=tokens, bound=bound
    )


def _taken(encoded: Counts, train: MixCounts, beyond: Counts) -> Counts:
    """What was encoded of an input file, without the documents that are not taken."""
    missing = train.there_documents - train.taken_documents
    return msgspec.structs.replace(
        encoded,
        documents=encoded.documents - missing,
        dropped=encoded.dropped - beyond.dropped,
        too_short=encoded.too_short - beyond.too_short,
        too_long=encoded.too_long - beyond.too_long,
        empty=encoded.empty - beyond.empty,
        tokens=encoded.tokens - train.there_tokens + train.taken_tokens,
        not_chosen=encoded.not_chosen + missing + beyond.dropped,
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
