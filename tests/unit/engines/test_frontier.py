"""The frontier as arithmetic: no process, no disk. A model of workers knows the documents."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.engines.frontier import Frontier, SegmentProgress
from tokenmill.engines.messages import UnitSummary
from tokenmill.errors import TokenmillError
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.journal import UnitRecord
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.placement import CutRule, StreamCounts, StreamState

# Shards end at documents and the validation split at the third one: often only a worker, who
# knows where documents begin, can say where the next unit goes.
SETTINGS = plan_settings(
    make_options(
        {"format": "llmc", "cut": "document", "shard_tokens": 20, "val": "docs:3", "name": "x"}
    ),
    "out",
)
SOURCE = Source(
    number=0, name="a", path="a", kind="jsonl", size=1, fingerprint="xxh3:0", mtime_ns=0
)


class Unit(msgspec.Struct, frozen=True):
    """What a worker knows: the lengths of a unit's documents, and its bad rows."""

    id: UnitId
    last: bool
    rows_before: int
    lengths: tuple[int, ...]
    bad_rows: int = 0

    @property
    def summary(self) -> UnitSummary:
        tokens, documents = sum(self.lengths), len(self.lengths)
        counts = Counts(
            rows=documents + self.bad_rows,
            documents=documents,
            quarantined=self.bad_rows,
            tokens=tokens,
        )
        streams = (StreamCounts(tokens, documents, min(1, documents)),)
        return UnitSummary(self.id, self.last, self.rows_before, 0, counts, streams)

    def write(self, before: State, rules: list[CutRule]) -> UnitRecord:
        starts = np.cumsum((0, *self.lengths))[:-1].astype(np.int64)
        _, stream = rules[0].lay_out(before.streams[0], self.summary.streams[0], starts)
        after = msgspec.structs.replace(
            before,
            streams=(stream,),
            rows=before.rows + self.summary.counts.rows,
            quarantine_bytes=before.quarantine_bytes + 7 * self.bad_rows,
        )
        return UnitRecord(self.id, self.last, 0, self.summary.counts, before, after, ())


unit_documents = st.tuples(st.lists(st.integers(1, 9), max_size=4), st.integers(0, 1))
jobs = st.lists(st.lists(st.lists(unit_documents, min_size=1, max_size=3), max_size=3), max_size=3)


def units_of(job: list[list[list[tuple[list[int], int]]]]) -> list[Unit]:
    """Of a job: sources of segments of units."""
    units = []
    for source, segments in enumerate(job):
        for number, parts in enumerate(segments):
            rows = 0
            for part, (lengths, bad) in enumerate(parts):
                unit = UnitId(source, number, part)
                units.append(Unit(unit, part == len(parts) - 1, rows, tuple(lengths), bad))
                rows += len(lengths) + bad
    return units


def in_order(units: Iterable[Unit], rules: list[CutRule]) -> list[UnitRecord]:
    """Every unit written behind the one before it: what any schedule must come to."""
    records, state = [], State(streams=(StreamState(),))
    for unit in units:
        records.append(unit.write(state.entering(unit.id), rules))
        state = records[-1].after
    return records


def begin(units: Iterable[Unit], durable: Iterable[UnitRecord] = (), **limits: int) -> Frontier:
    frontier = Frontier(msgspec.structs.replace(SETTINGS, **limits), durable)
    for unit in units:
        if unit.id.part == 0:
            segment = Segment(unit.id.source, unit.id.segment, 0, 1, 1)
            frontier.add_segment(SegmentProgress(segment, SOURCE))
    return frontier


def run(frontier: Frontier, units: list[Unit], rng: random.Random) -> dict[UnitId, UnitRecord]:
    """Workers encode, write and die in an order that `rng` draws; returns what was written."""
    rules = CutRule.all_of(SETTINGS, SETTINGS.first)
    by_id = {unit.id: unit for unit in units}
    to_encode, held = list(by_id), set()
    places: dict[UnitId, State] = {}
    written: dict[UnitId, UnitRecord] = {}

    def place(unit: UnitId, before: State) -> None:
        assert unit not in written, "written twice"
        assert places.setdefault(unit, before) == before, "two places for one unit"

    steps = itertools.count()
    while len(written) < len(units):
        assert next(steps) < 10_000, "the frontier waits for ever"
        writable = sorted(held & places.keys())
        action = rng.choice(["encode"] * bool(to_encode) + ["write"] * 2 * bool(writable) + ["die"])
        if action == "encode":
            unit = to_encode.pop(rng.randrange(len(to_encode)))
            held.add(unit)
            placed = frontier.encoded(by_id[unit].summary)
            if placed is not None:
                assert placed == (unit, places[unit]), "another place after its worker died"
        elif action == "write":
            unit = rng.choice(writable)
            held.remove(unit)
            written[unit] = by_id[unit].write(places[unit], rules)
            frontier.written(written[unit])
        elif held and rng.random() < 0.3:
            unit = rng.choice(sorted(held))
            held.remove(unit)
            to_encode.append(unit)
            frontier.lost(unit)
        for unit, before in frontier.ready():
            assert unit in held, "a unit is placed that nobody holds"
            place(unit, before)
    return written


