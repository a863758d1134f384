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
from tokenmill.engines.unit import ReportActivity
from tokenmill.engines.writing.encoded_unit import EncodedUnit
from tokenmill.engines.writing.stream_writer import StreamWriter
from tokenmill.errors import TokenmillError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.files import JobFiles
from tokenmill.output.journal import PieceRecord, UnitRecord
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.order.sorted_run import (
    CONTINUED,
    ENTRY,
    OPEN,
    Entries,
    EntryTokens,
    SortedRun,
    arranged,
    order_of,
    sorted_by_key,
)
from tokenmill.settings import PlanSettings, RunSettings
from tokenmill.system.memory import Budget
from tokenmill.texts import I64
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.epochs import Choice, copy_keys
from tokenmill.tokens.order import part_starts, range_of, run_name
from tokenmill.tokens.packing import DROPPED, PackedStream, Tokens, rows_within
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
    runs: tuple[UnitId, ...]  # of sorted documents, in the order of their units
    files: tuple[str, ...]  # that hold them
    # That the keys of each group of documents are cut into; none: runs are merged.
    ranges: tuple[int, ...]
    range_bytes: int
    # Of a mixture, where documents are taken from units: numbers of a unit and of a copy, what is
    # taken of each source of the mixture, and the mixture's source of each input file.
    parts: tuple[tuple[int, int], ...] = ()
    choices: tuple[Choice, ...] = ()
    group_of: tuple[int, ...] = ()
    # Where sources of a mixture follow one another: the group of each run. None: all are one group.
    run_groups: tuple[int, ...] = ()
    # Rows of its source before each run, where runs count rows in their units; none: all are 0.
    rows_before: tuple[int, ...] = ()


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

    def length(self, low: int, high: int) -> int:
        """Tokens of entries [low, high)."""
        starts = self.starts
        return int(starts[high] - starts[low])

    @property
    def starts(self) -> I64:
        """Where the tokens of each entry begin, and where the last one ends."""
        return np.concatenate(([self.begin], self.entries["end"])).astype(np.int64)


class NoSession:
    stats: dict[str, int] = {}  # noqa: RUF012 - of an encoder that is not there


