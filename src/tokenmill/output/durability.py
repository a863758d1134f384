"""What has been written, what of it is durable, and what the manifest will say.

A written unit becomes durable in two steps, every few seconds or 256 MB: its files are synced by
the process that wrote it, then its record is appended to the journal and the journal synced. A
crash in between costs the units since the last sync, never more. The engine syncs what a dead
worker wrote on the same host.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np

from tokenmill.errors import RefusedError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import AsideRecord, UnitRecord, frame_record, journal_header
from tokenmill.output.workspace import JOURNAL, RECORDS, WorkArea
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings
from tokenmill.tokens.counts import Counts, MixCounts
from tokenmill.tokens.order import origin_of, run_name
from tokenmill.tokens.splits import U64

EVIDENCE_ROWS = 1 << 16  # pieces


class UnitTable:
    """Every unit and piece of the dataset in compact columns: some 200 bytes a unit."""

    def __init__(self, sources: int, *, counts_only: bool = False) -> None:
        """`counts_only`: of units that have no places yet, which are told again with them."""
        self.counts_only = counts_only
        self.by_source = [Counts() for _ in range(sources)]
        self.mix_counts: list[MixCounts] = []  # by source, of a mixture: once all is chosen
        self.file_ids: dict[str, int] = {}
        self.pieces = array("Q")  # file, offset, length, digest
        self.units = array("Q")  # source, segment, part, first row, rows
        self.texts = array("Q")  # text bytes, tokens, documents of each unit
        self.set_aside: list[tuple[int, AsideRecord]] = []  # by source
        self.further: list[UnitId] = []  # units of further passes over the inputs
        self.objects: dict[UnitId, str] = {}  # of sorted documents, in a store without places
        self._rows_before: dict[UnitId, int] = {}  # of those that count rows in their unit

    def add(self, record: UnitRecord, object_name: str = "") -> None:
        """`object_name`: of the object that holds the pieces, where no file grows."""
        unit = record.unit
        if unit.source < len(self.by_source):  # else it brings documents of units into order
            self.by_source[unit.source].add(record.counts)
            if self.counts_only:
                return
            self.units.extend(
                (unit.source, unit.segment, unit.part, record.before.rows, record.counts.rows)
            )
            counts = record.counts
            self.texts.extend((counts.text_bytes, counts.tokens, counts.documents))
        origin = origin_of(unit.source, len(self.by_source))
        if origin not in (-1, unit.source):
            self.further.append(unit)
            self._add_further(origin, record.counts)
        self.set_aside += [(origin, one) for one in record.set_aside]
        for piece in record.pieces:
            file = self.file_ids.setdefault(piece.file, len(self.file_ids))
            self.pieces.extend((file, piece.offset, piece.length, piece.digest))
        if object_name and record.pieces and record.pieces[0].file == run_name(unit):
            self.objects[unit] = object_name
            if record.object:
                self._rows_before[unit] = record.before.rows

    def _add_further(self, source: int, counts: Counts) -> None:
        """What a further pass has encoded was not chosen before."""
        again = msgspec.structs.replace(counts, rows=0, not_chosen=-counts.written_or_lost)
        self.by_source[source].add(again)

    def run_file(self, unit: UnitId) -> str:
        """The file that begins with a unit's sorted documents."""
        return self.objects.get(unit) or run_name(unit)

    def rows_before(self, unit: UnitId) -> int:
        """What is to be added to the rows in that file."""
        return self._rows_before.get(unit, 0)

    def choose(self, by_source: list[Counts], mix_counts: list[MixCounts]) -> None:
        """What a mixture takes of the documents that were encoded."""
        self.by_source, self.mix_counts = by_source, mix_counts

    def mix_of(self, source: int) -> dict[str, dict[str, int]]:
        """For the manifest: of a mixture, what there is to train on and what is taken."""
        if not self.mix_counts:
            return {}
        train = msgspec.structs.asdict(self.mix_counts[source])
        if not train["bound"]:  # a mixture without it stays as it was
            del train["bound"]
        return {"train": train}

    def sizes(self) -> dict[str, int]:
        """The bytes in each file."""
        pieces = np.frombuffer(self.pieces, np.uint64).reshape(-1, 4).astype(np.int64)
        total = np.zeros(len(self.file_ids), np.int64)
        np.add.at(total, pieces[:, 0], pieces[:, 2])
        return {name: int(total[number]) for name, number in self.file_ids.items()}

    def in_order(self) -> tuple[U64, U64]:
        """Units and their texts, in document order: the columns of `units` and of `texts`."""
        units = np.frombuffer(self.units, np.uint64).reshape(-1, 5)
        texts = np.frombuffer(self.texts, np.uint64).reshape(-1, 3)
        order = np.lexsort((units[:, 2], units[:, 1], units[:, 0]))
        return units[order], texts[order]

    def all_units(self) -> list[UnitId]:
        """In document order."""
        units, _ = self.in_order()
        return [UnitId(*unit) for unit in units[:, :3].tolist()]

    def evidence(self) -> Iterator[bytes]:
        """The digests of everything written, in an order that does not depend on the run. Some at a
        time: a copy of all of them would be 70 bytes of memory for each unit."""
        pieces = np.frombuffer(self.pieces, np.uint64).reshape(-1, 4)[:, 1:]
        order = np.lexsort(pieces.T)
        for first in range(0, len(order), EVIDENCE_ROWS):
            yield pieces[order[first : first + EVIDENCE_ROWS]].tobytes()


