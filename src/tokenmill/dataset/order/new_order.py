"""The streams of a dataset, sorted by new keys: what is to be sorted, and what comes out.

Runs and ranges are files of the work folder, made by workers and noted like all files that are
made. When all ranges are there, the runs are not needed any more and removed. A resumed job makes
runs again only if a range is missing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.dataset.streams import Stream
from tokenmill.output.editions import DatasetFile, dataset_file
from tokenmill.output.file_maker import BufferSource, FileMaker, FileTask
from tokenmill.output.order.reordering import (
    MERGE,
    RANGE,
    RUN,
    NewOrder,
    StreamPart,
    documents_in,
    runs_of,
)
from tokenmill.output.order.row_index import row_index
from tokenmill.output.stored import FileStream, StreamFiles, TokenFile
from tokenmill.output.workspace import WorkArea
from tokenmill.system.store import Store
from tokenmill.texts import I64
from tokenmill.tokens.order import export_numbers, order_rule, range_count
from tokenmill.tokens.reframe import ReframedStream
from tokenmill.tokens.splits import U64

BLOCK_DOCUMENTS = 1 << 20
BARE = "nanogpt"  # the format of a range: nothing but tokens from its first byte on

# Makes files of an order by tasks; each is noted with the maker of files.
MakeOrder = Callable[[NewOrder, list[FileTask]], None]


class OrderedStreams(NamedTuple):
    """The streams in their new order, and their part of the index."""

    about: tuple[StreamFiles, ...]
    index_files: list[DatasetFile]


def split_parts(number: int, stream: Stream) -> Iterator[StreamPart]:
    """Documents that are sorted together: those of a split.

    Where two splits follow one another in a stream, a rule finds their border by tokens. The
    document at the border stays in its place, so that the rule finds the same border again.
    """
    border = stream.splits[0].tokens if stream.splits else 0
    bounds = [0, stream.documents]
    if len(stream.splits) > 1 and stream.settings.val.kind == "docs":
        bounds.insert(1, min(stream.settings.val.amount, stream.documents))
    elif len(stream.splits) > 1 and 0 < border < stream.tokens:
        last = ReframedStream(stream, stream.settings, stream.layout).ended_by(border - 1)
        bounds[1:1] = [last, last + 1]
    for first, stop in itertools.pairwise(bounds):
        if first < stop:
            yield StreamPart(number, first, stop)


def bring_into_order(
    store: Store,
    about: Sequence[StreamFiles],
    order: NewOrder,
    rows: Sequence[int],
    maker: FileMaker,
    make: MakeOrder,
) -> OrderedStreams:
    """`store` has the dataset, `rows` are those of each source."""
    streams = [FileStream(store, one) for one in about]
    ranges = [
        _range_tasks(streams[part.stream], part, number, order, maker.workspace)
        for number, part in enumerate(order.parts)
    ]
    _make_ranges(streams, order, [task for mine in ranges for task in mine], maker, make)
    found: list[StreamFiles] = []
    index: list[DatasetFile] = []
    for number, one in enumerate(about):
        mine = [
            task
            for part, tasks in zip(order.parts, ranges, strict=True)
            for task in tasks
            if part.stream == number
        ]
        stream = _OrderedStream(one, number, order, mine, maker)
        found.append(stream.about())
        index += stream.index(found[-1], rows)
    return OrderedStreams(tuple(found), index)


def _amount(stream: FileStream, part: StreamPart, sources: tuple[int, ...]) -> tuple[int, int]:
    """Documents and tokens of a part that are wanted."""
    documents = tokens = 0
    before = int(stream.ends_of(part.first - 1, part.first)[0]) if part.first else 0
    for first in range(part.first, part.stop, BLOCK_DOCUMENTS):
        stop = min(first + BLOCK_DOCUMENTS, part.stop)
        ends = stream.ends_of(first, stop)
        wanted = np.ones(len(ends), bool)
        if sources:
            wanted = np.isin(stream.origins_of(first, stop)[1], sources)
        documents += int(wanted.sum())
        tokens += int(np.diff(ends, prepend=before)[wanted].sum())
        before = int(ends[-1])
    return documents, tokens


def _task(
    workspace: WorkArea,
    kind: str,
    part: int,
    order: NewOrder,
    number: int,
    of: int,
    tokens: int,
    runs: tuple[int, int] = (0, 0),
) -> FileTask:
    # Everything that decides the content is in the name: a resumed job may have other ranges.
    working = workspace.work_name(f"{kind}-{part}-{order.range_bytes}-{number:06d}-of-{of}")
    return FileTask(working, 0, part, "", number, of, 0, tokens, runs[0], runs[1], kind=kind)


def _range_tasks(
    stream: FileStream, part: StreamPart, number: int, order: NewOrder, workspace: WorkArea
) -> list[FileTask]:
    documents, tokens = _amount(stream, part, order.sources)
    count = range_count(tokens * stream.dtype.itemsize, documents, order.range_bytes)
    each = tokens // count
    return [_task(workspace, RANGE, number, order, one, count, each) for one in range(count)]


def _make_ranges(
    streams: list[FileStream],
    order: NewOrder,
    ranges: list[FileTask],
    maker: FileMaker,
    make: MakeOrder,
) -> None:
    run_tasks: list[list[FileTask]] = []
    workspace = maker.workspace
    for number, part in enumerate(order.parts):
        stream = streams[part.stream]
        count = runs_of(stream, part, order.range_bytes)
        size = order.range_bytes // stream.dtype.itemsize
        mine = [_task(workspace, RUN, number, order, one, count, size) for one in range(count)]
        run_tasks.append(mine)
    merges = [_merge_tasks(mine, number, order, workspace) for number, mine in enumerate(run_tasks)]
    if maker.missing(ranges):
        make(order, [task for mine in run_tasks for task in mine])
        order = _collecting(order, run_tasks)
        if any(merges):
            make(order, [task for mine in merges for task in mine])
            longer = [new or old for new, old in zip(merges, run_tasks, strict=True)]
            order = _collecting(order, longer)
        make(order, ranges)
    maker.files.remove_all(task.working for mine in (*run_tasks, *merges) for task in mine)


def _collecting(order: NewOrder, tasks: list[list[FileTask]]) -> NewOrder:
    parts = [
        msgspec.structs.replace(part, runs=tuple(task.working for task in mine))
        for part, mine in zip(order.parts, tasks, strict=True)
    ]
    return msgspec.structs.replace(order, parts=tuple(parts))


def _merge_tasks(
    runs: list[FileTask], part: int, order: NewOrder, workspace: WorkArea
) -> list[FileTask]:
    """Longer runs, where there are so many that a range would take only a few bytes of each."""
    _, _, most = order_rule()
    if len(runs) <= most:
        return []
    together = -(-len(runs) // most)
    firsts = range(0, len(runs), together)
    return [
        _task(
            workspace, MERGE, part, order, number, len(firsts),
            sum(task.tokens for task in runs[first : first + together]),
            (first, len(runs[first : first + together])),
        )
        for number, first in enumerate(firsts)
    ]  # fmt: skip


class _OrderedStream:
    """One stream, as its ranges are."""

    def __init__(
        self,
        old: StreamFiles,
        number: int,
        order: NewOrder,
        ranges: list[FileTask],
        maker: FileMaker,
    ) -> None:
        self.old, self.number, self.order, self.maker = old, number, order, maker
        self.ranges = [(task.working, maker.kept[task.working].info) for task in ranges]
        self.documents = sum(info["documents"] for _, info in self.ranges)
        self.permuted = bool(order.of) or old.settings.reordered

    def _lines(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The number of the first document, and lines of documents, some at a time."""
        first, dtype = 0, np.dtype(self.old.layout.dtype)
        for name, info in self.ranges:
            lines = documents_in(self.maker.files, name, info, dtype)
            yield first, lines
            first += len(lines)

    def about(self) -> StreamFiles:
        """The stream for any process; where its documents end is written here."""
        files: list[TokenFile] = []
        token = 0
        for name, info in self.ranges:
            if info["tokens"]:
                files.append(TokenFile(name, token, info["tokens"]))
            token += info["tokens"]
        ends = self.maker.workspace.work_name(f"order-{self.old.name}.ends")
        runs = self._index_name("runs")
        self.maker.make(ends, BufferSource(self._ends))
        layout = msgspec.structs.replace(self.old.layout, format=BARE)
        return msgspec.structs.replace(
            self.old,
            layout=layout,
            tokens=token,
            documents=self.documents,
            files=tuple(files),
            ends=ends,
            runs=runs,
            framed=False,
        )

    def _index_name(self, kind: str) -> str:
        name = self.old.name
        return self.maker.workspace.name_of(f"index-{name}.{kind}", f"index/{name}.{kind}")

    def index(self, about: StreamFiles, rows: Sequence[int]) -> list[DatasetFile]:
        """What goes with the stream; nothing where it has no document."""
        if not self.documents:
            return []
        name, maker = self.old.name, self.maker
        made = {"runs": maker.make(about.runs, BufferSource(self._runs))}
        if self.permuted:
            stream = FileStream(maker.files, about)
            by_row = functools.partial(row_index, stream, rows, maker.workspace.spill)
            made["rows"] = maker.make(self._index_name("rows"), BufferSource(by_row))
        if self.order.of:
            numbers = BufferSource(self._numbers)
            made["numbers"] = maker.make(self._index_name("numbers"), numbers)
        return [
            dataset_file(file, f"index/{name}.{kind}", kind, stream=name)
            for kind, file in made.items()
        ]

    def _ends(self) -> Iterator[U64]:
        end = 0
        for _, lines in self._lines():
            yield end + np.cumsum(lines["length"], dtype="<u8")
            end += int(lines["length"].sum())

    def _runs(self) -> Iterator[U64]:
        """Document, source and row where a run begins: at every document, if they are not in the
        order of their sources."""
        last: tuple[int, int] | None = None
        for first, lines in self._lines():
            sources, rows = lines["source"].astype(np.int64), lines["row"].astype(np.int64)
            begins: I64 = np.arange(len(lines))
            if not self.permuted and len(lines):
                goes_on = (np.diff(sources) == 0) & (np.diff(rows) == 1)
                before = last == (int(sources[0]), int(rows[0]) - 1)
                begins = np.flatnonzero(~np.concatenate(([before], goes_on)))
                last = int(sources[-1]), int(rows[-1])
            runs = np.stack((first + begins, sources[begins], rows[begins]), axis=1)
            yield runs.astype("<u8").reshape(-1)

    def _numbers(self) -> Iterator[U64]:
        for _, lines in self._lines():
            keys = lines["key"].astype(np.uint64)
            numbers = export_numbers(self.order.seed, self.order.of, self.number, keys)
            yield numbers.astype("<u8")
