"""What a worker does to place a unit that is written already: no tokens are copied.

It reads where documents end and which rows they are, and hashes both as they will be in the files
of the dataset. It reads tokens only where the border of a file is inside the unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import numpy as np
import xxhash

from tokenmill.engines.messages import Activity, EncodeTask, PlaceUnits, UnitSummary
from tokenmill.engines.order.order_worker import NoSession
from tokenmill.engines.unit import ReportActivity
from tokenmill.engines.writing.encoded_unit import EncodedUnit
from tokenmill.errors import StorageError
from tokenmill.formats import get_format
from tokenmill.formats.base import itemsize
from tokenmill.output.files import JobFiles
from tokenmill.output.journal import PieceRecord, UnitRecord
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.relative import BAD_ROWS, Shift
from tokenmill.output.objects.units import UnitPiece, pieces_in
from tokenmill.output.objects.workspace import UNITS
from tokenmill.settings import PlanSettings, RunSettings
from tokenmill.system.memory import Budget
from tokenmill.system.store import read_range
from tokenmill.texts import I64
from tokenmill.tokens.counts import State
from tokenmill.tokens.placement import CutRule, NeedStarts, Piece, StreamCounts, StreamState
from tokenmill.tokens.splits import WorkingFile, stream_name, streams_of


class PlaceJob(msgspec.Struct, frozen=True, tag=True):
    """All a worker needs to know: small plain data, sent once."""

    settings: PlanSettings
    run: RunSettings
    budget: Budget
    output: str


@dataclasses.dataclass
class WrittenUnit(EncodedUnit):
    """A unit that is written already."""

    record: UnitRecord | None = None


class PlaceWorker:
    def __init__(self, job: PlaceJob, files: JobFiles | None = None) -> None:
        """`files`: where only this process can open them."""
        self.job, self.settings, self.memory = job, job.settings, job.budget.worker_bytes
        self.session = NoSession()
        self.files = files or open_workspace(job.output).open_files()
        self.rules = CutRule.all_of(job.settings, job.settings.first)
        self.names = [stream_name(splits) for splits in streams_of(job.settings.val)]
        layout = job.settings.first
        self.header_bytes = get_format(layout.format).header_bytes(layout)
        self.itemsize = itemsize(layout)
        self.spill_held: Callable[[], None] = lambda: None

    def close(self) -> None:
        self.files.close()

    def encode_segment(self, work: EncodeTask, progress: ReportActivity) -> Iterator[EncodedUnit]:
        """The units of a segment, in order."""
        for record in cast("PlaceUnits", work).records:
            if record.unit.part in work.skip:
                continue
            progress(Activity("read", record.unit.part))
            summary = UnitSummary(
                record.unit,
                record.last,
                record.before.rows,
                record.lines,
                record.counts,
                record.streams,
            )
            yield WrittenUnit(summary, [], [], work, 0, 0, record=record)

    def place(self, encoded: EncodedUnit, before: State) -> UnitRecord:
        """The record of a unit in its place."""
        record = cast("WrittenUnit", encoded).record
        assert record is not None
        unit = _UnitParts(self.files, record)
        pieces: list[PieceRecord] = []
        streams: list[StreamState] = []
        quarantine_bytes = before.quarantine_bytes
        if self.settings.by_key:
            pieces += [piece for piece in record.pieces if piece.file != BAD_ROWS]
        else:
            for rule, name, state, counts in zip(
                self.rules, self.names, before.streams, record.streams, strict=True
            ):
                mine, after = self._stream(unit, rule, name, state, counts, before)
                pieces += mine
                streams.append(after)
        if BAD_ROWS in unit:
            lines = unit.read(BAD_ROWS, Shift("quarantine", before))
            pieces.append(_piece("quarantine", quarantine_bytes, lines))
            quarantine_bytes += len(lines)
        return msgspec.structs.replace(
            record,
            before=before,
            after=State(
                streams=tuple(streams),
                source=before.source,
                rows=before.rows + record.counts.rows,
                lines=before.lines + record.lines,
                quarantine_bytes=quarantine_bytes,
            ),
            pieces=tuple(pieces),
            set_aside=tuple(
                msgspec.structs.replace(one, row=before.rows + one.row) for one in record.set_aside
            ),
            streams=(),
            object=unit.object,
        )

    def _stream(
        self,
        unit: _UnitParts,
        rule: CutRule,
        name: str,
        state: StreamState,
        counts: StreamCounts,
        before: State,
    ) -> tuple[list[PieceRecord], StreamState]:
        """The pieces of one stream, and the state after them."""
        try:
            laid, after = rule.lay_out(state, counts, starts=None)
        except NeedStarts:
            laid, after = rule.lay_out(state, counts, unit.starts(name, counts))
        pieces = [self._tokens(unit, name, piece, whole=len(laid) == 1) for piece in laid]
        if counts.documents:
            ends = unit.read(f"{name}.ends", Shift("ends", before, state))
            pieces.append(_piece(f"{name}.ends", state.documents * 8, ends))
            runs = unit.read(f"{name}.runs", Shift("runs", before, state))
            pieces.append(_piece(f"{name}.runs", state.runs * 24, runs))
        return pieces, after

    def _tokens(self, unit: _UnitParts, name: str, piece: Piece, *, whole: bool) -> PieceRecord:
        file = WorkingFile(piece.split, piece.file).name
        offset = self.header_bytes + piece.at * self.itemsize
        if whole:
            found = unit.piece(f"{name}.tokens")
            return PieceRecord(file, offset, found.length, found.digest)
        first, stop = piece.start * self.itemsize, piece.stop * self.itemsize
        return _piece(file, offset, unit.read(f"{name}.tokens")[first:stop])


def _piece(file: str, offset: int, content: bytes) -> PieceRecord:
    return PieceRecord(file, offset, len(content), xxhash.xxh3_64_intdigest(content))


class _UnitParts:
    """The parts of a unit that was written before its place was known, by name."""

    def __init__(self, files: JobFiles, record: UnitRecord) -> None:
        self._files = files
        self._pieces: dict[str, UnitPiece] = {}
        self.object = ""
        for name, piece in pieces_in(UNITS, record):
            self._pieces[name] = piece
            self.object = piece.object.rpartition("/")[2]

    def __contains__(self, name: str) -> bool:
        return name in self._pieces

    def piece(self, name: str) -> UnitPiece:
        return self._pieces[name]

    def read(self, name: str, shift: Shift | None = None) -> bytes:
        """A part, compared with its digest, then made absolute."""
        piece = self._pieces[name]
        content = read_range(self._files, piece.object, piece.at, piece.length)
        if len(content) != piece.length or xxhash.xxh3_64_intdigest(content) != piece.digest:
            raise StorageError(
                f"{self._files.where(piece.object)}: is not what it was when it was written",
                hint="run the same command again: what is damaged is encoded again",
            )
        return content if shift is None else shift.apply(content)

    def starts(self, name: str, counts: StreamCounts) -> I64:
        """The first tokens of the documents that begin in the unit."""
        ends: I64 = np.zeros(0, np.int64)
        if counts.documents:
            ends = np.frombuffer(self.read(f"{name}.ends"), "<u8").astype(np.int64)
        begun = np.concatenate((np.zeros(1, np.int64), ends))
        return begun[: counts.documents + counts.open][int(counts.continued) :]