@given(jobs, st.integers(0, 2**32))
def test_any_order_of_arrival_gives_every_unit_once_the_same_place(job: Any, seed: int) -> None:
    units = units_of(job)
    frontier = begin(units)
    written = run(frontier, units, random.Random(seed))
    expected = in_order(units, CutRule.all_of(SETTINGS, SETTINGS.first))
    assert [written[unit.id] for unit in units] == expected
    assert frontier.idle
    if expected:
        assert frontier.state == expected[-1].after


@given(jobs, st.integers(0, 2**32))
def test_units_that_are_durable_already_are_passed_and_the_others_get_the_same_place(
    job: Any, seed: int
) -> None:
    units, rng = units_of(job), random.Random(seed)
    expected = in_order(units, CutRule.all_of(SETTINGS, SETTINGS.first))
    durable = [record for record in expected if rng.random() < 0.5]
    passed = {record.unit for record in durable}
    todo = [unit for unit in units if unit.id not in passed]
    frontier = begin(units, durable)
    written = run(frontier, todo, rng)
    assert list(frontier.ready()) == []
    assert frontier.idle
    assert [written[unit.id] for unit in todo] == [r for r in expected if r.unit not in passed]


@given(jobs, st.integers(1, 12), st.integers(0, 2**32))
def test_a_limit_ends_with_the_part_of_a_unit_that_its_worker_wrote(
    job: Any, limit: int, seed: int
) -> None:
    units, rules = units_of(job), CutRule.all_of(SETTINGS, SETTINGS.first)
    expected = in_order(units, rules)
    within = [record.unit for record in expected if record.before.streams[0].documents < limit]
    total = sum(len(unit.lengths) for unit in units)
    frontier = begin(units, limit_docs=limit)
    random.Random(seed).shuffle(units)
    by_id = {unit.id: unit for unit in units}
    placed: list[UnitRecord] = []
    for unit in units:
        frontier.encoded(unit.summary)
        for ready, before in frontier.ready():
            lengths = by_id[ready].lengths[: limit - before.streams[0].documents]
            cut = msgspec.structs.replace(by_id[ready], lengths=lengths)
            placed.append(cut.write(before, rules))
            frontier.written(placed[-1])
    assert [record.unit for record in placed] == within
    assert frontier.done == (total >= limit)
    if placed:
        assert frontier.state == placed[-1].after, "the state is that of what was written"


def unit(part: int, *lengths: int, last: bool = False, rows_before: int = 0) -> Unit:
    return Unit(UnitId(0, 0, part), last, rows_before, lengths)


def test_a_unit_that_comes_out_differently_the_second_time_is_an_error() -> None:
    frontier = begin([unit(0, 5)])
    frontier.encoded(unit(0, 5).summary)
    assert len(list(frontier.ready())) == 1
    frontier.lost(UnitId(0, 0, 0))
    with pytest.raises(TokenmillError, match=r"unit 0\.0\.0 came out differently the second time"):
        frontier.encoded(unit(0, 6).summary)


def test_a_unit_that_does_not_begin_where_the_one_before_it_ends_is_an_error() -> None:
    frontier = begin([unit(0, 5)])
    frontier.encoded(unit(0, 5, 5).summary)
    frontier.encoded(unit(1, 5, rows_before=3).summary)
    with pytest.raises(TokenmillError, match=r"does not begin where .* ends \(row 3, not 2\)"):
        list(frontier.ready())


def test_a_journal_that_does_not_fit_together_is_an_error() -> None:
    units = [unit(0, 5), unit(1, 5, last=True, rows_before=1)]
    first, second = in_order(units, CutRule.all_of(SETTINGS, SETTINGS.first))
    wrong = msgspec.structs.replace(second, before=first.before)
    frontier = begin([units[0]], [first, wrong])
    with pytest.raises(TokenmillError, match=r"does not fit together at unit 0\.0\.1"):
        list(frontier.ready())


def test_a_failure_counts_when_the_frontier_waits_for_its_segment_and_not_before() -> None:
    frontier = Frontier(SETTINGS, [])
    first, second = (SegmentProgress(Segment(0, n, 0, 1, 1), SOURCE) for n in (0, 1))
    frontier.add_segment(first)
    frontier.add_segment(second)
    second.failure = TokenmillError("later")
    assert frontier.failure is None
    frontier.encoded(unit(0, 5, last=True).summary)
    assert [ready.part for ready, _ in frontier.ready()] == [0]
    assert frontier.failure is second.failure
