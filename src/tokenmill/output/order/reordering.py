"""A finished dataset in another order, or a part of it: an external sort of its documents.

    documents of a stream  ->  runs: about 64 MB of them, sorted by key, in a file of their own
    many runs              ->  longer runs, where a range would take only a few bytes of each
    runs                   ->  ranges of keys, one behind the other: the stream in its new order

Each file is a task for any worker. A run may begin and end within a document: the parts of a
document have the same key, and follow one another where they are collected.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import StorageError
from tokenmill.formats.base import Array, Info
from tokenmill.output.file_maker import FileTask
from tokenmill.output.order.sorted_run import (
    CONTINUED,
    ENTRY,
    OPEN,
    Entries,
    SortedRun,
    arranged,
    buffers_of,
    head_of,
    order_of,
    sorted_by_key,
    with_digests,
)
from tokenmill.output.stored import FileStream
from tokenmill.system.store import Store, read_range
from tokenmill.texts import I64
from tokenmill.tokens.order import (
    ENTRY_BYTES,
    export_keys,
    part_starts,
    place_keys,
    range_bounds,
    range_count,
)
from tokenmill.tokens.splits import U64

RUN, MERGE, RANGE = "run", "merge", "range"  # kinds of tasks
# What a range has behind its tokens, for each document.
DOCUMENT = np.dtype([("length", "<u8"), ("source", "<u8"), ("row", "<u8"), ("key", "<u8")])


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """Documents [first, stop) of a stream, which keep together: those of a split."""

    stream: int
    first: int
    stop: int
    runs: tuple[str, ...] = ()  # files to collect from, once they are made


class NewOrder(msgspec.Struct, frozen=True):
    """All that a worker needs to know of the order: small plain data, sent once."""

    parts: tuple[StreamPart, ...]
    range_bytes: int
    seed: int = 0
    of: str = ""  # the checksum that keys are made of; "": documents stay in their order
    numbers: tuple[str, ...] = ()  # of each stream, the table of the numbers that keys are made of
    sources: tuple[int, ...] = ()  # documents of these alone; none: all

    def keys(self, store: Store, stream: FileStream, number: int, first: int, stop: int) -> U64:
        """The keys of documents [first, stop) of a stream."""
        places = np.arange(first, stop, dtype=np.int64)
        if not self.of:
            return place_keys(places, stream.documents)
        if self.numbers:
            content = read_range(store, self.numbers[number], first * 8, (stop - first) * 8)
            places = np.frombuffer(content, "<u8").astype(np.int64)
        return export_keys(self.seed, self.of, number, places)


class _Border(NamedTuple):
    """Where one run ends and the next one begins."""

    document: int
    token: int


class _PartCut:
    """Where the runs of a part begin: tokens and documents have a weight, and runs the same."""

    def __init__(self, stream: FileStream, part: StreamPart) -> None:
        self.stream, self.part, self.size = stream, part, stream.dtype.itemsize
        self.begin = self.end_before(part.first)

    def end_before(self, document: int) -> int:
        """Where the document before this one ends."""
        return int(self.stream.ends_of(document - 1, document)[0]) if document else 0

    def weight(self, document: int) -> int:
        """Of all documents of the part before this one."""
        tokens = self.end_before(document) - self.begin
        return tokens * self.size + ENTRY_BYTES * (document - self.part.first)

    def border(self, weight: int) -> _Border:
        part = self.part
        if weight >= self.weight(part.stop):
            return _Border(part.stop, self.end_before(part.stop))
        documents = range(part.first, part.stop)
        at = bisect.bisect_right(documents, weight, key=lambda one: self.weight(one + 1))
        document = part.first + at
        inside = max(0, weight - self.weight(document) - ENTRY_BYTES) // self.size
        return _Border(document, self.end_before(document) + inside)


def runs_of(stream: FileStream, part: StreamPart, range_bytes: int) -> int:
    """How many runs a part becomes."""
    return -(-_PartCut(stream, part).weight(part.stop) // range_bytes)


class _Slice(NamedTuple):
    """What a range takes of one run."""

    run: SortedRun
    entries: Entries
    begin: int  # where the tokens of the first entry begin
    at: int  # the number of the first entry among all of the range

    @property
    def starts(self) -> I64:
        """Where the tokens of each entry begin, and where the last one ends."""
        return np.concatenate(([self.begin], self.entries["end"])).astype(np.int64)


class _Range:
    """The entries of all runs with keys in [low, high), in order; their tokens on demand."""

    def __init__(self, runs: list[SortedRun], low: int, high: int) -> None:
        self.slices: list[_Slice] = []
        at = 0
        for run in runs:
            entries, begin = run.between(0, low, high)
            if len(entries):
                self.slices.append(_Slice(run, entries, begin, at))
                at += len(entries)
        parts = [one.entries for one in self.slices]
        entries = np.concatenate([np.zeros(0, ENTRY), *parts])
        lengths = [np.diff(one.starts) for one in self.slices]
        order = order_of(entries)
        self.entries = entries[order]
        self.lengths: I64 = np.concatenate([np.zeros(0, np.int64), *lengths])[order]
        self.ranks = np.empty(len(order), np.int64)
        self.ranks[order] = np.arange(len(order))

    def tokens(self, part_bytes: int, dtype: np.dtype[Any]) -> Iterator[Array]:
        """The tokens in order, about so many bytes at a time."""
        bounds = part_starts(self.lengths * dtype.itemsize, part_bytes)
        for first, stop in itertools.pairwise([*bounds, len(self.entries)]):
            taken, lengths, ranks = [np.zeros(0, dtype)], [], []
            for one in self.slices:
                mine = self.ranks[one.at : one.at + len(one.entries)]
                low, high = np.searchsorted(mine, (first, stop)).tolist()
                if low < high:
                    starts = one.starts
                    taken.append(one.run.tokens(0, int(starts[low]), int(starts[high])))
                    lengths.append(np.diff(starts[low : high + 1]))
                    ranks.append(mine[low:high])
            if ranks:
                order = np.argsort(np.concatenate(ranks), kind="stable")
                yield arranged(np.concatenate(taken), np.concatenate(lengths), order)


class Reorderer:
    """Makes the files of an order: sorted runs, longer runs, and ranges."""

    def __init__(
        self, order: NewOrder, open_stream: Callable[[int], FileStream], store: Store, files: Store
    ) -> None:
        """`store` has the dataset, `files` what was made of it so far."""
        self.order, self._open_stream = order, open_stream
        self._store, self._files = store, files
        self._runs = functools.lru_cache(maxsize=1)(self._open_runs)

    def buffers(self, task: FileTask) -> Generator[Any, None, Info]:
        part = self.order.parts[task.stream]
        if task.kind == RUN:
            return self._run(part, task.number)
        if task.kind == MERGE:
            return self._merged(part, task)
        return self._range(part, task)

    def _open_runs(self, part: StreamPart) -> list[SortedRun]:
        dtype = self._open_stream(part.stream).dtype
        return [SortedRun(self._files, name, 1, dtype) for name in part.runs]

    def _run(self, part: StreamPart, number: int) -> Generator[Any, None, Info]:
        stream, order = self._open_stream(part.stream), self.order
        cut = _PartCut(stream, part)
        begin, end = (cut.border((number + more) * order.range_bytes) for more in (0, 1))
        within = end.document < part.stop and end.token > cut.end_before(end.document)
        first, stop = begin.document, end.document + within
        ends = stream.ends_of(first, stop)
        entries = np.zeros(len(ends), ENTRY)
        entries["key"] = order.keys(self._store, stream, part.stream, first, stop)
        _, entries["source"], entries["row"] = stream.origins_of(first, stop)
        if len(entries):
            entries["flags"][0] |= CONTINUED * (begin.token > cut.end_before(first))
            entries["flags"][-1] |= OPEN * within
        lengths = np.diff(np.minimum(ends, end.token), prepend=begin.token)
        picked = np.arange(len(entries))
        if order.sources:
            picked = np.flatnonzero(np.isin(entries["source"], order.sources))
        tokens = np.zeros(0, stream.dtype)
        if len(picked):
            tokens = stream.read(begin.token, end.token)
        if len(picked) < len(entries):
            tokens = arranged(tokens, lengths, picked)
        run = sorted_by_key(entries[picked], lengths[picked], tokens)
        yield from buffers_of([run])
        return _counts(run.entries, len(run.tokens))

    def _merged(self, part: StreamPart, task: FileTask) -> Generator[Any, None, Info]:
        """A longer run of a group of runs: their entries, then their tokens, in order."""
        first = task.first_document
        runs = self._runs(part)[first : first + task.documents]
        entries = sum(run.sections[0].entries for run in runs)
        tokens = sum(run.sections[0].tokens for run in runs)
        dtype = self._open_stream(part.stream).dtype
        ranges = range_count(tokens * dtype.itemsize, entries, self.order.range_bytes)
        documents: list[int] = []

        def buffers() -> Iterator[Any]:
            yield head_of([(entries, tokens)])
            end = 0
            for number in range(ranges):
                found = _Range(runs, *range_bounds(number, ranges))
                found.entries["end"] = end + np.cumsum(found.lengths)
                end += int(found.lengths.sum())
                documents.append(_begun(found.entries))
                yield found.entries.view("u1")
            for number in range(ranges):
                found = _Range(runs, *range_bounds(number, ranges))
                yield from found.tokens(self.order.range_bytes, dtype)

        yield from with_digests(buffers())
        return {"documents": sum(documents), "tokens": tokens}

    def _range(self, part: StreamPart, task: FileTask) -> Generator[Any, None, Info]:
        """The tokens of a range, then a line for each of its documents."""
        found = _Range(self._runs(part), *range_bounds(task.number, task.of))
        entries = found.entries
        continued, goes_on = (entries["flags"] & flag != 0 for flag in (CONTINUED, OPEN))
        if not np.array_equal(continued, np.concatenate(([False], goes_on))[: len(entries)]):
            raise StorageError(
                "the parts of a document do not follow each other: sorted runs were changed",
                hint="run again with --overwrite to start over",
            )
        dtype = self._open_stream(part.stream).dtype
        yield from found.tokens(self.order.range_bytes, dtype)
        begins = np.flatnonzero(~continued)
        documents = np.zeros(len(begins), DOCUMENT)
        if len(begins):
            documents["length"] = np.add.reduceat(found.lengths, begins)
        for field in ("source", "row", "key"):
            documents[field] = entries[field][begins]
        yield documents.view("u1")
        return _counts(entries, int(found.lengths.sum()))


def _begun(entries: Entries) -> int:
    return int(np.count_nonzero(entries["flags"] & CONTINUED == 0))


def _counts(entries: Entries, tokens: int) -> Info:
    return {"documents": _begun(entries), "tokens": tokens}


def documents_in(files: Store, name: str, info: Info, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The lines behind the tokens of a range, one for each document."""
    at, size = int(info["tokens"]) * dtype.itemsize, int(info["documents"]) * DOCUMENT.itemsize
    return np.frombuffer(read_range(files, name, at, size), DOCUMENT)
