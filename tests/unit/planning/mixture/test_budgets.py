"""Budgets are exact: shares, sums and limits, and errors that name the ways out."""

from __future__ import annotations

import re
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import UsageError
from tokenmill.planning.mixture.budgets import (
    Budget,
    asked_amounts,
    budgets,
    capacity,
    largest_total,
)
from tokenmill.planning.mixture.mix_file import MixSource, Mixture


def mixture(*sources: tuple[str, object], total: int = 0, epochs: object = 1) -> Mixture:
    """Sources as (name, weight): a Fraction or a text is a weight, a number is a budget."""
    made = []
    for name, share in sources:
        fields = {"amount": share} if isinstance(share, int) else {}
        if isinstance(share, str):
            fields = {"rest": True} if share == "rest" else {"weight": Fraction(share)}
        made.append(
            MixSource(name=name, inputs=(name,), max_epochs=Fraction(str(epochs)), **fields)
        )
    return Mixture(sources=tuple(made), total=total)


def amounts(found: list[Budget]) -> list[int]:
    return [budget.amount for budget in found]


def test_weights_share_what_budgets_leave_of_the_total() -> None:
    asked = mixture(("web", "6"), ("code", "3"), ("math", 100), total=1000)
    assert amounts(budgets(asked, [10**6] * 3)) == [600, 300, 100]


def test_rest_is_what_the_others_leave() -> None:
    asked = mixture(("web", "0.6"), ("code", "0.25"), ("math", 50), ("wiki", "rest"), total=1000)
    assert amounts(budgets(asked, [10**6] * 4)) == [600, 250, 50, 100]


def test_without_a_total_the_scarcest_source_decides() -> None:
    asked = mixture(("web", "6"), ("code", "3"), epochs=2)
    assert amounts(budgets(asked, [10**6, 150])) == [600, 300]
    with_rest = mixture(("web", "0.5"), ("math", 10), ("wiki", "rest"))
    assert amounts(budgets(with_rest, [10**6, 10, 90])) == [100, 10, 90]


def test_budgets_alone_need_no_total_or_exactly_theirs() -> None:
    assert amounts(budgets(mixture(("a", 5), ("b", 7)), [10, 10])) == [5, 7]
    assert amounts(budgets(mixture(("a", 5), ("b", 7), total=12), [10, 10])) == [5, 7]
    with pytest.raises(UsageError, match=r"sum to 12, the total is 13"):
        budgets(mixture(("a", 5), ("b", 7), total=13), [10, 10])
    with pytest.raises(UsageError, match=r"sum to 12, of a total of 11\n"):
        budgets(mixture(("a", 5), ("b", 7), total=11), [10, 10])
    with pytest.raises(UsageError, match=r"leaves nothing for the sources with a weight"):
        budgets(mixture(("a", 5), ("b", "1"), total=5), [10, 10])
    with pytest.raises(UsageError, match=r"source b: the others leave nothing of 8 tokens"):
        budgets(mixture(("a", "0.5"), ("c", 4), ("b", "rest"), total=8), [10, 10, 10])


def test_epochs_are_whole_ones_and_a_part() -> None:
    budget = budgets(mixture(("a", 25), epochs="2.5"), [10])[0]
    assert (budget.whole_epochs, budget.part, budget.epochs) == (2, 5, Fraction(5, 2))
    whole = Budget(source="a", there=10, amount=20)
    assert (whole.whole_epochs, whole.part) == (2, 0)


def test_what_cannot_be_met_shows_asked_there_epochs_and_ways_out() -> None:
    asked = mixture(("web", "6"), ("code", "3"), total=900)
    with pytest.raises(UsageError) as error:
        budgets(asked, [10**6, 190])
    assert error.value.message.splitlines()[1].strip() == (
        "source code: asked 300 tokens, there 190: 1.58 epochs, max_epochs is 1"
    )
    assert error.value.hint == (
        "max_epochs = 1.58 for code; or a total of at most 570 tokens; "
        "or other weights or more inputs"
    )
    with pytest.raises(UsageError, match="estimated"):
        budgets(asked, [10**6, 190], estimated=True)


