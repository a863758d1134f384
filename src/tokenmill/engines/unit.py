"""The work on one unit: read, encode, pack, and later write it to its place.

The same code runs in a worker process, in the caller's process (`--workers 0`) and wherever else
an engine puts it; it knows nothing of other units.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator
from typing import Literal

import msgspec
import numpy as np
import xxhash

from tokenmill.batch import Aside, BadRow, Batch
from tokenmill.config import EncoderChoice, OnBadRow, PlanSettings
from tokenmill.documents import read_segment, refuse_changed
from tokenmill.encoders import EncoderStats, ExactEncoder
from tokenmill.encoders.fast import U32
from tokenmill.encoders.gap_tables import Ranges
from tokenmill.engines.badrows import bad_row_error, quarantine_line
from tokenmill.engines.encoded import EncodedUnit, Origin, UnitSummary
from tokenmill.errors import TokenmillError
from tokenmill.formats import get_format
from tokenmill.manifest import AsideRecord, Counts, PieceRecord, State, UnitRecord
from tokenmill.memory import (
    LONG_WORD_BYTES,
    REFERENCE_FACTORS,
    UNBROKEN_FACTORS,
    WORDS_FACTOR,
    Room,
    resident_bytes,
)
from tokenmill.pack import (
    CutRule,
    Packer,
    StreamCounts,
    document_hash,
    rows_within,
    streams_of,
)
from tokenmill.plan import BATCH_BYTES, UNIT_BYTES, Segment, UnitId
from tokenmill.sources import Source
from tokenmill.steps import Buffer
from tokenmill.storage import OutputFiles, Workspace
from tokenmill.text_batches import LONG_BYTES
from tokenmill.texts import I64, count_strings, longest_word
from tokenmill.tokenizer import Encoding

QUARANTINE_BYTES = 1 << 20  # of a bad row's content are kept; beyond, length and sha256 tell
CHECK_SHARE = 2048  # one byte in so many is encoded again by the reference: under 1 % of the time
CHECK_BYTES = 16 << 10
NO_CHECKS = -(1 << 60)
REOPEN_BYTES = 64_000_000
HEADROOM_BYTES = 100_000_000  # for the next batch: its text, its ids, a decoded row group
CHECK_SEED = 0x746F6B656E
ROW_BYTES = 16  # a row counts for so much when units are cut: a billion empty ones are no one unit


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All a worker needs to know: small plain data, sent once."""

    settings: PlanSettings
    encoding: Encoding
    output: str
    gap: Ranges
    encoder: EncoderChoice
    encoder_check: bool
    on_bad_row: OnBadRow
    memory: int  # this worker's share
    workers: int = 1  # as many as there would be with more memory


class Doing(msgspec.Struct, frozen=True, array_like=True):
    """What is about to be done, said before it is: so that a watcher knows what was under way
    if this process dies or sticks."""

    step: Literal["read", "encode", "write"]
    part: int
    first_row: int = 0  # of the batch, as the batches of its segment count
    rows: int = 0
    size: int = 0


Progress = Callable[[Doing], None]


