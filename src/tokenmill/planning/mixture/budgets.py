"""How much of each source a mixture takes: weights and budgets against what there is.

All arithmetic is exact. Amounts are tokens of the training split, or documents where these are
the unit. A budget is a multiple of what a source has (whole epochs), and a part of one more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from tokenmill.errors import UsageError
from tokenmill.planning.mixture.mix_file import MixSource, Mixture, Unit, show_fraction

LARGEST = (1 << 63) - 1


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a mixture takes of one source: `amount` of the `there` that it has in one epoch."""

    source: str
    there: int
    amount: int

    @property
    def whole_epochs(self) -> int:
        """How often every document is taken."""
        return self.amount // self.there if self.there else 0

    @property
    def part(self) -> int:
        """The amount to take in one more epoch."""
        return self.amount - self.whole_epochs * self.there if self.there else 0

    @property
    def epochs(self) -> Fraction:
        return Fraction(self.amount, self.there) if self.there else Fraction(0)


def budgets(mixture: Mixture, there: Sequence[int], *, estimated: bool = False) -> list[Budget]:
    """The amount of each source, in the order of the file; raises if it cannot be met.

    `there`: what each source has. `estimated`: for the error, that these are estimates.
    """
    _refuse_nothing_there(mixture, there)
    amounts = asked_amounts(mixture, there)
    found = [
        Budget(source=source.name, there=has, amount=amount)
        for source, has, amount in zip(mixture.sources, there, amounts, strict=True)
    ]
    _refuse_unmet(mixture, found, estimated)
    return found


def capacity(source: MixSource, there: int) -> int:
    """The most that a source can give."""
    return int(there * source.max_epochs)


def asked_amounts(mixture: Mixture, there: Sequence[int]) -> list[int]:
    """What the file asks of each source, whether or not a source has so much."""
    sources = mixture.sources
    total = mixture.total or largest_total(mixture, there)
    fixed = sum(source.amount for source in sources)
    weights = sum((source.weight for source in sources), Fraction(0))
    if any(source.rest for source in sources):
        shares = [total * source.weight for source in sources]
        left = total - fixed - sum(shares, Fraction(0))
        _refuse_nothing_left(mixture, total, fixed, left)
        wanted = [
            Fraction(source.amount) if source.amount else left if source.rest else share
            for source, share in zip(sources, shares, strict=True)
        ]
    else:
        left = Fraction(total - fixed)
        _refuse_other_total(mixture, total, fixed, weights)
        wanted = [
            Fraction(source.amount) if source.amount else left * source.weight / weights
            for source in sources
        ]
    if not mixture.total:  # each at most what the source that limits all of them allows
        return [int(amount) for amount in wanted]
    return _whole(wanted)


def _whole(wanted: list[Fraction]) -> list[int]:
    """Whole numbers with the same sum, each less than 1 away."""
    amounts, done, exact = [], 0, Fraction(0)
    for amount in wanted:
        exact += amount
        amounts.append(int(exact) - done)
        done = int(exact)
    return amounts


def largest_total(mixture: Mixture, there: Sequence[int]) -> int:
    """The largest total that weights and max_epochs allow; budgets of sources count as met."""
    sources = mixture.sources
    fixed = sum(source.amount for source in sources)
    weights = sum((source.weight for source in sources), Fraction(0))
    has_rest = any(source.rest for source in sources)
    limits = []
    for source, has in zip(sources, there, strict=True):
        most = capacity(source, has)
        if source.rest:
            limits.append(Fraction(most + fixed) / (1 - weights))
        elif source.weight and has_rest:
            limits.append(most / source.weight)
        elif source.weight:
            limits.append(most * weights / source.weight + fixed)
    return min(int(min(limits)), LARGEST) if limits else fixed


