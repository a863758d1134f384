"""An output in a store of whole files, as a bucket has them.

    PREFIX/.tokenmill/             there only while a job is unfinished
        driver/N                   leases: the highest one's holder is the coordinator
        driver/N.beat              its heartbeat, where other machines may look at it
        plan.json                  created if absent: what this output is bound to
        units/UNIT-HASH            the pieces of a unit; never changed
        records/HASH               units whose objects are there, by any number of writers
        journal/N                  records of units that have their places
        names/N                    names of the dataset's files, before the first byte of each
        files/made/N               records of the files that are complete
        files/tasks                the files to make, for parts of `finish` on several machines
        files/made-by-parts/HASH   records of the files that these have completed
        order/FILE                 of `export` in a new order: sorted runs, ranges, their ends
        cuts/                      how each input is cut
        removing.json              the manifest of a dataset that --overwrite is about to remove
    PREFIX/FILE                    made of units, in one go, under its final name
    PREFIX/manifest.json           created if absent, last: the dataset is there if this is

A crash leaves whole objects only. What they are is in records that are created once, compared with
what is there, and never changed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import RefusedError, StorageError
from tokenmill.output.files import JobFiles
from tokenmill.output.journal import Record, UnitRecord, framed, journal_header, unit_record
from tokenmill.output.objects.creating import create_once
from tokenmill.output.objects.lease import DriverLease
from tokenmill.output.objects.log import ObjectLog, each_in_objects, next_number, read_objects
from tokenmill.output.objects.record_table import RecordRows, RecordTable
from tokenmill.output.objects.records import HashedLog, read_hashed
from tokenmill.output.objects.units import JoinedFiles, ObjectFiles, is_unit_whole, object_name
from tokenmill.output.workspace import CUTS, JOURNAL, MADE_BY_PARTS, RECORDS, WORK, WorkArea
from tokenmill.settings import is_plain_path
from tokenmill.system.spill import SpillFolder, scratch_folder
from tokenmill.system.store import ObjectStore, read_small

DRIVER = f"{WORK}/driver"
UNITS = f"{WORK}/units"
NAMES = f"{WORK}/names"
ORDER = f"{WORK}/order"


class ObjectWorkspace(WorkArea):
    store: ObjectStore
    has_places = False
    takes_over = True

    def __init__(self, store: ObjectStore, scratch: str = "") -> None:
        """`scratch`: a folder of this machine for what need not survive."""
        self.store, self.address = store, store.address
        self.local = Path(scratch or tempfile.gettempdir())
        folder = scratch_folder(str(self.local), Path(store.where()))
        self.spill = SpillFolder(folder, shared=True)
        self.downloads = folder / "downloads"
        self._lease: DriverLease | None = None
        self._announced: dict[str, None] = {}
        self._names_log: ObjectLog | None = None

    def has_work(self) -> bool:
        return next(iter(self.store.names(f"{WORK}/")), None) is not None

    def lock(self) -> DriverLease:
        self.store.check_conditions()
        self._lease = DriverLease.take(self.store, DRIVER)
        if self.address:  # else no other process can open it
            self._lease.begin_beating()
        return self._lease

    def lock_if_free(self, check_interrupt: Callable[[], None]) -> DriverLease | None:
        """None: another coordinator is at work, or has begun at this moment."""
        self.store.check_conditions()
        try:
            self._lease = DriverLease.take(self.store, DRIVER, check_interrupt)
        except RefusedError:
            return None
        self._lease.begin_beating()
        return self._lease

    def _check_lease(self) -> None:
        """Before anything is removed, recorded or published."""
        if self._lease is not None:
            self._lease.check()

    def _check_unfinished(self) -> None:
        """Before a part, which holds no lease, records something."""
        if not self.has(self.plan):
            raise RefusedError(
                f"{self.where()}: the job was finished or removed meanwhile",
                hint="`tokenmill status` shows what is there",
            )

    # --- what is written while the job is at work ----------------------------------------------

    def bind(self, plan: bytes) -> None:
        create_once(self.store, self.plan, plan)

    def open_files(self) -> ObjectFiles:
        return ObjectFiles(self.store, UNITS)

    def read_log(
        self, name: str, fingerprint: str, decode: Callable[[bytes], Record]
    ) -> tuple[list[Record], int]:
        header = journal_header(fingerprint)
        if name in (RECORDS, MADE_BY_PARTS):
            return read_hashed(self.store, f"{WORK}/{name}", header, decode), 0
        return read_objects(self.store, f"{WORK}/{name}", header, decode)

    def open_log(self, name: str, position: int, header: bytes) -> ObjectLog | HashedLog:
        if name == RECORDS:
            return HashedLog(self.store, f"{WORK}/{name}", header, self._check_lease)
        if name == MADE_BY_PARTS:
            return HashedLog(self.store, f"{WORK}/{name}", header, self._check_unfinished)
        return ObjectLog(self.store, f"{WORK}/{name}", position, header, self._check_lease)

    def next_record(self, name: str) -> int:
        """Where the next record of a log goes."""
        return next_number(self.store, f"{WORK}/{name}")

    def is_whole(self, record: UnitRecord) -> bool:
        return is_unit_whole(self.store, UNITS, record)

    def object_of(self, record: UnitRecord) -> str:
        return object_name(UNITS, record)

    def put_run_record(self, record: dict[str, Any]) -> None:
        self._check_lease()
        super().put_run_record(record)

    def put_stopped(self, message: str, hint: str) -> None:
        with contextlib.suppress(RefusedError):  # another one goes on, or has finished
            self._check_lease()
            super().put_stopped(message, hint)

    def put_cut(self, number: int, content: bytes) -> None:
        self.store.write_whole(f"{CUTS}/{number}", content)

    # --- the commit ----------------------------------------------------------------------------

    def name_of(self, working: str, path: str) -> str:
        return path

    def work_name(self, working: str) -> str:
        return f"{ORDER}/{working}"

    @property
    def made_in(self) -> str:
        return self.where()

    def announce(self, names: Iterable[str]) -> None:
        if self._names_log is None:
            known, number = self._read_names()
            self._announced.update(dict.fromkeys(known))
            self._names_log = ObjectLog(self.store, NAMES, number, b"", self._check_lease)
        ours = f"{WORK}/"  # what is there is known for ours by its name
        new = [one for one in names if one not in self._announced and not one.startswith(ours)]
        if new:
            self._names_log.append(framed(msgspec.msgpack.encode(new)))
            self._announced.update(dict.fromkeys(new))

    def announced(self) -> list[str]:
        return self._read_names()[0]

    def _read_names(self) -> tuple[list[str], int]:
        decode = msgspec.msgpack.Decoder(list[str]).decode
        records, number = read_objects(self.store, NAMES, b"", decode)
        # What it names may be removed, and must be in the output.
        return [name for names in records for name in names if is_plain_path(name)], number

    def grown_files(self, files: JobFiles, fingerprint: str) -> JoinedFiles:
        return JoinedFiles(self.store, UNITS, RecordRows(self.placed_units(fingerprint)))

    def placed_units(self, fingerprint: str) -> RecordTable:
        """The units that have their places. Of two records of a unit the later one counts."""
        header = journal_header(fingerprint)
        records = each_in_objects(
            self.store, f"{WORK}/{JOURNAL}", header, lambda body: (unit_record(body), body)
        )
        return RecordTable(records, lambda found: found[-1], self.local)

    def publish(self, names: dict[str, str], decision: bytes, manifest: bytes) -> None:
        """The files have their names already. They are not a dataset before the manifest is there,
        and it names only what is."""
        self._check_lease()
        for name in names:
            if self.store.size(name) is None:
                raise StorageError(
                    f"{self.where(name)}: was made, and is not there any more",
                    hint="run the same command again: it is made again",
                )
        create_once(self.store, self.manifest, manifest)

    # --- removing ------------------------------------------------------------------------------

    def clear_work(self) -> None:
        """The plan goes first: what is left of the rest belongs to no job then."""
        self._check_lease()
        self.store.remove(self.plan)
        self._remove_all(keep=f"{DRIVER}/")
        self._announced, self._names_log = {}, None

    def remove_work(self) -> None:
        """The leases go last, in the order of their numbers: as long as there is one, it is the
        highest, and no coordinator that was taken over finds itself in charge again."""
        self._check_lease()
        self._remove_all(keep=f"{DRIVER}/")
        if self._lease is not None:
            self._lease.stop_beating()
        for name in list(self.store.names(f"{DRIVER}/")):
            self.store.remove(name)
        self.spill.drop()

    def _remove_all(self, keep: str) -> None:
        self.store.abort_uploads()
        names = list(self.store.names(f"{WORK}/"))
        self.store.remove_all(name for name in names if not name.startswith(keep))

    def begin_removal(self) -> None:
        self._check_lease()
        self.store.write_whole(self.removing, read_small(self.store, self.manifest))
        self.store.remove(self.manifest)

    def finish_removal(self, names: list[str]) -> None:
        self._check_lease()
        self.store.remove_all(names)
        self.store.remove(self.removing)
