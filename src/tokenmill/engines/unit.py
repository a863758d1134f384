"""The work on one unit: read, encode, pack, and later write it to its place.

The same code runs in a worker process, in the caller's process (`--workers 0`) and wherever else
an engine puts it; it knows nothing of other units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NoReturn

import msgspec
import numpy as np

from tokenmill.engines.messages import Activity, EncodeTask, TryRows, UnitSummary
from tokenmill.engines.order.skipping import Skipping, only_fatal
from tokenmill.engines.reuse.old_documents import OldDocuments
from tokenmill.engines.writing.encoded_unit import EncodedUnit
from tokenmill.engines.writing.stream_writer import StreamWriter
from tokenmill.errors import BadRowError, TokenmillError, WorkerError
from tokenmill.inputs.batch import BadRow, Batch, SignOfLife
from tokenmill.inputs.kind import ReadRequest
from tokenmill.inputs.kinds import kind_named, read_segment, reading_for, refuse_changed
from tokenmill.inputs.readers.fragments import LONG_BYTES
from tokenmill.inputs.segments import BATCH_BYTES, UNIT_BYTES, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.files import JobFiles
from tokenmill.output.journal import AsideRecord, UnitRecord
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.relative import BAD_ROWS, BadRows
from tokenmill.output.order.sorted_run import sorted_stream
from tokenmill.output.prepared.reader import ids_of, read_prepared
from tokenmill.planning.reuse import Reuse
from tokenmill.settings import PlanSettings, RunSettings
from tokenmill.system.memory import LONG_WORD_BYTES, NO_LIMIT, WORDS_FACTOR, Budget, MemoryShare
from tokenmill.system.proc import resident_bytes
from tokenmill.texts import Texts, longest_word
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.families import family_of
from tokenmill.tokenizer.known import KnownIds
from tokenmill.tokenizer.session import EncoderSession
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.order import run_name
from tokenmill.tokens.packing import Packer, rows_within
from tokenmill.tokens.placement import StreamCounts, StreamState
from tokenmill.tokens.splits import document_hash

QUARANTINE_BYTES = 1 << 20  # of a bad row's content are kept; beyond, length and sha256 tell
REOPEN_BYTES = 64_000_000
HEADROOM_BYTES = 100_000_000  # for the next batch: its text, its ids, a decoded row group
CHECK_SEED = 0x746F6B656E
ROW_BYTES = 16  # added for each row when units are cut: a billion empty rows are many units


class WorkerJob(msgspec.Struct, frozen=True, tag=True):
    """All a worker needs to know: small plain data, sent once."""

    settings: PlanSettings
    run: RunSettings
    budget: Budget
    encoding: Encoding
    output: str
    reuse: Reuse | None = None
    skipping: Skipping | None = None  # of a mixture: documents that need not be encoded
    relative: bool = False  # units are written at once, and get their places later


ReportActivity = Callable[[Activity], None]


class UnitWorker:
    """Encodes segments into units and writes units to their places."""

    def __init__(
        self, job: WorkerJob, encoder: ExactEncoder | None = None, files: JobFiles | None = None
    ) -> None:
        self.job, self.settings, self.memory = job, job.settings, job.budget.worker_bytes
        encoding = job.encoding
        self.session = EncoderSession(
            encoder or ExactEncoder(encoding, job.run.encoder),
            job.run.encoder_check,
            limit=self.memory - HEADROOM_BYTES,
            growth=REOPEN_BYTES,
        )
        self.session.more_stats["encoded_bytes"] = 0
        self.old = None if job.reuse is None else OldDocuments(job.reuse, self.session)
        self.writer = StreamWriter(job.settings, files or open_workspace(job.output).open_files())
        self.specials = [text.encode() for text in encoding.special_tokens]
        self._check_rows: bool | None = None  # while rows are tried: check each of them, or none
        self.spill_held: Callable[[], None] = lambda: None  # units that wait for their place
        self.room = MemoryShare(
            self.memory,
            job.budget.wanted,
            self._whole_factor(),
            family_of(encoding).unbroken_factor,
            self._make_room,
        )

    def close(self) -> None:
        """Let go of files and encoder at once: this object is in a cycle, and the collector may
        take its time. It does not see the encoder's 50 to 250 MB."""
        self.writer.files.close()
        del self.session

    # --- encoding ----------------------------------------------------------------------------

    def encode_segment(
        self, work: EncodeTask, progress: ReportActivity, stop_row: int | None = None
    ) -> Iterator[EncodedUnit]:
        """The segment's units in order. It ends before `stop_row`, as the segment counts rows."""
        source, skip = work.source, work.skip
        refuse_changed(source)
        building = _UnitBuilder(self, work, 0)
        here = not kind_named(source.kind).cuts_documents

        def alive() -> None:
            progress(Activity("read", building.part))

        for batch in self._read(work, alive, self.room):
            if stop_row is not None:
                if batch.first_row >= stop_row:
                    break
                batch = batch.until(stop_row)  # noqa: PLW2901
            if building.size >= UNIT_BYTES:
                if building.part not in skip:
                    yield building.finish(last=False)
                building = building.successor()
            encode = building.part not in skip
            for part in building.slices(batch) if encode else (batch,):
                if encode:
                    progress(_doing("encode", building.part, part, here))
                building.add(part, encode=encode)
            progress(_doing("read", building.part, batch))
            if building.enough:
                break
        refuse_changed(source)
        if building.part not in skip:
            yield building.finish(last=True)

    def try_rows(self, wanted: TryRows, progress: ReportActivity) -> None:
        """Encode rows one by one and throw the result away: does one of them end this process?"""
        work, rows = wanted.work, range(wanted.first_row, wanted.stop_row)

        def alive() -> None:
            progress(Activity("read", wanted.part))

        alive()
        for batch in self._read(work, alive, NO_LIMIT, whole=True):
            if batch.first_row >= rows.stop:
                break
            packer = Packer(self.settings, work.source)
            for index in (i for i, row in enumerate(batch.rows.tolist()) if row in rows):
                one = batch.document(index)
                progress(_doing("encode", wanted.part, one))
                self._check_rows = wanted.check
                self.encode_batch(work.source, one, packer)
                self._check_rows = None
            alive()

    def _read(
        self, work: EncodeTask, alive: SignOfLife, room: MemoryShare, *, whole: bool = False
    ) -> Iterator[Batch]:
        ranges = self.job.run.on_bad_row == "quarantine"
        source, segment, reading = work.source, work.segment, self.settings.reading
        if kind_named(source.kind).holds_ids:
            request = ReadRequest(source, segment, reading, work.aside, alive, room)
            return read_prepared(request)
        return read_segment(
            source, segment, reading, work.aside, alive, room, whole=whole, ranges=ranges
        )

    def encode_batch(
        self, source: Source, batch: Batch, packer: Packer, known: Sequence[KnownIds] = ()
    ) -> None:
        """Encode one batch into the packer."""
        place = 0
        if len(batch.positions):
            place = int(document_hash(CHECK_SEED, source.number, batch.positions[:1])[0])
        try:
            if kind_named(source.kind).holds_ids:
                ids, offsets = ids_of(batch.texts)
            elif known:
                ids, offsets = self.session.complete(batch.texts, known, place)
            else:
                ids, offsets = self.session.encode(batch.texts, place, check=self._check_rows)
        except TokenmillError as error:
            if len(batch.rows):
                first = int(batch.positions[0])
                error.located(f"in the {len(batch.rows)} rows at position {first}")
                error.located(source.name)
            raise
        if batch.fragment is not None:
            row, position = int(batch.rows[0]), int(batch.positions[0])
            packer.add_fragment(ids, batch.fragment, position, row)
        else:
            packer.add(ids, offsets, batch.positions, batch.rows)

    def count_specials(self, texts: Texts) -> int:
        """How many strings of special tokens stand in texts."""
        return self.session.count_specials(texts, self.specials)

    # --- memory ------------------------------------------------------------------------------

    def _make_room(self, need: int) -> None:
        """Before something large is held: whatever else takes memory goes."""
        if resident_bytes() + need > self.memory - REOPEN_BYTES:
            self.spill_held()
            self.session.drop_cache()

    def _whole_factor(self) -> int:
        """Memory for each byte of a document that is encoded whole."""
        reference_may = not self.session.encoder.is_fast or self.job.run.encoder_check == "all"
        if self.job.encoding.cuttable or not reference_may:
            return WORDS_FACTOR
        return family_of(self.job.encoding).reference_factor

    def take_room(self, source: Source, batch: Batch) -> None:
        """Room to encode a long document, or a part of one that has no place to be cut."""
        longest = int(batch.texts.lengths.max(initial=0))
        if longest <= LONG_BYTES or kind_named(source.kind).holds_ids:
            return
        index = int(batch.texts.lengths.argmax())
        document = batch.texts.slice(index, index + 1).used()
        steps = range(0, longest, BATCH_BYTES)
        word = longest_word(document[at : at + BATCH_BYTES] for at in steps)
        need = self.room.whole_need(longest, word)
        what = f"{longest:,} bytes of a document that are encoded whole"
        if word > LONG_WORD_BYTES:
            what += f", {word:,} of them without white space"
        held = self.room.held
        where = f"{source.name}: the row at position {int(batch.positions[index])}"
        self.room.take(held + need, where, what, held=held)

    # --- writing -----------------------------------------------------------------------------

    def place(self, encoded: EncodedUnit, before: State) -> UnitRecord:
        """Write a unit's pieces where `before` says; returns the record for the journal."""
        encoded = self._within_limits(encoded, before)
        work, summary = encoded.work, encoded.summary
        if encoded.bad and self.job.run.on_bad_row == "stop":  # not before: a limit might spare it
            self.stop_at(encoded.bad[0], work)
        packed, source = encoded.packed(), work.source.number
        streams: list[StreamState] = []
        if self.settings.by_key:  # its places are found later, document by document
            parts = [sorted_stream(one, source, before.rows) for one in packed]
            pieces = self.writer.write_sorted(run_name(summary.unit), parts)
        else:
            pieces, streams = self.writer.write_streams(packed, source, before)
        # Rows of the source before the segment, as far as they count for this unit; lines likewise.
        rows, lines = before.rows - encoded.first_row, before.lines - encoded.first_line
        quarantined = b"".join(
            bad.quarantine_line(work.source.name, rows, lines) for bad in encoded.bad
        )
        if quarantined:
            pieces.append(self.writer.write("quarantine", before.quarantine_bytes, quarantined))
        self.writer.files.unit_written(summary.unit, pieces)
        return UnitRecord(
            unit=summary.unit,
            last=summary.last,
            lines=summary.lines,
            counts=summary.counts,
            before=before,
            after=State(
                streams=tuple(streams),
                source=before.source,
                rows=before.rows + summary.counts.rows,
                lines=before.lines + summary.lines,
                quarantine_bytes=before.quarantine_bytes + len(quarantined),
            ),
            pieces=tuple(pieces),
            set_aside=tuple(
                AsideRecord(
                    rows + bad.row, bad.row, bad.reason, bad.rows * bool(bad.part), bad.part
                )
                for bad in encoded.bad
                if bad.fatal or bad.part
            ),
        )

    def write_relative(self, encoded: EncodedUnit) -> UnitRecord:
        """Write a unit whose place is not known yet; what it holds is counted in it."""
        work, summary, source = encoded.work, encoded.summary, encoded.summary.unit.source
        if self.settings.by_key:
            parts = [sorted_stream(one, source, 0) for one in encoded.streams]
            pieces = self.writer.write_sorted(run_name(summary.unit), parts)
        else:
            pieces = self.writer.write_relative(encoded.streams, source)
        if encoded.bad:
            place = encoded.first_row, encoded.first_line
            content = BadRows(work.source.name, *place, encoded.bad).encode()
            pieces.append(self.writer.write(BAD_ROWS, 0, content))
        self.writer.files.unit_written(summary.unit, pieces)
        before = State((), source, summary.rows_before, encoded.first_line)
        rows, lines = before.rows + summary.counts.rows, before.lines + summary.lines
        return UnitRecord(
            unit=summary.unit,
            last=summary.last,
            lines=summary.lines,
            counts=summary.counts,
            before=before,
            after=State((), source, rows, lines),
            pieces=tuple(pieces),
            set_aside=tuple(
                AsideRecord(
                    bad.row - encoded.first_row,
                    bad.row,
                    bad.reason,
                    bad.rows * bool(bad.part),
                    bad.part,
                )
                for bad in encoded.bad
                if bad.fatal or bad.part
            ),
            streams=summary.streams,
        )

    def _within_limits(self, encoded: EncodedUnit, before: State) -> EncodedUnit:
        """The unit, made again up to its last row where a limit of the plan falls into it."""
        if not self.settings.limited:
            return encoded
        documents = sum(state.documents for state in before.streams)
        tokens = sum(state.tokens for state in before.streams)
        rows = rows_within(encoded.packed(), documents, tokens, self.settings)
        if rows is None:
            return encoded
        if rows == encoded.summary.counts.rows and not any(p.open for p in encoded.packed()):
            return encoded
        before_it = list(range(encoded.summary.unit.part))
        work = msgspec.structs.replace(encoded.work, skip=before_it)
        return next(self.encode_segment(work, lambda _: None, encoded.first_row + rows))

    def stop_at(self, bad: BadRow, work: EncodeTask) -> NoReturn:
        """Say where the row is in its file, also when the reader began in the middle of it."""
        source = work.source
        reading = reading_for(source, self.settings.reading)
        where = kind_named(source.kind).place(source, work.segment, bad, reading)
        kind = WorkerError if bad.fatal else BadRowError
        raise kind(
            f"{source.name}: {where}: {bad.reason}",
            hint="run the same command with --on-bad-row quarantine to quarantine such rows and "
            "go on",
        )