def _refuse_other_total(mixture: Mixture, total: int, fixed: int, weights: Fraction) -> None:
    """Where no source takes the rest: budgets above the total, or another sum than the total."""
    unit = mixture.unit
    if fixed > total or (weights and fixed == total):
        raise UsageError(
            f"{unit}: the budgets of single sources sum to {fixed:,}, of a total of {total:,}"
            + (", which leaves nothing for the sources with a weight" if weights else ""),
            hint=f"a larger total, or fewer {unit} for these sources",
        )
    if not weights and fixed != total:
        raise UsageError(
            f"{unit}: the budgets of all sources sum to {fixed:,}, the total is {total:,}",
            hint="leave the total out, or give one source weight = 'rest'",
        )


def _refuse_nothing_left(mixture: Mixture, total: int, fixed: int, left: Fraction) -> None:
    if left < 1:
        name = next(source.name for source in mixture.sources if source.rest)
        raise UsageError(
            f"source {name}: the others leave nothing of {total:,} {mixture.unit} for "
            f"weight = 'rest': budgets take {fixed:,}, weights {int(total - fixed - left):,}",
            hint="a larger total, smaller weights or budgets, or leave this source out",
        )


def _refuse_nothing_there(mixture: Mixture, there: Sequence[int]) -> None:
    """First of all: such a source makes every other number meaningless."""
    empty = [s.name for s, has in zip(mixture.sources, there, strict=True) if not has]
    if empty:
        raise UsageError(
            f"source {', '.join(empty)}: has no {mixture.unit} to train on",
            hint="leave it out, or name other inputs",
        )


def _is_met(mixture: Mixture, there: Sequence[int], amounts: Sequence[int]) -> bool:
    return all(
        0 < amount <= capacity(source, has)
        for source, has, amount in zip(mixture.sources, there, amounts, strict=True)
    )


def _refuse_unmet(mixture: Mixture, found: list[Budget], estimated: bool) -> None:
    there = [budget.there for budget in found]
    if _is_met(mixture, there, [budget.amount for budget in found]):
        return
    pairs = list(zip(mixture.sources, found, strict=True))
    short = [(s, b) for s, b in pairs if b.amount > capacity(s, b.there)]
    lines = [_unmet_line(source, budget, mixture.unit) for source, budget in short]
    lines += [
        f"source {budget.source}: its share is less than one of the {mixture.unit}"
        for budget in found
        if not budget.amount
    ]
    raise UsageError(
        f"the mixture cannot be met within max_epochs{' (estimated)' if estimated else ''}:",
        lines=lines,
        hint="; or ".join(_ways_out(mixture, short, there)),
    )


def _unmet_line(source: MixSource, budget: Budget, unit: Unit) -> str:
    return (
        f"source {source.name}: asked {budget.amount:,} {unit}, there {budget.there:,}: "
        f"{show_epochs(budget.epochs)} epochs, max_epochs is {show_fraction(source.max_epochs)}"
    )


def _ways_out(
    mixture: Mixture, short: list[tuple[MixSource, Budget]], there: list[int]
) -> list[str]:
    """What would make it possible, with the numbers."""
    if not short:
        return ["a larger total", "leave such a source out"]
    ways = [f"max_epochs = {show_epochs(b.epochs)} for {s.name}" for s, b in short]
    ways = [" and ".join(ways)]
    if mixture.total and (most := _possible_total(mixture, there)):
        ways.append(f"a total of at most {most:,} {mixture.unit}")
    if any(source.amount for source, _ in short):
        ways.append(f"fewer {mixture.unit} for a source with a budget")
    return [*ways, "other weights or more inputs"]


def _possible_total(mixture: Mixture, there: list[int]) -> int:
    """The largest total that can be met, or nearly; 0 where a smaller total is no way out."""
    most = largest_total(mixture, there)
    for total in (most, most - len(there)):  # rounding may ask one more of a source
        smaller = msgspec.structs.replace(mixture, total=max(total, 1))
        with contextlib.suppress(UsageError):
            if _is_met(smaller, there, asked_amounts(smaller, there)):
                return smaller.total
    return 0


def show_epochs(epochs: Fraction) -> str:
    """Two decimals, rounded up: with this as max_epochs, the budget can be met."""
    hundredths = -(-epochs.numerator * 100 // epochs.denominator)
    return f"{hundredths // 100}.{hundredths % 100:02d}"