def test_a_source_with_nothing_in_it_is_named() -> None:
    with pytest.raises(UsageError, match="source b: has no tokens to train on"):
        budgets(mixture(("a", "1"), ("b", "1"), total=10), [10, 0])


def test_a_share_of_less_than_one_is_refused() -> None:
    with pytest.raises(UsageError, match="source b: its share is less than one"):
        budgets(mixture(("b", "0.001"), ("a", "1"), total=10), [100, 100])


weights = st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000)
counts = st.integers(1, 10**15)


@given(st.lists(st.tuples(weights, counts), min_size=1, max_size=6), st.integers(1, 10**15))
def test_shares_are_exact_to_less_than_one_and_sum_to_the_total(
    sources: list[tuple[Fraction, int]], total: int
) -> None:
    asked = Mixture(
        sources=tuple(
            MixSource(name=str(i), inputs=("x",), weight=weight, max_epochs=Fraction(10**18))
            for i, (weight, _) in enumerate(sources)
        ),
        total=total,
    )
    there = [count for _, count in sources]
    if 0 in asked_amounts(asked, there):
        with pytest.raises(UsageError, match="less than one"):
            budgets(asked, there)
        return
    found = budgets(asked, there)
    assert sum(amounts(found)) == total
    whole = sum(weight for weight, _ in sources)
    for budget, (weight, count) in zip(found, sources, strict=True):
        assert abs(budget.amount - total * weight / whole) < 1
        assert budget.whole_epochs * count + budget.part == budget.amount
        assert 0 <= budget.part < count


@given(
    st.lists(st.tuples(weights, counts, weights), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 1000),
)
def test_the_largest_total_is_possible_and_a_larger_one_is_not(
    sources: list[tuple[Fraction, int, Fraction]], has_rest: bool, fixed: int
) -> None:
    whole = sum(weight for weight, _, _ in sources)
    made = [
        MixSource(
            name=str(i),
            inputs=("x",),
            weight=weight / whole / 2 if has_rest else weight,
            max_epochs=epochs,
        )
        for i, (weight, _, epochs) in enumerate(sources)
    ]
    there = [count for _, count, _ in sources]
    if has_rest:
        made.append(MixSource(name="rest", inputs=("x",), rest=True))
        there.append(10**14)
    if fixed:
        made.append(MixSource(name="fixed", inputs=("x",), amount=fixed))
        there.append(fixed)
    asked = Mixture(sources=tuple(made))
    try:
        found = budgets(asked, there)
    except UsageError:
        return  # a share of less than one, or nothing left for the rest
    for source, budget in zip(made, found, strict=True):
        assert 0 < budget.amount <= capacity(source, budget.there)
    largest = largest_total(asked, there)
    assert largest - len(made) < sum(amounts(found)) <= largest
    more = msgspec.structs.replace(asked, total=largest + len(made) * 2000_000)
    with pytest.raises(UsageError):
        budgets(more, there)


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_the_epochs_that_an_error_names_are_enough(there: int, amount: int) -> None:
    try:
        budgets(mixture(("a", amount)), [there])
    except UsageError as error:
        named = re.search(r"max_epochs = ([0-9.]+) for a", error.hint)
        assert named
        assert amounts(budgets(mixture(("a", amount), epochs=named[1]), [there])) == [amount]
    else:
        assert amount <= there


@given(st.lists(st.tuples(weights, counts), min_size=2, max_size=5), st.integers(1, 10**15))
def test_the_total_that_an_error_names_is_enough(
    sources: list[tuple[Fraction, int]], total: int
) -> None:
    named = [(str(i), str(weight)) for i, (weight, _) in enumerate(sources)]
    there = [count for _, count in sources]
    try:
        budgets(mixture(*named, total=total), there)
    except UsageError as error:
        found = re.search(r"a total of at most ([0-9,]+)", error.hint)
        if found:
            smaller = int(found[1].replace(",", ""))
            assert sum(amounts(budgets(mixture(*named, total=smaller), there))) == smaller