class OrderWorker:
    def __init__(self, job: OrderJob, files: JobFiles | None = None) -> None:
        """`files`: where only this process can open them."""
        self.job, self.settings, self.memory = job, job.settings, job.budget.worker_bytes
        self.session = NoSession()
        files = files or open_workspace(job.output).open_files()
        self.writer = StreamWriter(job.settings, files)
        self.streams = len(self.writer.stream_names)
        self.dtype = np.dtype(job.settings.first.dtype)
        self.spill_held: Callable[[], None] = lambda: None
        self._runs: list[SortedRun] | None = None
        self._buffer: Tokens = np.empty(0, self.dtype)
        self._read_bytes = 0

    def close(self) -> None:
        self.writer.files.close()

    def encode_segment(self, work: EncodeTask, progress: ReportActivity) -> Iterator[EncodedUnit]:
        """The units of a range, or the run that a group of runs becomes."""
        if self.job.parts:
            yield self._take(work, progress)
            return
        if not self.job.ranges:
            yield self._merge(work, progress)
            return
        if self._runs is None:
            self._runs = list(map(self._open_run, self._looked_into(progress)))
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

    def _looked_into(self, progress: ReportActivity) -> Iterator[int]:
        for number in range(len(self.job.files)):
            if number % ALIVE_RUNS == 0:
                progress(Activity("read", 0))
            yield number

    def _open_run(self, number: int) -> SortedRun:
        rows = self.job.rows_before[number] if self.job.rows_before else 0
        return self.writer.open_sorted(self.job.files[number], rows)

    def _slices(self, number: int, progress: ReportActivity) -> list[_Slice]:
        assert self._runs is not None
        group, low, high = range_of(number, self.job.ranges)
        groups = self.job.run_groups
        slices: list[_Slice] = []
        at = 0
        for stream in range(self.streams):
            for index, run in enumerate(self._runs):
                if index % ALIVE_RUNS == 0:
                    progress(Activity("read", 0))
                if groups and groups[index] != group:
                    continue
                entries, begin = run.between(stream, low, high)
                if len(entries):
                    slices.append(_Slice(run, stream, entries, begin, at))
                    at += len(entries)
        return slices

    def _collection(self, tokens: int) -> _Collection:
        """For so many tokens. There is one at a time: they share one buffer, so that its pages
        need not be cleared for every range."""
        if len(self._buffer) < tokens:
            self._buffer = np.empty(0, self.dtype)
            self._buffer = np.empty(tokens, self.dtype)
        return _Collection(self._buffer[:tokens])

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
        packed: list[PackedStream] = []
        for stream in range(self.streams):
            taken: list[tuple[_Slice, int, int]] = []
            for one in slices:
                if one.stream == stream:
                    mine = ranks[one.at : one.at + len(one.entries)]
                    low, high = np.searchsorted(mine, within).tolist()
                    if low < high:
                        taken.append((one, low, high))
            collection = self._collection(sum(one.length(*bounds) for one, *bounds in taken))
            for one, low, high in taken:
                starts = one.starts[low : high + 1]
                tokens = one.run.tokens(stream, int(starts[0]), int(starts[-1]))
                mine = ranks[one.at + low : one.at + high]
                collection.add(one.entries[low:high], np.diff(starts), tokens, mine)
                self._alive(tokens.nbytes, part, progress)
            packed.append(collection.packed(within[0]))
        documents = sum(p.documents for p in packed)
        tokens_here = sum(len(p.tokens) for p in packed)
        counts = Counts(rows=documents, documents=documents, tokens=tokens_here)
        unit = UnitId(work.segment.source, work.segment.number, part)
        streams = tuple(StreamCounts.of(p) for p in packed)
        summary = UnitSummary(unit, last, rows_before, 0, counts, streams)
        return EncodedUnit(summary, packed, [], work, 0, 0)

    def _merge(self, work: EncodeTask, progress: ReportActivity) -> MergedUnit:
        runs = list(map(self._open_run, range(work.segment.start, work.segment.stop)))
        merged: list[EntryTokens] = []
        for stream in range(self.streams):
            collection = self._collection(sum(run.sections[stream].tokens for run in runs))
            for run in runs:
                entries, lengths, tokens = run.whole(stream)
                collection.add(entries, lengths, tokens, np.zeros(0, np.int64))
                self._alive(tokens.nbytes, 0, progress)
            merged.append(sorted_by_key(*collection.joined()))
        return self._written(work, merged)

    def _take(self, work: EncodeTask, progress: ReportActivity) -> MergedUnit:
        """One copy of the documents of a unit that a mixture takes so often, sorted by the keys of
        that copy. Documents of the validation split are there once, with the first copy."""
        number, copy = self.job.parts[work.segment.number]
        source = self.job.runs[number].source
        choice = self.job.choices[self.job.group_of[source]]
        run = self._open_run(number)
        taken: list[EntryTokens] = []
        for stream in range(self.streams):
            entries, lengths, all_tokens = run.whole(stream)
            if stream == 0:
                there = entries["flags"] & DROPPED == 0
                picked = np.flatnonzero(there & (choice.copies(entries["key"]) > copy))
            else:
                picked = np.arange(len(entries) if copy == 0 else 0)
            tokens = arranged(all_tokens, lengths, picked)
            mine = entries[picked]
            mine["key"] = copy_keys(mine["key"], copy)
            taken.append(sorted_by_key(mine, lengths[picked], tokens))
            self._alive(tokens.nbytes, 0, progress)
        return self._written(work, taken)

    def _written(self, work: EncodeTask, streams: list[EntryTokens]) -> MergedUnit:
        """A run is written at once: it needs no place."""
        unit = UnitId(work.segment.source, work.segment.number, 0)
        pieces = tuple(self.writer.write_sorted(run_name(unit), streams))
        self.writer.files.unit_written(unit, pieces)
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
            self.writer.files.unit_written(summary.unit, pieces)
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

    def __init__(self, tokens: Tokens) -> None:
        """`tokens`: where those of all entries go."""
        self.tokens, self.filled = tokens, 0
        self.entries: list[Entries] = []
        self.lengths: list[I64] = []
        self.ranks: list[I64] = []

    def add(self, entries: Entries, lengths: I64, tokens: Tokens, ranks: I64) -> None:
        self.entries.append(entries)
        self.lengths.append(lengths)
        self.ranks.append(ranks)
        self.tokens[self.filled : self.filled + len(tokens)] = tokens
        self.filled += len(tokens)

    def joined(self) -> tuple[Entries, I64, Tokens]:
        """All of them one after the other."""
        entries = np.concatenate([np.zeros(0, ENTRY), *self.entries])
        lengths = np.concatenate([np.zeros(0, np.int64), *self.lengths])
        return entries, lengths, self.tokens

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
