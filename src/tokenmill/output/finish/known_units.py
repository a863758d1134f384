"""Units that an earlier run or another machine has recorded: which of them are whole.

There may be millions. So their records stay in a table (`RecordTable`), and are decoded one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tokenmill.inputs.segments import UnitId
from tokenmill.output.durability import UnitLog
from tokenmill.output.journal import UnitRecord
from tokenmill.output.objects.record_table import RecordRows, RecordTable
from tokenmill.output.objects.records import recorded_units
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.workspace import JOURNAL, WorkArea
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings

CHECKED_AT_A_TIME = 4096  # units


def halves(
    plan: Plan, records: Sequence[UnitRecord]
) -> tuple[Sequence[UnitRecord], list[UnitRecord]]:
    """Units of the inputs, and units of the second half of a shuffled job."""
    behind = len(plan.sources)
    if isinstance(records, RecordRows):
        of_inputs = records.table.in_sources(lambda source: source < behind)
        rest = records.table.where(~of_inputs)
        return RecordRows(records.table.where(of_inputs)), list(rest.records())
    return (
        [one for one in records if one.unit.source < behind],
        [one for one in records if one.unit.source >= behind],
    )


def open_placed(
    plan: Plan,
    run: RunSettings,
    workspace: ObjectWorkspace,
    recorded: RecordTable,
    check_interrupt: Callable[[], None],
) -> tuple[UnitLog, Sequence[UnitRecord], list[UnitRecord]]:
    """The log of units that have their places; what is in it of the inputs' units, and of the
    second half of a shuffled job. `recorded`: what there is to place."""
    found = workspace.placed_units(plan.work_fingerprint)
    placed, ordered = halves(plan, RecordRows(found))
    if not isinstance(placed, RecordRows):
        raise TypeError("rows of a table give rows of a table")

    def is_same(one: UnitRecord) -> bool:
        """Its object is known to be whole, or is compared when it is read."""
        other = recorded.get(one.unit)
        return other is not None and workspace.object_of(one) == workspace.object_of(other)

    same = np.fromiter(map(is_same, placed), bool, len(placed))
    placed = RecordRows(placed.table.where(same))
    whole = whole_ones(workspace, ordered, check_interrupt)
    ordered = [one for one, ok in zip(ordered, whole, strict=True) if ok]
    length, both = workspace.next_record(JOURNAL), itertools.chain(placed, ordered)
    return UnitLog(plan, run, workspace, both, length, {}), placed, ordered


def whole_ones(
    workspace: WorkArea, records: Iterable[UnitRecord], check_interrupt: Callable[[], None]
) -> bytearray:
    """For each record, whether its unit is still what it was."""

    def is_whole(record: UnitRecord) -> bool:
        check_interrupt()  # there may be a terabyte of them
        return workspace.is_whole(record)

    found, left = bytearray(), iter(records)
    with ThreadPoolExecutor(max_workers=4) as pool:
        while some := list(itertools.islice(left, CHECKED_AT_A_TIME)):
            found += bytes(pool.map(is_whole, some))
    return found


def recorded_before(
    plan: Plan,
    workspace: WorkArea,
    touched: set[int],
    check_interrupt: Callable[[], None],
    segments: set[tuple[int, int]] | None,
) -> tuple[Sequence[UnitRecord], dict[UnitId, UnitRecord], list[UnitRecord]]:
    """Of units that have no places yet, which may be millions: those that are whole; those of a
    touched source; those that are damaged."""
    table = recorded_units(plan, workspace)
    if segments is not None:  # of one part; the others look after theirs
        table = table.where(table.in_segments(segments))
    again = table.in_sources(lambda source: source in touched)
    expected = {record.unit: record for record in table.where(again).records()}
    table = table.where(~again)
    whole = np.frombuffer(whole_ones(workspace, table.records(), check_interrupt), bool)
    durable, damaged = table.where(whole), table.where(~whole)
    return RecordRows(durable), expected, list(damaged.records())