class UnitWorker:
    """Encodes segments into units and writes units to their places."""

    def __init__(self, job: Job, encoder: ExactEncoder | None = None) -> None:
        self.job = job
        self.settings = job.settings
        encoding = job.encoding
        self.encoder = encoder or ExactEncoder(encoding, job.encoder, job.gap)
        self.files = OutputFiles(Workspace(job.output))
        self.rules = CutRule.all_of(job.settings)
        self.stream_names = [stream_name(s) for s in streams_of(job.settings.val)]
        self.specials = [text.encode() for text in encoding.special_tokens]
        self.header_bytes = get_format(job.settings.format).header_bytes(job.settings)
        self._credit = CHECK_BYTES
        self.reopened = 0
        self._after_reopening = 0
        self.spill_held: Callable[[], None] = lambda: None  # units that wait for their place
        self.room = Room(
            job.memory,
            job.workers,
            self._whole_factor(),
            UNBROKEN_FACTORS[encoding.kind],
            self._make_room,
        )

    @property
    def stats(self) -> EncoderStats:
        return self.encoder.stats

    # --- encoding ----------------------------------------------------------------------------

    def encode_segment(
        self,
        source: Source,
        segment: Segment,
        skip: Container[int],
        aside: Aside,
        progress: Progress,
        stop_row: int | None = None,
    ) -> Iterator[EncodedUnit]:
        """The segment's units in order, those in `skip` left out, the rows in `aside` set aside.

        It ends before `stop_row`, as the segment counts rows.
        """
        refuse_changed(source)
        building = _Building(self, source, segment, 0, aside)

        def alive() -> None:
            progress(Doing("read", building.part))

        for batch in read_segment(source, segment, self.settings.reading, aside, alive, self.room):
            if stop_row is not None:
                if batch.first_row >= stop_row:
                    break
                batch = batch.until(stop_row)  # noqa: PLW2901
            if building.size >= UNIT_BYTES:
                if building.part not in skip:
                    yield building.finish(last=False)
                building = building.successor()
            encode = building.part not in skip
            if encode:
                here = source.kind != "text"
                progress(_doing("encode", building.part, batch, here))
            building.add(batch, encode=encode)
            progress(_doing("read", building.part, batch))
        refuse_changed(source)
        if building.part not in skip:
            yield building.finish(last=True)

    def read(
        self, source: Source, segment: Segment, part: int, aside: Aside, progress: Progress
    ) -> Iterator[Batch]:
        """The segment's batches, for `try_rows`, with a sign of life for each."""
        reading = Doing("read", part)
        progress(reading)
        for batch in read_segment(
            source, segment, self.settings.reading, aside, lambda: progress(reading), whole=True
        ):
            yield batch
            progress(reading)

    def try_rows(
        self, source: Source, part: int, batch: Batch, rows: range, check: bool, progress: Progress
    ) -> None:
        """Encode rows one by one and throw the result away: does one of them end this process?"""
        packer = Packer(self.settings, source.number)
        for index in (i for i, row in enumerate(batch.rows.tolist()) if row in rows):
            one = batch.document(index)
            progress(_doing("encode", part, one))
            self._credit = CHECK_BYTES if check else NO_CHECKS
            self.encode_batch(source, one, packer)
        self._credit = 0
        self.relieve_memory()

    def encode_batch(self, source: Source, batch: Batch, packer: Packer) -> int:
        """Encode one batch into the packer; returns how many special strings it held."""
        try:
            ids, offsets = self.encoder.encode(batch.texts)
            if self.job.encoder_check and self.encoder.is_fast:
                self._check(source, batch, ids, offsets)
        except TokenmillError as error:
            if len(batch.rows):
                error.message = (
                    f"{source.name}: in the {len(batch.rows)} rows at position "
                    f"{int(batch.positions[0])}: {error.message}"
                )
            raise
        if batch.fragment is not None:
            row, position = int(batch.rows[0]), int(batch.positions[0])
            packer.add_fragment(ids, batch.fragment, position, row)
        else:
            packer.add(ids, offsets, batch.positions, batch.rows)
        return count_strings(batch.texts, self.specials)

    def _check(self, source: Source, batch: Batch, ids: U32, offsets: I64) -> None:
        """Encode whole documents again with the reference: one byte in CHECK_SHARE.

        A hash says where in the batch to begin. A long document may overdraw the credit, and is
        paid off by the text that follows.
        """
        self._credit = min(CHECK_BYTES, self._credit + batch.texts.size // CHECK_SHARE)
        if self._credit <= 0 or batch.texts.documents == 0:
            return
        lengths, count = batch.texts.lengths, batch.texts.documents
        begin = int(document_hash(CHECK_SEED, source.number, batch.positions[:1])[0] % count)
        for index in itertools.chain(range(begin, count), range(begin)):
            if 0 < lengths[index] <= BATCH_BYTES:
                checked = self.encoder.check(batch.texts, ids, offsets, index, 4 * CHECK_BYTES)
                self._credit -= checked
            if self._credit <= 0:
                break

    # --- memory ------------------------------------------------------------------------------

    def relieve_memory(self) -> None:
        """Drop the encoder's cache of words when this process has used its share.

        Only when it has grown since: where the share is small, what remains after dropping may
        be over it, and dropping again and again would help nobody.
        """
        used = resident_bytes()
        if used > self.job.memory - HEADROOM_BYTES and used > self._after_reopening + REOPEN_BYTES:
            self._reopen()

    def _reopen(self) -> None:
        release_unused()
        self.encoder.reopen()
        self.reopened += 1
        self._after_reopening = resident_bytes()

    def _make_room(self, need: int) -> None:
        """Before something large is held: whatever else takes memory goes."""
        if resident_bytes() + need > self.job.memory - REOPEN_BYTES:
            self.spill_held()
            self._reopen()

    def _whole_factor(self) -> int:
        """Memory for each byte of a document that is encoded whole."""
        if self.encoder.is_fast or self.job.encoding.cuttable:
            return WORDS_FACTOR
        return REFERENCE_FACTORS[self.job.encoding.kind]

    def take_room(self, source: Source, batch: Batch) -> None:
        """Room to encode a long document, or a part of one that has no place to be cut."""
        longest = int(batch.texts.lengths.max(initial=0))
        if longest <= LONG_BYTES:
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
        if encoded.bad and self.job.on_bad_row == "stop":  # not before: a limit might spare it
            origin, bad = encoded.origin, encoded.bad[0]
            line = bad.line + origin.first_line if bad.line >= 0 else -1
            where = bad._replace(row=bad.row + origin.first_row, line=line)
            raise bad_row_error(origin.source, origin.segment, where, self.settings.reading)
        pieces: list[PieceRecord] = []
        streams = []
        for rule, name, state, packed in zip(
            self.rules, self.stream_names, before.streams, encoded.packed(), strict=True
        ):
            ends, run_starts = packed.ends(), packed.run_starts()
            laid, after = rule.lay_out(state, StreamCounts.of(packed), packed.starts())
            itemsize = packed.tokens.itemsize
            for piece in laid:
                pieces.append(
                    self._write(
                        token_file(piece.split, piece.file),
                        self.header_bytes + piece.at * itemsize,
                        packed.tokens[piece.start : piece.stop],
                    )
                )
            if len(ends):
                absolute = (ends + state.tokens).astype("<u8")
                pieces.append(self._write(f"{name}.ends", state.documents * 8, absolute))
                runs = np.empty((len(run_starts), 3), "<u8")
                runs[:, 0] = run_starts + state.documents
                runs[:, 1] = encoded.summary.unit.source
                runs[:, 2] = packed.rows[run_starts] + before.rows
                pieces.append(self._write(f"{name}.runs", state.runs * 24, runs.reshape(-1)))
            streams.append(after)
        quarantined = b"".join(
            quarantine_line(bad, before, encoded.origin.source.name) for bad in encoded.bad
        )
        if quarantined:
            pieces.append(self._write("quarantine", before.quarantine_bytes, quarantined))
        summary = encoded.summary
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
                AsideRecord(before.rows + bad.row, encoded.origin.first_row + bad.row, bad.reason)
                for bad in encoded.bad
                if bad.fatal
            ),
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
        origin, part = encoded.origin, encoded.summary.unit.part
        again = self.encode_segment(
            origin.source,
            origin.segment,
            _AllBut(part),
            origin.aside,
            lambda _: None,
            stop_row=origin.first_row + rows,
        )
        return next(again)

    def _write(self, file: str, offset: int, data: Buffer) -> PieceRecord:
        view = memoryview(data).cast("B")
        self.files.write(file, offset, view)
        return PieceRecord(file, offset, len(view), xxhash.xxh3_64_intdigest(view))


