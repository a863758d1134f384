"""Records of units by any number of writers at once: objects whose names are their content's hash.

No writer knows of another. The same units give the same records, so a part of a job that runs
twice, or at the same time on two machines, adds nothing new. What differs is found by comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import msgspec
import xxhash

from tokenmill.errors import RefusedError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import Record, UnitRecord, journal_header, unit_record
from tokenmill.output.objects.log import valid_records
from tokenmill.output.objects.record_table import RecordTable
from tokenmill.output.workspace import RECORDS, WORK, WorkArea
from tokenmill.planning.plan import Plan
from tokenmill.system.store import ObjectStore, read_small


class HashedLog:
    def __init__(
        self, store: ObjectStore, folder: str, header: bytes, check: Callable[[], None]
    ) -> None:
        """`check`: raises if another coordinator has taken over."""
        self._store, self._folder = store, folder
        self._header, self._check = header, check

    def append(self, content: bytes) -> None:
        self._check()
        whole = self._header + content
        name = f"{self._folder}/{xxhash.xxh3_128_hexdigest(whole)}"
        self._store.write_whole(name, whole)  # over the same bytes, if it is there

    def close(self) -> None:
        """Nothing is open."""


def read_hashed(
    store: ObjectStore, folder: str, header: bytes, decode: Callable[[bytes], Record]
) -> list[Record]:
    """The valid records. What is damaged is left out: what it names is done again."""
    return list(each_hashed(store, folder, header, decode))


def each_hashed(
    store: ObjectStore, folder: str, header: bytes, decode: Callable[[bytes], Record]
) -> Iterator[Record]:
    """The same, one by one."""
    for name in list(store.names(f"{folder}/")):
        try:
            content = read_small(store, name)
        except FileNotFoundError:  # the job is being removed
            continue
        yield from valid_records(content, header, decode)


def recorded_units(plan: Plan, workspace: WorkArea) -> RecordTable:
    """Every unit that is recorded, once. Records of one unit must be equal: else an input was
    not the same for all who read it."""
    header = journal_header(plan.work_fingerprint)
    store = cast("ObjectStore", workspace.store)
    records = each_hashed(
        store, f"{WORK}/{RECORDS}", header, lambda body: (unit_record(body), body)
    )

    def choose(found: list[UnitRecord]) -> UnitRecord:
        return next(iter(compared(plan, found).values()))

    return RecordTable(records, choose, workspace.local)


def compared(plan: Plan, records: Iterable[UnitRecord]) -> dict[UnitId, UnitRecord]:
    found: dict[UnitId, UnitRecord] = {}
    for record in records:
        other = found.setdefault(record.unit, record)
        if other == record:
            continue
        if other.set_aside == record.set_aside:
            raise RefusedError(
                f"{plan.sources[record.unit.source].name}: unit {record.unit} was recorded twice, "
                "with different content: the file was not the same for all who read it",
                hint="see that all machines read the same file, then start over with --overwrite",
            )
        # A row ended its worker in one attempt and not in another: the same choice everywhere.
        found[record.unit] = min(other, record, key=_preference)
    return found


def _preference(record: UnitRecord) -> tuple[int, bytes]:
    return len(record.set_aside), msgspec.msgpack.encode(record)