class FileSync:
    """Makes durable what was written to files: their bytes, and the names of new ones."""

    def __init__(self, workspace: WorkArea) -> None:
        self._files = workspace.open_files()
        self._known_files: set[str] = set()

    def watch(self, files: set[str]) -> None:
        """Workers of this host have written to these files."""
        for file in files:
            self._files.watch(file)

    def sync(self, files: set[str]) -> None:
        for file in sorted(files):
            self._files.sync(file)
        if not files <= self._known_files:
            self._files.sync_names("")
            self._known_files |= files

    def close(self) -> None:
        self._files.close()


class WorkerSync:
    """The syncs of a worker: in bulk, in a thread, each reported with the units it was for.

    With `sync_seconds` 0 every unit is synced before `written` returns, for tests: in one order.
    """

    def __init__(
        self,
        workspace: WorkArea,
        run: RunSettings,
        report: Callable[[list[UnitId]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.run, self._report, self._failed = run, report, failed
        self._file_sync = FileSync(workspace)
        self._change = threading.Condition()
        self._units: list[UnitId] = []
        self._files: set[str] = set()
        self._bytes = 0
        if run.sync_seconds > 0:
            threading.Thread(target=self._work, daemon=True).start()

    def written(self, record: UnitRecord) -> None:
        with self._change:
            self._units.append(record.unit)
            self._files |= {piece.file for piece in record.pieces}
            self._bytes += sum(piece.length for piece in record.pieces)
            if self._bytes > self.run.sync_bytes:
                self._change.notify()
        if self.run.sync_seconds == 0:
            self._sync()

    def _work(self) -> None:
        alive = True
        while alive:
            with self._change:
                self._change.wait_for(
                    lambda: self._bytes > self.run.sync_bytes, self.run.sync_seconds
                )
            alive = self._sync()

    def _sync(self) -> bool:
        with self._change:
            units, files = self._units, self._files
            self._units, self._files, self._bytes = [], set(), 0
        try:
            if units:
                self._file_sync.sync(files)
                self._report(units)
        except BaseException as error:
            self._failed(error)  # and never again: see `UnitLog`
            return False
        return True


class UnitLog:
    def __init__(
        self,
        plan: Plan,
        run: RunSettings,
        workspace: WorkArea,
        durable: Iterable[UnitRecord],
        journal_length: int,
        expected: dict[UnitId, UnitRecord],
        log: str = JOURNAL,
    ) -> None:
        self.plan, self.run = plan, run
        self.workspace = workspace
        self.ledger = UnitTable(len(plan.sources), counts_only=log == RECORDS)
        self.resumed_units = 0
        for record in durable:
            self.ledger.add(record, workspace.object_of(record))
            self.resumed_units += record.unit.source < len(plan.sources)
        self.encoded_units = 0
        self.expected = expected
        self.on_durable: Callable[[list[UnitRecord]], None] = lambda records: None
        self._journal = workspace.open_log(
            log, journal_length, journal_header(plan.work_fingerprint)
        )
        self._file_sync = FileSync(workspace)
        self._waiting: dict[UnitId, UnitRecord] = {}  # written, in this order
        self._waiting_bytes = 0
        self._synced: set[UnitId] = set()  # of these: by the worker that wrote them
        self._orphans: set[UnitId] = set()  # by a worker that died on this host: ours to sync
        self._elsewhere: set[UnitId] = set()  # on other hosts: only their workers can sync them
        self._last_sync = time.monotonic()
        self._syncer = ThreadPoolExecutor(max_workers=1)
        # For good, if it failed: after a failed fsync the kernel may have dropped the pages and a
        # second one would succeed. Nothing more is called durable; the units are written again.
        self._syncing: Future[None] | None = None

    def written(self, record: UnitRecord, *, here: bool = True) -> None:
        """A unit's pieces are in the files (in the page cache of a host, not yet durable)."""
        earlier = self.expected.pop(record.unit, None)
        if earlier is not None and earlier != record:
            raise RefusedError(
                f"{self._name_of(record.unit)}: changed since this job was begun "
                f"(same size): unit {record.unit} is not what it was when it was first written",
                hint="start over with --overwrite, or restore the input",
            )
        self._waiting[record.unit] = record
        (self._elsewhere.discard if here else self._elsewhere.add)(record.unit)
        self._waiting_bytes += sum(piece.length for piece in record.pieces)
        self.encoded_units += 1
        if here and self.run.workers > 0 and self.run.sync_seconds > 0:
            # Its worker may meet an error in its sync, and be killed before it can tell.
            # In the syncer's thread, which has the files to itself.
            self._syncer.submit(self._file_sync.watch, {piece.file for piece in record.pieces})

    def _name_of(self, unit: UnitId) -> str:
        sources = self.plan.sources
        return sources[origin_of(unit.source, len(sources))].name

    def synced(self, units: list[UnitId]) -> None:
        """The worker that wrote these units has synced them."""
        self._synced.update(unit for unit in units if unit in self._waiting)

    def orphaned(self, units: list[UnitId]) -> None:
        """Their worker died: they are synced by this process, which is on the same host."""
        self._orphans.update(unit for unit in units if unit in self._waiting)

    def lost(self, units: list[UnitId]) -> None:
        """Their worker died on another host: they wait, in their turn, until written again."""
        for unit in units:
            self.expected[unit] = self._waiting[unit]
        self.encoded_units -= len(units)

    def worker_failed_to_sync(self, error: BaseException) -> None:
        self._syncing = Future()
        self._syncing.set_exception(error)

    def sync_if_due(self) -> None:
        """Start a sync in the background when enough has gathered; raise what one before hit.

        With `sync_seconds` 0 it is complete before this returns, for tests: in one order.
        """
        at_once = self.run.sync_seconds == 0
        if at_once or self._syncing is None or self._syncing.done():
            late = time.monotonic() - self._last_sync > self.run.sync_seconds
            enough = at_once or late or self._waiting_bytes > self.run.sync_bytes
            self._begin_sync(self._ready(all_here=enough and self.run.workers == 0))
            if at_once and self._syncing is not None:
                self._syncing.result()

    def sync_now(self) -> None:
        """Everything written on this host so far is durable when this returns."""
        self._begin_sync(self._ready(all_here=True))
        if self._syncing is not None:
            self._syncing.result()

    def _ready(self, *, all_here: bool) -> list[UnitRecord]:
        """What may go to the journal: synced by its worker, or for this process to sync."""
        found: list[UnitRecord] = []
        if not (all_here or self._synced or self._orphans):
            return found
        for unit, record in self._waiting.items():
            ours = unit in self._orphans or (all_here and unit not in self._elsewhere)
            if ours or unit in self._synced:
                found.append(record)
            elif record.set_aside:
                break  # the places of later units depend on rows that only this record names
        return found

    def _begin_sync(self, records: list[UnitRecord]) -> None:
        if self._syncing is not None:
            self._syncing.result()
        if not records:
            return
        by_us = [record for record in records if record.unit not in self._synced]
        for record in records:
            del self._waiting[record.unit]
            for units in (self._synced, self._orphans, self._elsewhere):
                units.discard(record.unit)
        self._waiting_bytes = 0
        self._last_sync = time.monotonic()
        files = {piece.file for record in by_us for piece in record.pieces}
        self._syncing = self._syncer.submit(self._sync, records, files)

    def close(self) -> None:
        self._syncer.shutdown()
        self._file_sync.close()
        self._journal.close()

    def _sync(self, records: list[UnitRecord], files: set[str]) -> None:
        self._file_sync.sync(files)
        self._journal.append(b"".join(map(frame_record, records)))
        for record in records:
            self.ledger.add(record, self.workspace.object_of(record))
        self.on_durable(records)
