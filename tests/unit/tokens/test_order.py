"""The keys of a shuffled dataset: what is written down, and that every order is equally likely."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shuffled

from tokenmill.inputs.source import Source
from tokenmill.tokens import order
from tokenmill.tokens.splits import GOLDEN_RATIO, U64, document_hash, mix

PAGE = Path(__file__).parents[3] / "docs/order.md"
KeyFunction = Callable[[int, int], U64]  # seed, count of positions


def test_the_values_of_the_page_are_those_of_the_function() -> None:
    found = 0
    source = order.source_key("xxh3:0123", 0)
    page = PAGE.read_text()
    table = page[page.index("| seed | domain |") :].partition("\n\n")[0]
    for line in table.splitlines():
        if not re.match(r"\| (\d|2\^64)", line):
            continue
        seed, domain, *values = (cell.strip() for cell in line.strip("| ").split("|"))
        number = 2**64 - 1 if seed == "2^64 - 1" else int(seed)
        keys = order.position_hash(number, int(domain), source, np.array([0, 1, 10**12]))
        assert [f"0x{int(key):016X}" for key in keys] == values
        found += 1
    assert found == 4
    assert f"0x{source:016X}" in PAGE.read_text()


@given(
    st.integers(0, 2**64 - 1), st.sampled_from([1, 2]), st.text(), st.integers(0, 9),
    st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_keys_are_those_of_the_twin(
    seed: int, domain: int, fingerprint: str, twin: int, position: int
) -> None:
    source = order.source_key(fingerprint, twin)
    keys = order.position_hash(seed, domain, source, np.array([position], np.int64))
    assert int(keys[0]) == shuffled.key(seed, domain, fingerprint, twin, position)


def keys_of(seed: int, count: int) -> U64:
    return order.position_hash(seed, order.ORDER, order.source_key("x", 0), np.arange(count))


def chi_square(keys: KeyFunction, seeds: int = 60_000) -> float:
    """Of the 120 orders of five documents over many seeds; 119 is expected."""
    numbers = {one: i for i, one in enumerate(itertools.permutations(range(5)))}
    code = np.array([10000, 1000, 100, 10, 1])
    by_code = {
        sum(int(p * c) for p, c in zip(one, code, strict=True)): i for one, i in numbers.items()
    }
    all_keys = np.stack([keys(seed, 5) for seed in range(seeds)])
    codes, counts = np.unique(np.argsort(all_keys, axis=1) @ code, return_counts=True)
    seen = np.zeros(120)
    seen[[by_code[one] for one in codes.tolist()]] = counts
    expected = seeds / 120
    return float(((seen - expected) ** 2 / expected).sum())


def rank_correlation(keys: U64) -> float:
    ranks = np.empty(len(keys))
    ranks[np.argsort(keys)] = np.arange(len(keys))
    return float(np.corrcoef(ranks, np.arange(len(keys)))[0, 1])


def neighbour_correlation(keys: U64) -> float:
    """Of documents that follow each other in the input."""
    ranks = np.empty(len(keys))
    ranks[np.argsort(keys)] = np.arange(len(keys))
    return float(np.corrcoef(ranks[1:], ranks[:-1])[0, 1])


def test_every_order_of_five_documents_is_equally_likely() -> None:
    assert 70 < chi_square(keys_of) < 190  # 119 +- 4.6 standard deviations


@pytest.mark.parametrize("seed", range(3))
def test_a_million_documents_are_not_in_the_order_of_the_input(seed: int) -> None:
    keys = keys_of(seed, 1_000_000)
    assert abs(rank_correlation(keys)) < 0.003
    assert abs(neighbour_correlation(keys)) < 0.003
    assert len(np.unique(keys)) == len(keys)


def weak_position(seed: int, count: int) -> U64:
    """A multiplication alone: neighbours stay at a fixed distance."""
    return np.arange(count, dtype=np.uint64) * GOLDEN_RATIO + mix(np.array([seed], np.uint64))


def weak_low_bits(seed: int, count: int) -> U64:
    """Only the lowest bits of the key are mixed."""
    return (mix(np.arange(count, dtype=np.uint64) + np.uint64(seed)) & np.uint64(3)) + np.arange(
        count, dtype=np.uint64
    )


def weak_seed(seed: int, count: int) -> U64:
    """The seed moves the position: seeds that follow each other give shifted orders."""
    return mix(np.arange(count, dtype=np.uint64) + np.uint64(seed % 50))


@pytest.mark.parametrize("weak", [weak_position, weak_low_bits, weak_seed])
def test_a_weak_function_is_found(weak: KeyFunction) -> None:
    keys = weak(1, 1_000_000)
    straight = abs(rank_correlation(keys)) < 0.003 and abs(neighbour_correlation(keys)) < 0.003
    assert not straight or not 70 < chi_square(weak, 12_000) < 190


def longest_run(keys: list[U64]) -> int:
    """Of documents of one source that follow each other; `keys`: of each source."""
    sources = np.repeat(np.arange(len(keys)), [len(one) for one in keys])
    ordered = sources[np.argsort(np.concatenate(keys), kind="stable")]
    changes = np.flatnonzero(np.diff(ordered)) + 1
    return int(np.diff(np.concatenate(([0], changes, [len(ordered)]))).max())


def test_the_longest_run_of_one_source_is_as_long_as_by_chance() -> None:
    """Of a million tosses of a coin: log2(10**6) = 20, give or take; beyond these bounds in one
    of a thousand. What does not mix sources, or mixes them too evenly, is beyond them."""

    def of_source(name: str) -> U64:
        return order.position_hash(7, order.ORDER, order.source_key(name, 0), np.arange(500_000))

    keys = [of_source("x"), of_source("y")]
    assert 16 <= longest_run(keys) <= 30
    same = [keys[0], keys[0]]  # as if the source were not hashed
    assert longest_run(same) < 16
    half = np.uint64(1)
    apart = [keys[0] >> half, (keys[1] >> half) + np.uint64(1 << 63)]  # as if it came first
    assert longest_run(apart) > 30


def test_the_validation_split_is_independent_of_the_order() -> None:
    source = order.source_key("x", 0)
    keys = keys_of(0, 1_000_000)
    held = order.position_hash(0, order.HOLD_OUT, source, np.arange(1_000_000))
    chosen = held < np.uint64(2**64 // 10)
    assert abs(chosen.mean() - 0.1) < 0.001
    assert abs(float(np.mean(keys[chosen] / 2**64)) - 0.5) < 0.005
    assert abs(np.corrcoef(keys / 2**64, held / 2**64)[0, 1]) < 0.003
    assert (held[:9] != document_hash(0, 0, np.arange(9))).all()


def source_named(name: str, fingerprint: str) -> Source:
    return Source(number=0, name=name, kind="text", size=1, fingerprint=fingerprint)


def test_sources_are_numbered_by_content_and_name() -> None:
    some = [source_named("c", "2"), source_named("a", "3"), source_named("b", "2")]
    for given_ in itertools.permutations(some):
        numbered = order.in_plan_order(given_)
        found = [(one.number, one.name, one.twin) for one in numbered]
        assert found == [(0, "b", 0), (1, "c", 1), (2, "a", 0)]


@given(st.integers(1, 3000))
def test_ranges_have_all_keys(count: int) -> None:
    bounds = [order.range_bounds(number, count) for number in range(count)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 2**64
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 400))
def test_parts_of_a_range_are_not_much_longer_than_it_should_be(
    sizes: list[int], target: int
) -> None:
    starts = order.part_starts(np.array(sizes, np.int64), target)
    assert starts == sorted(set(starts))
    for first, stop in itertools.pairwise([*starts, len(sizes)]):
        assert sum(sizes[first:stop]) <= 1.5 * target + max(sizes, default=0)


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 20), st.integers(1, 3000))
def test_groups_have_all_runs_and_fit_into_memory(sizes: list[int], most: int, memory: int) -> None:
    groups = order.group_bounds(sizes, most, memory)
    assert [index for first, stop in groups for index in range(first, stop)] == list(
        range(len(sizes))
    )
    assert all(stop - first == 1 or sum(sizes[first:stop]) <= memory for first, stop in groups)
    if memory >= sum(sizes):
        assert len(groups) <= most