class _UnitBuilder:
    """A unit under construction."""

    def __init__(self, worker: UnitWorker, work: EncodeTask, part: int) -> None:
        self.worker, self.work, self.source, self.part = worker, work, work.source, part
        self.packer = Packer(worker.settings, work.source)
        self.counts = Counts()
        self.bad: list[BadRow] = []
        self.first_row = -1  # of this unit, as its batches count them
        self.first_line = 0
        self.rows_before = 0
        self.lines = 0
        self.size = 0

    def successor(self) -> _UnitBuilder:
        following = _UnitBuilder(self.worker, self.work, self.part + 1)
        following.first_line = self.first_line + self.lines
        following.rows_before = self.rows_before + self.counts.rows
        return following

    @property
    def enough(self) -> bool:
        """Whether a limit of the plan is within this unit: a trial needs no more of it."""
        settings, packer = self.worker.settings, self.packer
        if not settings.limited or packer.is_open:
            return False
        return (
            0 < settings.limit_docs <= packer.documents
            or 0 < settings.limit_tokens <= packer.tokens
        )

    def slices(self, batch: Batch) -> Iterator[Batch]:
        """The batch; in a trial, no more documents at a time than the trial may need."""
        settings = self.worker.settings
        whole = batch.fragment is not None or batch.stands_for >= 0 or not batch.row_count
        if not settings.limited or whole:
            yield batch
            return
        first, stop, lines = batch.first_row, batch.first_row + batch.row_count, batch.line_count
        while first < stop and not self.enough:
            index = int(np.searchsorted(batch.rows, first))
            wanted = len(batch.rows) - index
            if settings.limit_docs:
                wanted = min(wanted, settings.limit_docs - self.packer.documents)
            if settings.limit_tokens:  # a token is a byte at least
                lengths = np.cumsum(batch.texts.lengths[index:])
                missing = settings.limit_tokens - self.packer.tokens
                wanted = min(wanted, 1 + int(np.searchsorted(lengths, missing)))
            after = index + max(1, wanted)
            row = int(batch.rows[after]) if after < len(batch.rows) else stop
            yield batch.between(first, row)._replace(line_count=lines)
            first, lines = row, 0

    def add(self, batch: Batch, *, encode: bool) -> None:
        if self.first_row < 0:
            self.first_row = batch.first_row
        self.size += batch.size + ROW_BYTES * batch.row_count
        self.counts.rows += batch.row_count
        self.lines += batch.line_count
        if not encode:
            return
        worker = self.worker
        skipping, has_text = worker.job.skipping, not kind_named(self.source.kind).holds_ids
        if skipping is not None and skipping.further:
            batch = only_fatal(batch)  # the others were quarantined in the first pass
        if batch.bad and worker.job.run.on_bad_row == "stop" and not worker.settings.limited:
            worker.stop_at(batch.bad[0], self.work)
        self.bad += [bad.cut(QUARANTINE_BYTES) for bad in batch.bad]
        self.counts.quarantined += batch.bad_rows
        if skipping is None or not skipping.further:
            self.counts.filtered += batch.filtered
            self.counts.text_bytes += batch.texts.size * has_text
            if has_text:
                self.counts.special_strings += worker.count_specials(batch.texts)
        if skipping is not None:
            batch = skipping.wanted(worker.settings, self.source, batch)
            if not len(batch.rows):
                return
        worker.session.more_stats["encoded_bytes"] += batch.texts.size * has_text
        known: Sequence[KnownIds] = ()
        if has_text and worker.old:
            known = worker.old.find(self.source, self.work.segment, batch)
        batch = batch._replace(rows=batch.rows - self.first_row)  # from here on, of the unit
        worker.take_room(self.source, batch)
        worker.encode_batch(self.source, batch, self.packer, known)

    def finish(self, *, last: bool) -> EncodedUnit:
        packed = self.packer.finish()
        self.counts.empty = self.packer.empty
        self.counts.dropped = self.packer.dropped + self.counts.filtered
        self.counts.too_short = self.packer.too_short
        self.counts.too_long = self.packer.too_long
        self.counts.documents = sum(p.documents for p in packed)
        self.counts.tokens = sum(len(p.tokens) for p in packed)
        if self.worker.job.skipping is not None:  # what was not encoded
            self.counts.not_chosen = self.counts.rows - self.counts.written_or_lost
        if not self.counts.balanced:
            raise TokenmillError(f"{self.source.name}: rows do not add up: {self.counts}")
        unit = UnitId(self.work.segment.source, self.work.segment.number, self.part)
        by_key = self.worker.settings.by_key
        streams = () if by_key else tuple(StreamCounts.of(p) for p in packed)
        return EncodedUnit(
            UnitSummary(unit, last, self.rows_before, self.lines, self.counts, streams),
            packed,
            self.bad,
            self.work,
            max(0, self.first_row),
            self.first_line,
        )


def _doing(
    step: Literal["read", "encode"], part: int, batch: Batch, row_is_here: bool = True
) -> Activity:
    """`row_is_here`: a piece's document is in this segment only, and can be tried as a whole."""
    rows = batch.row_count
    if batch.fragment is not None:
        rows = int(row_is_here)
    return Activity(step, part, batch.first_row, rows, batch.size)
