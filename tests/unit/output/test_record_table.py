"""Records of many units in a table: the same as a dict of them."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tokenmill.errors import RefusedError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import UnitRecord
from tokenmill.output.objects.record_table import RecordTable
from tokenmill.tokens.counts import Counts, State

NOTHING = State(streams=())


def record(source: int, segment: int, part: int, *, last: bool, rows: int = 1) -> UnitRecord:
    counts = Counts(rows=rows, documents=rows)
    return UnitRecord(UnitId(source, segment, part), last, rows, counts, NOTHING, NOTHING, ())


def table_of(records: list[UnitRecord], folder: Path) -> RecordTable:
    def choose(found: list[UnitRecord]) -> UnitRecord:
        if any(one.counts.rows == 13 for one in found):
            raise RefusedError("they differ")
        return max(found, key=lambda one: one.counts.rows)

    return RecordTable(((one, msgspec.msgpack.encode(one)) for one in records), choose, folder)


ALL = [
    record(source, segment, part, last=part == parts - 1)
    for source in (0, 1, 70_000)
    for segment, parts in enumerate((1, 3, 2))
    for part in range(parts)
]


def test_a_table_is_a_dict_in_document_order_whatever_the_order_and_the_copies(
    tmp_path: Path,
) -> None:
    given = ALL + ALL[3:8] + ALL[4:6]
    random.Random(1).shuffle(given)
    table = table_of(given, tmp_path)
    assert list(table) == [one.unit for one in ALL]
    assert list(table.records()) == ALL
    assert all(table[one.unit] == one for one in ALL)
    assert table.get(UnitId(0, 1, 3)) is None
    assert table.get(UnitId(5, 0, 0)) is None


def test_a_segment_is_complete_with_its_last_unit_and_all_before_it(tmp_path: Path) -> None:
    lost = {UnitId(0, 1, 1), UnitId(1, 1, 2), UnitId(70_000, 0, 0)}
    complete = table_of([one for one in ALL if one.unit not in lost], tmp_path).complete_segments()
    found = {(s, n) for s in (0, 1, 2, 70_000) for n in range(4) if (s, n) in complete}
    assert found == {(0, 0), (0, 2), (1, 0), (1, 2), (70_000, 1), (70_000, 2)}
    assert complete.sources() == [0, 1, 70_000]


def test_of_records_that_differ_one_is_chosen_or_it_is_an_error(tmp_path: Path) -> None:
    other = record(1, 1, 1, last=False, rows=2)
    for given in ([other, *ALL, ALL[0]], [*ALL, other, other]):
        assert table_of(given, tmp_path)[other.unit] == other
    with pytest.raises(RefusedError, match="they differ"):
        table_of([*ALL, record(1, 1, 1, last=False, rows=13)], tmp_path)


def test_a_table_may_be_empty(tmp_path: Path) -> None:
    table = table_of([], tmp_path)
    assert not table
    assert list(table.records()) == []
    assert (0, 0) not in table.complete_segments()
