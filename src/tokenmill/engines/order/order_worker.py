"""What a worker does in the second half of a shuffled job.

    a group of units   ->  one run, sorted: where there are so many units that a range would
                           take only a few bytes of each
    a range of keys    ->  its documents, from all runs, in order: a unit that is placed like any

A range that is much longer than usual, because of giant documents, is a chain of units.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tokenmill.engines.messages import Activity, EncodeTask, UnitSummary
from tokenmill.engines.order.sorted_run import (
    CONTINUED,
    ENTRY,
    OPEN,
    Entries,
    EntryTokens,
    SortedRun,
    arranged,
    order_of,
    run_name,
    sorted_by_key,
)
from tokenmill.engines.unit import EncodedUnit, ReportActivity
from tokenmill.engines.writing.stream_writer import StreamWriter
from tokenmill.errors import TokenmillError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.journal import PieceRecord, UnitRecord
from tokenmill.output.workspace import Workspace
from tokenmill.settings import PlanSettings, RunSettings
from tokenmill.system.memory import Budget
from tokenmill.texts import I64
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.epochs import Choice, copy_keys
from tokenmill.tokens.order import part_starts, range_bounds
from tokenmill.tokens.packing import PackedStream, Tokens, rows_within
from tokenmill.tokens.placement import StreamCounts
from tokenmill.tokens.splits import U64

ALIVE_BYTES = 16 << 20  # after so many bytes that were read, a sign of life
ALIVE_RUNS = 256  # or after so many runs that were looked into


class OrderJob(msgspec.Struct, frozen=True, tag=True):
    """All a worker needs to know: small plain data, sent once."""

    settings: PlanSettings
    run: RunSettings
    budget: Budget
    output: str
    runs: tuple[UnitId, ...]  # files of sorted documents, in the order of their units
    ranges: int  # that the keys are cut into; 0: groups of runs are merged
    range_bytes: int
    # Of a mixture, where documents are taken from units: numbers of a unit and of a copy, what is
    # taken of each source of the mixture, and the mixture's source of each input file.
    parts: tuple[tuple[int, int], ...] = ()
    choices: tuple[Choice, ...] = ()
    group_of: tuple[int, ...] = ()


@dataclasses.dataclass
class MergedUnit(EncodedUnit):
    """A run that is written already: wherever it stands, its bytes are the same."""

    pieces: tuple[PieceRecord, ...] = ()


class _Slice(NamedTuple):
    """What a range takes of one run, in one stream."""

    run: SortedRun
    stream: int
    entries: Entries
    begin: int  # where the tokens of the first entry begin
    at: int  # the number of the first entry among all of the range

    @property
    def starts(self) -> I64:
        """Where the tokens of each entry begin, and where the last one ends."""
        return np.concatenate(([self.begin], self.entries["end"])).astype(np.int64)


class _NoSession:
    stats: dict[str, int] = {}  # noqa: RUF012 - of an encoder that is not there


class OrderWorker:
    def __init__(self, job: OrderJob) -> None:
        self.job, self.settings, self.memory = job, job.settings, job.budget.worker_bytes
        self.session = _NoSession()
        self.writer = StreamWriter(job.settings, Workspace(job.output).open_files())
        self.streams = len(self.writer.stream_names)
        self.dtype = np.dtype(job.settings.first.dtype)
        self.spill_held: Callable[[], None] = lambda: None
        self._runs: list[SortedRun] | None = None
        self._read_bytes = 0

    def close(self) -> None:
        self.writer.files.close()

    def _run(self, unit: UnitId) -> SortedRun:
        return self.writer.open_sorted(unit)

    def encode_segment(self, work: EncodeTask, progress: ReportActivity) -> Iterator[EncodedUnit]:
        """The units of a range, or the run that a group of runs becomes."""
        if self.job.parts:
            yield self._take(work, progress)
            return
        if not self.job.ranges:
            yield self._merge(work, progress)
            return
        if self._runs is None:
            self._runs = [self._run(unit) for unit in self._looked_into(progress)]
        slices = self._slices(work.segment.number, progress)
        entries = np.concatenate([np.zeros(0, ENTRY), *(one.entries for one in slices)])
        lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(one.starts) for one in slices)])
        order = order_of(entries)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        sizes = lengths[order] * self.dtype.itemsize
        starts = [*part_starts(sizes, self.job.range_bytes), len(order)]
        rows = 0
        for part, (first, stop) in enumerate(itertools.pairwise(starts)):
            last = part == len(starts) - 2
            if part not in work.skip:
                yield self._part(work, part, slices, ranks, (first, stop), rows, last, progress)
            rows += int(np.count_nonzero(entries["flags"][order[first:stop]] & OPEN == 0))

    # --- reading -----------------------------------------------------------------------------

    def _looked_into(self, progress: ReportActivity) -> Iterator[UnitId]:
        for number, unit in enumerate(self.job.runs):
            if number % ALIVE_RUNS == 0:
                progress(Activity("read", 0))
            yield unit

    def _slices(self, number: int, progress: ReportActivity) -> list[_Slice]:
        assert self._runs is not None
        low, high = range_bounds(number, self.job.ranges)
        slices: list[_Slice] = []
        at = 0
        for stream in range(self.streams):
            for index, run in enumerate(self._runs):
                if index % ALIVE_RUNS == 0:
                    progress(Activity("read", 0))
                entries, begin = run.between(stream, low, high)
                if len(entries):
                    slices.append(_Slice(run, stream, entries, begin, at))
                    at += len(entries)
        return slices

    def _alive(self, read_bytes: int, part: int, progress: ReportActivity) -> None:
        self._read_bytes += read_bytes
        if self._read_bytes > ALIVE_BYTES:
            self._read_bytes = 0
            progress(Activity("read", part))

    def _part(
        self,
        work: EncodeTask,
        part: int,
        slices: list[_Slice],
        ranks: I64,
        within: tuple[int, int],
        rows_before: int,
        last: bool,
        progress: ReportActivity,
    ) -> EncodedUnit:
        """Entries [first, stop) of a range, in its order. What a slice has of them is one piece."""
        collecting = [_Collection(self.dtype) for _ in range(self.streams)]
        for one in slices:
            mine = ranks[one.at : one.at + len(one.entries)]
            low, high = np.searchsorted(mine, within).tolist()
            if low == high:
                continue
            starts = one.starts
            tokens = one.run.tokens(one.stream, int(starts[low]), int(starts[high]))
            collecting[one.stream].add(
                one.entries[low:high], np.diff(starts[low : high + 1]), tokens, mine[low:high]
            )
            self._alive(tokens.nbytes, part, progress)
        packed = [collection.packed(within[0]) for collection in collecting]
        documents = sum(p.documents for p in packed)
        tokens_here = sum(len(p.tokens) for p in packed)
        counts = Counts(rows=documents, documents=documents, tokens=tokens_here)
        unit = UnitId(work.segment.source, work.segment.number, part)
        streams = tuple(StreamCounts.of(p) for p in packed)
        summary = UnitSummary(unit, last, rows_before, 0, counts, streams)
        return EncodedUnit(summary, packed, [], work, 0, 0)

    def _merge(self, work: EncodeTask, progress: ReportActivity) -> MergedUnit:
        unit = UnitId(work.segment.source, work.segment.number, 0)
        runs = [self._run(one) for one in self.job.runs[work.segment.start : work.segment.stop]]
        merged: list[EntryTokens] = []
        for stream in range(self.streams):
            collection = _Collection(self.dtype)
            for run in runs:
                section = run.sections[stream]
                tokens = run.tokens(stream, 0, section.tokens)
                entries = run.entries(stream, 0, section.entries)
                ends: I64 = np.concatenate(([0], entries["end"])).astype(np.int64)
                lengths = np.diff(ends)
                collection.add(entries, lengths, tokens, np.zeros(0, np.int64))
                self._alive(tokens.nbytes, 0, progress)
            merged.append(sorted_by_key(*collection.joined()))
        pieces = tuple(self.writer.write_sorted(run_name(unit), merged))
        summary = UnitSummary(unit, True, 0, 0, Counts(), ())
        return MergedUnit(summary, [], [], work, 0, 0, pieces=pieces)

    def _take(self, work: EncodeTask, progress: ReportActivity) -> MergedUnit:
        """One copy of the documents of a unit that a mixture takes so often, sorted by the keys of
        that copy. Documents of the validation split are there once, with the first copy."""
        number, copy = self.job.parts[work.segment.number]
        source = self.job.runs[number].source
        choice = self.job.choices[self.job.group_of[source]]
        run = self._run(self.job.runs[number])
        taken: list[EntryTokens] = []
        for stream in range(self.streams):
            section = run.sections[stream]
            entries = run.entries(stream, 0, section.entries)
            if stream == 0:
                picked = np.flatnonzero(choice.copies(entries["key"]) > copy)
            else:
                picked = np.arange(len(entries) if copy == 0 else 0)
            ends: I64 = np.concatenate(([0], entries["end"])).astype(np.int64)
            lengths = np.diff(ends)
            tokens = arranged(run.tokens(stream, 0, section.tokens), lengths, picked)
            mine = entries[picked]
            mine["key"] = copy_keys(mine["key"], copy)
            taken.append(sorted_by_key(mine, lengths[picked], tokens))
            self._alive(tokens.nbytes, 0, progress)
        unit = UnitId(work.segment.source, work.segment.number, 0)
        pieces = tuple(self.writer.write_sorted(run_name(unit), taken))
        summary = UnitSummary(unit, True, 0, 0, Counts(), ())
        return MergedUnit(summary, [], [], work, 0, 0, pieces=pieces)

    # --- writing -----------------------------------------------------------------------------

    def place(self, encoded: EncodedUnit, before: State) -> UnitRecord:
        """Write a unit's pieces where `before` says; returns the record for the journal."""
        summary, counts = encoded.summary, encoded.summary.counts
        pieces: list[PieceRecord] | tuple[PieceRecord, ...]
        streams: tuple[Any, ...] = ()
        if isinstance(encoded, MergedUnit):
            pieces = encoded.pieces
        else:
            packed = self._within_limits(encoded.packed(), before)
            pieces, states = self.writer.write_streams(packed, summary.unit.source, before)
            streams, documents = tuple(states), sum(p.documents for p in packed)
            tokens = sum(len(p.tokens) for p in packed)
            counts = Counts(rows=documents, documents=documents, tokens=tokens)
        return UnitRecord(
            unit=summary.unit,
            last=summary.last,
            lines=0,
            counts=counts,
            before=before,
            after=msgspec.structs.replace(before, streams=streams, rows=before.rows + counts.rows),
            pieces=tuple(pieces),
        )

    def _within_limits(self, packed: list[PackedStream], before: State) -> list[PackedStream]:
        """The first documents of a unit, where a limit of the plan falls into it."""
        if not self.settings.limited:
            return packed
        documents = sum(state.documents for state in before.streams)
        tokens = sum(state.tokens for state in before.streams)
        ranked = [p._replace(rows=p.order.astype(np.int64)) for p in packed]
        stop = rows_within(ranked, documents, tokens, self.settings)
        if stop is None:
            return packed
        return [_beginning(p, int(np.searchsorted(p.order, np.uint64(stop)))) for p in packed]


