"""The search for the row that ends its worker, as arithmetic: a worker is a few lines here."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.engines.hunt import (
    MAX_DEATHS,
    MAX_KILLS,
    ROW_DEATHS,
    Cause,
    DeathCount,
    FatalRowSearch,
)

FIRST, ROWS = 100, 30  # a batch in the middle of its segment
rows = st.integers(FIRST, FIRST + ROWS - 1)
causes: st.SearchStrategy[Cause] = st.sampled_from(["fault", "kill"])


class Trial:
    """A worker for each try: it encodes the rows it is given in order, and may die on one."""

    def __init__(
        self, fatal: dict[int, Cause], *, when_checked: dict[int, Cause] | None = None,
        kills: dict[int, int] | None = None, may_check: bool = True,
    ) -> None:  # fmt: skip
        self.fatal, self.when_checked = fatal, when_checked or {}
        self.kills = dict(kills or {})  # from outside: so many times while this row is encoded
        self.search = FatalRowSearch(0, FIRST, FIRST + ROWS, "died", may_check=may_check)
        self.tries = self.deaths = 0

    def run(self) -> dict[int, str]:
        while not self.search.exhausted:
            self.tries += 1
            assert self.tries < 1000, "the search does not end"
            self.one_try(range(*self.search.next_rows()))
        return self.search.found

    def one_try(self, rows: range) -> None:
        assert rows
        assert FIRST <= rows.start < rows.stop <= FIRST + ROWS
        for row in rows:
            cause = self.fatal.get(row)
            if self.search.check:
                cause = cause or self.when_checked.get(row)
            if self.kills.get(row):
                self.kills[row] -= 1
                cause = "kill"
            if cause is not None:
                self.deaths += 1
                self.search.died(row, f"ended by a {cause}", cause)
                return
        self.search.survived()


@given(st.dictionaries(rows, causes), st.booleans())
def test_exactly_the_fatal_rows_are_found_within_the_promised_tries(
    fatal: dict[int, Cause], may_check: bool
) -> None:
    trial = Trial(fatal, may_check=may_check)
    assert trial.run().keys() == fatal.keys()
    assert trial.deaths == sum(ROW_DEATHS[cause] for cause in fatal.values())
    # The last rows are tried once more without a death; a batch without a fatal row twice.
    assert trial.tries <= trial.deaths + (1 if fatal or not may_check else 2)


@given(st.dictionaries(rows, causes, min_size=1))
def test_the_first_row_that_is_found_is_the_first_fatal_row(fatal: dict[int, Cause]) -> None:
    trial = Trial(fatal)
    while not trial.search.found:
        trial.one_try(range(*trial.search.next_rows()))
    assert list(trial.search.found) == [min(fatal)]
    assert trial.deaths == ROW_DEATHS[fatal[min(fatal)]]


@given(st.dictionaries(rows, st.just("fault")), st.dictionaries(rows, st.integers(1, 3)))
def test_kills_from_outside_never_convict_a_healthy_row(
    fatal: dict[int, Cause], kills: dict[int, int]
) -> None:
    assert Trial(fatal, kills=kills).run().keys() == fatal.keys()


@given(rows)
def test_four_kills_on_one_row_in_a_row_convict_it(row: int) -> None:
    found = Trial({}, kills={row: 4}).run()
    assert found == {row: "encoding it alone ended by a kill, 4 times"}


@given(st.dictionaries(rows, causes, min_size=1), st.booleans())
def test_a_row_that_is_fatal_only_when_checked_is_found_in_a_second_pass(
    when_checked: dict[int, Cause], may_check: bool
) -> None:
    trial = Trial({}, when_checked=when_checked, may_check=may_check)
    # In the unit the rows after it would not be checked: the search ends with the first.
    assert list(trial.run()) == ([min(when_checked)] if may_check else [])


@given(st.dictionaries(rows, causes, min_size=1), st.dictionaries(rows, causes, min_size=1))
def test_there_is_no_second_pass_after_a_fatal_row(
    fatal: dict[int, Cause], when_checked: dict[int, Cause]
) -> None:
    assert Trial(fatal, when_checked=when_checked).run().keys() == fatal.keys()


# --- how many deaths are too many --------------------------------------------------------------


@given(st.lists(st.sampled_from(["fault", "kill", "outside"])))
def test_a_unit_may_take_one_fault_and_four_kills(deaths: list[Cause]) -> None:
    count = DeathCount()
    for cause in deaths:
        count.add(cause)
    faults = deaths.count("fault")
    assert count.total == len(deaths)
    assert count.too_many == (faults >= MAX_DEATHS or len(deaths) - faults >= MAX_KILLS)


def test_after_a_search_that_found_rows_one_more_death_starts_the_next() -> None:
    count, trial = DeathCount(), Trial({FIRST: "fault", FIRST + 3: "kill"})
    for _ in range(MAX_DEATHS):
        count.add("fault")
    trial.run()
    count.end_search(trial.search)
    assert (count.rows_found, count.fruitless, count.too_many) == (2, None, False)
    assert count.total + 1 == MAX_DEATHS


@pytest.mark.parametrize("seed", range(5))
def test_after_a_search_in_vain_the_unit_gets_one_more_chance(seed: int) -> None:
    rng, count, trial = random.Random(seed), DeathCount(), Trial({})
    for _ in range(MAX_DEATHS):
        count.add(rng.choice(["fault", "kill"]))
    assert trial.run() == {}
    count.end_search(trial.search)
    assert count.fruitless is trial.search
    assert not count.too_many
    count.add("fault")
    assert count.too_many
