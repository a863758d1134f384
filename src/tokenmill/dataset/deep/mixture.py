"""Did a mixture take the right documents, and each of them as often as it should?

A source has more documents than a computer remembers. But its documents are taken by their choice
keys: all of them `whole` times, and those up to a bound once more. So a few numbers for each number
of copies are enough: how much was taken so often, and the smallest and the largest choice key.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tokenmill.dataset.deep.origins import Problem
from tokenmill.errors import UsageError
from tokenmill.planning.mixture.budgets import budgets
from tokenmill.planning.mixture.mix_file import Mixture
from tokenmill.settings import MixSettings
from tokenmill.texts import I64
from tokenmill.tokens.counts import MixCounts
from tokenmill.tokens.epochs import choice_keys, copy_keys
from tokenmill.tokens.splits import U64

ESTIMATED = ("there_documents", "there_tokens", "bound")  # of a source that is taken in part


class _Level(msgspec.Struct):
    """Documents that were taken equally often. Keys are choice keys, with the row that has them."""

    amount: int = 0
    first: tuple[int, str, int] = (1 << 64, "", -1)
    last: tuple[int, str, int] = (-1, "", -1)
    last_amount: int = 0  # of the documents with the largest key

    def add(self, source: str, rows: I64, keys: U64, amounts: I64) -> None:
        self.amount += int(amounts.sum())
        low, high = int(keys.argmin()), int(keys.argmax())
        self.first = min(self.first, (int(keys[low]), source, int(rows[low])))
        last = int(keys[high]), source, int(rows[high])
        if last[0] >= self.last[0]:
            here = int(amounts[keys == keys[high]].sum())
            self.last_amount = here + (self.last_amount if last[0] == self.last[0] else 0)
            self.last = last


class ChoiceCheck:
    """What a mixture took of one of its sources, as far as it was read again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.levels: dict[int, _Level] = {}  # by how often a document is there
        self._lock = threading.Lock()

    def note(self, source: str, rows: I64, keys: U64, copies: I64, amounts: I64) -> None:
        """Documents that could have been taken, and how often each is there."""
        choice = choice_keys(keys)
        with self._lock:
            for often in np.unique(copies).tolist():
                mine = copies == often
                level = self.levels.setdefault(often, _Level())
                level.add(source, rows[mine], choice[mine], amounts[mine])

    def problems(self) -> Iterator[Problem]:
        """Documents that are there too often or too rarely beside the others."""
        if not self.levels:
            return
        least, most = min(self.levels), max(self.levels)
        few, many = self.levels[least], self.levels[most]
        if most - least > 1:
            _, source, row = many.last
            message = (
                f"{source}: row {row} is there {most} times, row {few.first[2]} of "
                f"{few.first[1]} {least} times: epochs of {self.name} differ by more than one"
            )
            yield Problem(message, "choice", source, row)
        elif most > least and many.last[0] >= few.first[0]:
            _, source, row = few.first
            message = (
                f"{source}: row {row} is there {least} times, but its choice key is before that "
                f"of {many.last[1]}, row {many.last[2]}, which is there {most} times"
            )
            yield Problem(message, "choice", source, row)

    def budget_problems(self, whole: int, part: int, unit: str) -> Iterator[Problem]:
        """All documents were read: is so much taken as the mixture asks for?"""
        if wrong := sorted(self.levels.keys() - {whole, whole + 1}):
            message = (
                f"source {self.name}: documents are there {wrong[0]} times, by the mixture "
                f"{whole} or {whole + 1} times"
            )
            yield Problem(message, "choice")
            return
        level = self.levels.get(whole + 1, _Level())
        if level.amount < part or (level.amount and level.amount - level.last_amount >= part):
            message = (
                f"source {self.name}: {level.amount} {unit} are taken in the last epoch, "
                f"{part} are asked for and the document that reaches this is the last"
            )
            yield Problem(message, "choice")


def copies_in_order(keys: U64, copies: I64) -> U64:
    """The keys of all copies of documents: document by document, the smallest key first."""
    numbers, found = [], []
    for copy in range(int(copies.max(initial=0))):
        mine = np.flatnonzero(copies > copy)
        numbers.append(mine)
        found.append(copy_keys(keys[mine], copy))
    if not found:
        return np.zeros(0, np.uint64)
    of, every = np.concatenate(numbers), np.concatenate(found)
    return every[np.lexsort((every, of))]


class MixtureCheck:
    """The choices of all sources of a mixture; and what was counted of each input file."""

    def __init__(self, mixture: MixSettings, sources: Sequence[dict[str, Any]]) -> None:
        self.mixture = mixture
        self.group_of = [mixture.names.index(source["mix"]) for source in sources]
        self.choices = [ChoiceCheck(name) for name in mixture.names]
        self.counts = [MixCounts() for _ in sources]
        self._lock = threading.Lock()

    def note(self, source: int, name: str, rows: I64, keys: U64, copies: I64, lengths: I64) -> None:
        """Documents of the training split that are there or could be."""
        if not len(rows):
            return
        amounts = lengths if self.mixture.unit == "tokens" else np.ones(len(rows), np.int64)
        self.choices[self.group_of[source]].note(name, rows, keys, copies, amounts)
        found = MixCounts(
            there_documents=len(rows),
            there_tokens=int(lengths.sum()),
            taken_documents=int((copies > 0).sum()),
            taken_tokens=int((lengths * copies).sum()),
            copies=int(np.maximum(copies - 1, 0).sum()),
        )
        with self._lock:
            self.counts[source].add(found)

    def problems(
        self, sources: Sequence[dict[str, Any]], read: Container[int], complete: bool
    ) -> Iterator[Problem]:
        """`read`: the numbers of the input files that were read again. `complete`: every row of
        them was, and every length is known."""
        for choice in self.choices:
            yield from choice.problems()
        if not complete:
            return
        there = [0] * len(self.choices)
        for number, (group, entry) in enumerate(zip(self.group_of, sources, strict=True)):
            told = msgspec.convert(entry["train"], MixCounts)
            counts = self.counts[number] if number in read else told
            documents = counts.there_documents, counts.there_tokens
            there[group] += documents[self.mixture.unit == "tokens"]
            for field, found in msgspec.structs.asdict(counts).items():
                said = getattr(told, field)
                if said != found and not (told.estimated and field in ESTIMATED):
                    message = (
                        f"{entry['name']}: the manifest says {said} {field} of the training split, "
                        f"its rows give {found}"
                    )
                    yield Problem(message, "count", entry["name"], expected=found, found=said)
        try:
            wanted = budgets(Mixture.of(self.mixture), there)
        except UsageError as error:
            yield Problem(f"the mixture cannot be met by its sources: {error.message}", "choice")
            return
        for choice, budget in zip(self.choices, wanted, strict=True):
            unit = self.mixture.unit
            if not choice.levels:  # `export --by-source`: of another source
                continue
            yield from choice.budget_problems(budget.whole_epochs, budget.part, unit)