def _beginning(packed: PackedStream, documents: int) -> PackedStream:
    if documents == len(packed.lengths):
        return packed
    lengths = packed.lengths[:documents]
    return PackedStream(
        packed.tokens[: int(lengths.sum())],
        lengths,
        packed.rows[:documents],
        packed.continued and documents > 0,
        False,
        packed.order[:documents],
        packed.sources[:documents],
    )


class _Collection:
    """Entries of one stream, from many runs."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.entries: list[Entries] = []
        self.lengths: list[I64] = []
        self.tokens: list[Tokens] = []
        self.ranks: list[I64] = []

    def add(self, entries: Entries, lengths: I64, tokens: Tokens, ranks: I64) -> None:
        self.entries.append(entries)
        self.lengths.append(lengths)
        self.tokens.append(tokens)
        self.ranks.append(ranks)

    def joined(self) -> tuple[Entries, I64, Tokens]:
        """All of them one after the other; what was collected is let go of on the way."""
        entries = np.concatenate([np.zeros(0, ENTRY), *self.entries])
        lengths = np.concatenate([np.zeros(0, np.int64), *self.lengths])
        tokens = np.empty(int(lengths.sum()), self.dtype)
        at = 0
        for index, part in enumerate(self.tokens):
            tokens[at : at + len(part)] = part
            at += len(part)
            self.tokens[index] = part[:0]
        return entries, lengths, tokens

    def packed(self, first_rank: int) -> PackedStream:
        """As a unit has it: entries of one document joined, each with its place in the unit."""
        entries, lengths, tokens = self.joined()
        ranks = np.concatenate([np.zeros(0, np.int64), *self.ranks])
        order = np.argsort(ranks, kind="stable")
        tokens, lengths, entries = arranged(tokens, lengths, order), lengths[order], entries[order]
        goes_on, continued = entries["flags"] & OPEN != 0, entries["flags"] & CONTINUED != 0
        if not np.array_equal(goes_on[:-1], continued[1:]):
            raise TokenmillError(
                "the parts of a document do not follow each other: sorted units were changed",
                hint="run again with --overwrite to start over",
            )
        begins = np.flatnonzero(np.concatenate(([True], ~continued[1:]))[: len(entries)])
        places: U64 = (ranks[order][begins] - first_rank).astype(np.uint64)
        return PackedStream(
            tokens,
            np.add.reduceat(lengths, begins) if len(begins) else lengths,
            entries["row"][begins].astype(np.int64),
            bool(len(entries) and continued[0]),
            bool(len(entries) and goes_on[-1]),
            places,
            entries["source"][begins].astype(np.uint64),
        )
