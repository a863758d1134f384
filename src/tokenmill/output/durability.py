"""What has been written, what of it is durable, and what the manifest will say.

A written unit becomes durable in two steps, every few seconds or 256 MB: its files are synced,
then its record is appended to the journal and the journal synced. A crash in between costs the
units since the last sync, never more.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tokenmill.errors import RefusedError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.files import AppendLog, OutputFiles
from tokenmill.output.journal import AsideRecord, UnitRecord, frame_record, journal_header
from tokenmill.output.workspace import Workspace
from tokenmill.planning.plan import Plan
from tokenmill.settings import RunSettings
from tokenmill.system.disk import sync_directory
from tokenmill.tokens.counts import Counts


class UnitTable:
    """Every unit and piece of the dataset in compact columns: some 200 bytes a unit."""

    def __init__(self, sources: int) -> None:
        self.by_source = [Counts() for _ in range(sources)]
        self.file_ids: dict[str, int] = {}
        self.pieces = array("Q")  # file, offset, length, digest
        self.units = array("Q")  # source, segment, part, first row, rows
        self.set_aside: list[tuple[int, AsideRecord]] = []  # by source

    def add(self, record: UnitRecord) -> None:
        unit = record.unit
        self.by_source[unit.source].add(record.counts)
        self.units.extend(
            (unit.source, unit.segment, unit.part, record.before.rows, record.counts.rows)
        )
        self.set_aside += [(unit.source, one) for one in record.set_aside]
        for piece in record.pieces:
            file = self.file_ids.setdefault(piece.file, len(self.file_ids))
            self.pieces.extend((file, piece.offset, piece.length, piece.digest))

    def evidence(self) -> bytes:
        """The digests of everything written, in an order that does not depend on the run."""
        pieces = np.frombuffer(self.pieces, np.uint64).reshape(-1, 4)[:, 1:]
        return pieces[np.lexsort(pieces.T)].tobytes()


class UnitLog:
    def __init__(
        self,
        plan: Plan,
        run: RunSettings,
        workspace: Workspace,
        durable: list[UnitRecord],
        journal_length: int,
        expected: dict[UnitId, UnitRecord],
    ) -> None:
        self.plan, self.run = plan, run
        self.workspace = workspace
        self.ledger = UnitTable(len(plan.sources))
        for record in durable:
            self.ledger.add(record)
        self.resumed_units = len(durable)
        self.encoded_units = 0
        self.expected = expected
        self.on_durable: Callable[[list[UnitRecord]], None] = lambda records: None
        self._journal = AppendLog(
            workspace.journal, journal_length, journal_header(plan.fingerprint)
        )
        self._files = OutputFiles(workspace)
        self._known_files: set[str] = set()
        self._waiting: list[UnitRecord] = []
        self._waiting_bytes = 0
        self._last_sync = time.monotonic()
        self._syncer = ThreadPoolExecutor(max_workers=1)
        # For good, if it failed: after a failed fsync the kernel may have dropped the pages and a
        # second one would succeed. Nothing more is called durable; the units are written again.
        self._syncing: Future[None] | None = None

    def written(self, record: UnitRecord) -> None:
        """A unit's pieces are in the files (in the page cache, not yet durable)."""
        earlier = self.expected.pop(record.unit, None)
        if earlier is not None and earlier != record:
            raise RefusedError(
                f"{self.plan.sources[record.unit.source].name}: changed since this job was begun "
                f"(same size): unit {record.unit} is not what it was when it was first written",
                hint="start over with --overwrite, or restore the input",
            )
        self._waiting.append(record)
        self._waiting_bytes += sum(piece.length for piece in record.pieces)
        self.encoded_units += 1

    def sync_if_due(self) -> None:
        """Start a sync in the background when enough has gathered; raise what one before hit.

        With `sync_seconds` 0 every unit is synced before this returns, for tests: in one order.
        """
        if self.run.sync_seconds == 0:
            self.sync_now()
        elif self._syncing is None or self._syncing.done():
            late = time.monotonic() - self._last_sync > self.run.sync_seconds
            self._begin_sync(late or self._waiting_bytes > self.run.sync_bytes)

    def sync_now(self) -> None:
        """Everything written so far is durable when this returns."""
        self._begin_sync(True)
        if self._syncing is not None:
            self._syncing.result()

    def _begin_sync(self, due: bool) -> None:
        if self._syncing is not None:
            self._syncing.result()
        if due and self._waiting:
            records, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._last_sync = time.monotonic()
            self._syncing = self._syncer.submit(self._sync, records)

    def close(self) -> None:
        self._syncer.shutdown()
        self._files.close()
        self._journal.close()

    def _sync(self, records: list[UnitRecord]) -> None:
        files = {piece.file for record in records for piece in record.pieces}
        for file in sorted(files):
            self._files.sync(file)
        if not files <= self._known_files:
            sync_directory(self.workspace.files)
            self._known_files |= files
        self._journal.append(b"".join(map(frame_record, records)))
        for record in records:
            self.ledger.add(record)
        self.on_durable(records)
