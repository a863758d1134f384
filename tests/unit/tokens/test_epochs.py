"""Which documents of a source are taken, against a slow twin that sorts them all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.planning.mixture.budgets import Budget
from tokenmill.tokens.epochs import Amounts, Choice, choice_keys, choose, copy_keys
from tokenmill.tokens.splits import U64, mix

MASK = (1 << 64) - 1


def finalised(value: int) -> int:
    """splitmix64's finaliser in plain integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def slow_choice_key(key: int) -> int:
    return finalised((key * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & MASK)


def slow_copy_key(key: int, copy: int) -> int:
    if copy == 0:
        return key
    number = finalised((copy * 0x9E3779B97F4A7C15 + 0xD1342543DE82EF95) & MASK)
    return finalised((key + number) & MASK)


def slow_copies(keys: list[int], amounts: list[int], budget: int) -> list[int]:
    """Whole epochs, then documents one by one in the order of their choice keys."""
    there = sum(amounts)
    copies = [budget // there] * len(keys)
    left = budget % there
    for number in sorted(range(len(keys)), key=lambda i: slow_choice_key(keys[i])):
        if left <= 0:
            break
        copies[number] += 1
        left -= amounts[number]
    return copies


def in_parts(keys: list[int], amounts: list[int], size: int) -> Iterator[Amounts]:
    for first in range(0, len(keys), size):
        part = slice(first, first + size)
        yield np.array(keys[part], np.uint64), np.array(amounts[part], np.int64)


@given(
    st.lists(
        st.tuples(st.integers(0, MASK), st.integers(0, 9)), min_size=1, unique_by=lambda p: p[0]
    ),
    st.integers(1, 400),
    st.integers(1, 7),
)
def test_a_choice_equals_the_slow_twin(
    documents: list[tuple[int, int]], budget: int, size: int
) -> None:
    keys, amounts = [key for key, _ in documents], [amount for _, amount in documents]
    if not sum(amounts):
        return
    choice = choose(lambda: in_parts(keys, amounts, size), *divmod(budget, sum(amounts)))
    copies = choice.copies(np.array(keys, np.uint64)).tolist()
    assert copies == slow_copies(keys, amounts, budget)
    taken = sum(map(int.__mul__, copies, amounts))
    assert budget <= taken < budget + max(amounts)
    wanted = [
        (number, slow_copy_key(key, copy))
        for number, key in enumerate(keys)
        for copy in range(copies[number])
    ]
    assert every_copy(np.array(keys, np.uint64), choice) == wanted


def every_copy(keys: U64, choice: Choice) -> list[tuple[int, int]]:
    """Every copy that is taken, as workers find them: its document, and the key that orders it."""
    found: list[tuple[int, int, int]] = []
    for copy in range(choice.most):
        taken = np.flatnonzero(choice.copies(keys) > copy)
        numbers, ordered = taken.tolist(), copy_keys(keys[taken], copy).tolist()
        found += zip(numbers, [copy] * len(numbers), ordered, strict=True)
    return [(number, key) for number, _, key in sorted(found)]


def test_keys_that_share_their_first_bits_are_told_apart() -> None:
    """Choice keys that differ in their last bits only: every pass is needed."""
    lowest = [slow_unchoice(0xABCD_EF01_2345_0000 + i) for i in range(9)]
    choice = choose(lambda: in_parts(lowest, [1] * 9, 4), *divmod(5, 9))
    assert choice == Choice(0, 0xABCD_EF01_2345_0004)
    assert choice.copies(np.array(lowest, np.uint64)).tolist() == [1] * 5 + [0] * 4


def slow_unchoice(value: int) -> int:
    """The key that has this choice key."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, None)):
        undone, rest = value, value >> shift
        while rest:
            undone, rest = undone ^ rest, rest >> shift
        value = undone if factor is None else undone * pow(factor, -1, 1 << 64) & MASK
    return (value - 0x2545F4914F6CDD1D) * pow(0x9E3779B97F4A7C15, -1, 1 << 64) & MASK


def test_documents_with_one_key_are_taken_together() -> None:
    """The pieces of a giant document."""
    keys = [7, 7, 7, 8]
    choice = choose(lambda: in_parts(keys, [5, 5, 5, 5], 2), *divmod(1, 20))
    assert choice.copies(np.array(keys, np.uint64)).tolist() in ([1, 1, 1, 0], [0, 0, 0, 1])


def test_whole_epochs_need_no_bound() -> None:
    choice = choose(lambda: in_parts([1, 2], [3, 4], 1), *divmod(21, 7))
    assert choice == Choice(3, -1)
    assert choice.most == 3


def test_nothing_is_taken_of_nothing() -> None:
    nothing = Budget(source="a", there=0, amount=5)
    assert choose(lambda: iter(()), nothing.whole_epochs, nothing.part) == Choice(0, -1)
    assert every_copy(np.zeros(0, np.uint64), Choice(2, 5)) == []


def keys_of(count: int) -> U64:
    return mix(np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


@pytest.mark.parametrize("copy", [0, 1, 2])
def test_chosen_documents_are_spread_over_the_whole_stream(copy: int) -> None:
    """A tenth is taken: each tenth of the keys has its tenth of the chosen ones, and of the
    further copies too. Chosen by the key itself, all would be in the first tenth."""
    keys = keys_of(200_000)
    taken = keys[choice_keys(keys) < np.uint64(MASK // 10)]
    assert 19_000 < len(taken) < 21_000
    tenths = np.bincount((copy_keys(taken, copy) // np.uint64(MASK // 10 + 1)).astype(int))
    assert len(tenths) == 10
    assert np.abs(tenths - len(taken) / 10).max() < 5 * np.sqrt(len(taken) / 10)


def test_copies_of_a_document_are_not_neighbours_of_it() -> None:
    keys = keys_of(100_000)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        ranks = [np.argsort(np.argsort(copy_keys(keys, copy))) for copy in (one, other)]
        assert abs(np.corrcoef(ranks[0], ranks[1])[0, 1]) < 0.02