class _AllBut(Container[int]):
    """Every number but one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __contains__(self, number: object) -> bool:
        return number != self.number


class _Building:
    """A unit under construction."""

    def __init__(
        self, worker: UnitWorker, source: Source, segment: Segment, part: int, aside: Aside
    ) -> None:
        self.worker, self.source, self.segment, self.part = worker, source, segment, part
        self.aside = aside
        self.packer = Packer(worker.settings, source.number)
        self.counts = Counts()
        self.bad: list[BadRow] = []
        self.first_row = -1  # of this unit, as its batches count them
        self.first_line = 0
        self.rows_before = 0
        self.lines = 0
        self.size = 0

    def successor(self) -> _Building:
        following = _Building(self.worker, self.source, self.segment, self.part + 1, self.aside)
        following.first_line = self.first_line + self.lines
        following.rows_before = self.rows_before + self.counts.rows
        return following

    def add(self, batch: Batch, *, encode: bool) -> None:
        if self.first_row < 0:
            self.first_row = batch.first_row
        self.size += batch.size + ROW_BYTES * batch.row_count
        self.counts.rows += batch.row_count
        self.lines += batch.line_count
        if not encode:
            return
        settings = self.worker.settings
        if batch.bad and self.worker.job.on_bad_row == "stop" and not settings.limited:
            raise bad_row_error(self.source, self.segment, batch.bad[0], settings.reading)
        # Rows from here on count from the unit's first row, lines likewise.
        self.bad += [
            bad.cut(QUARANTINE_BYTES)._replace(
                row=bad.row - self.first_row, line=_relative(bad.line, self.first_line)
            )
            for bad in batch.bad
        ]
        self.counts.quarantined += len(batch.bad)
        self.counts.text_bytes += batch.texts.size
        batch = batch._replace(rows=batch.rows - self.first_row)
        self.worker.take_room(self.source, batch)
        self.counts.special_strings += self.worker.encode_batch(self.source, batch, self.packer)
        self.worker.relieve_memory()

    def finish(self, *, last: bool) -> EncodedUnit:
        packed = self.packer.finish()
        self.counts.empty = self.packer.empty
        self.counts.dropped = self.packer.dropped
        self.counts.too_short = self.packer.too_short
        self.counts.too_long = self.packer.too_long
        self.counts.documents = sum(p.documents for p in packed)
        self.counts.tokens = sum(len(p.tokens) for p in packed)
        if not self.counts.balanced:
            raise TokenmillError(f"{self.source.name}: rows do not add up: {self.counts}")
        unit = UnitId(self.source.number, self.segment.number, self.part)
        streams = tuple(StreamCounts.of(p) for p in packed)
        return EncodedUnit(
            UnitSummary(unit, last, self.rows_before, self.lines, self.counts, streams),
            packed,
            self.bad,
            Origin(self.source, self.segment, self.aside, max(0, self.first_row), self.first_line),
        )


def _doing(
    step: Literal["read", "encode"], part: int, batch: Batch, row_is_here: bool = True
) -> Doing:
    """`row_is_here`: a piece's document is in this segment only, and can be tried as a whole."""
    rows = batch.row_count
    if batch.fragment is not None:
        rows = int(row_is_here)
    return Doing(step, part, batch.first_row, rows, batch.size)


def _relative(line: int, first: int) -> int:
    return line - first if line >= 0 else -1


def stream_name(splits: tuple[str, ...]) -> str:
    return splits[0] if len(splits) == 1 else "all"


def token_file(split: str, number: int) -> str:
    """A token file's name while it grows."""
    return f"tokens-{split}-{number:06d}"


def release_unused() -> None:
    """Give back what Arrow keeps of memory that it does not use any more."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()
