"""A dataset as its streams: tokens, document ends and row runs, read piece by piece.

`verify --deep` looks things up here. Nothing is trusted: `faults` says where the index
contradicts itself, and `border_faults` where splits and files do not begin where the rules of
the plan put them.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator

import numpy as np

from tokenmill.dataset.loader import Dataset
from tokenmill.dataset.views import damaged
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Slices, stored_dtype
from tokenmill.output.manifest import SplitEntry
from tokenmill.system.store import read_range
from tokenmill.texts import I64
from tokenmill.tokens.placement import CutRule
from tokenmill.tokens.reframe import ReframedStream
from tokenmill.tokens.shards import cuts_of, document_from_row, origins_in
from tokenmill.tokens.splits import stream_name, streams_of

BLOCK = 1 << 20
TAKEN = 512  # lines of a table that are looked up at a time: each may map 64 KB of it


def open_streams(dataset: Dataset) -> list[Stream]:
    """The streams in the order of `streams_of`: one, or train and val."""
    return [Stream(dataset, stream_name(splits)) for splits in streams_of(dataset.settings.val)]


class Stream:
    repeats = False  # a mixture may take a row several times

    def __init__(self, dataset: Dataset, name: str) -> None:
        self.name, self.dataset = name, dataset
        self.settings, self.layout = dataset.settings, dataset.layout
        self.files = sorted(
            (file for file in dataset.token_files if file.stream == name),
            key=lambda file: file.first_token,
        )
        self.tokens = sum(file.tokens for file in self.files)
        self.splits = [split for split in dataset.splits if split.stream == name]
        self.dtype = stored_dtype(self.layout)
        self.format = get_format(self.layout.format)
        self.source_names = [str(source["name"]) for source in dataset.manifest.sources]
        self._opened = threading.local()  # each thread reads another part
        self.ends = self._index("ends")
        self.runs = self._index("runs").reshape(-1, 3)
        self.documents = len(self.ends)
        self.shuffled = self.settings.reordered
        self.repeats = self.settings.mixture is not None

    def _index(self, kind: str) -> Array:
        name = f"{self.name}.{kind}"
        # A stream without a document has no index, or an empty one, which cannot be mapped.
        files = self.dataset.manifest.files
        is_there = any(file.path == f"index/{name}" and file.size for file in files)
        return self.dataset.index(name) if is_there else np.zeros(0, np.uint64)

    def read(self, start: int, stop: int) -> Array:
        """Tokens [start, stop). No file is kept open: there may be ten thousand."""
        pieces = [np.zeros(0, self.dtype)]
        number = max(0, bisect.bisect_right(self.files, start, key=lambda f: f.first_token) - 1)
        while start < stop and number < len(self.files):
            file = self.files[number]
            at = start - file.first_token
            count = min(stop - start, file.tokens - at)
            pieces.append(self._read(number, at, count))
            start, number = start + count, number + 1
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _read(self, number: int, at: int, count: int) -> Array:
        if not self.format.framed:
            size = self.dtype.itemsize
            offset = self.format.header_bytes(self.layout) + at * size
            path = self.files[number].path
            content = read_range(self.dataset.store, path, offset, count * size)
            return np.frombuffer(content, self.dtype)
        opened: tuple[int, Slices] | None = getattr(self._opened, "file", None)
        if opened is None or opened[0] != number:
            opened = self._opened.file = number, self.dataset.open_tokens(self.files[number])
        return opened[1][at : at + count]

    def _block(self, kind: str, first: int, stop: int) -> I64:
        """Values [first, stop) of a table, read and not mapped: a map keeps what it has seen."""
        if first >= stop:
            return np.zeros(0, np.int64)
        name = f"index/{self.name}.{kind}"
        content = read_range(self.dataset.store, name, first * 8, (stop - first) * 8)
        return np.frombuffer(content, "<u8").astype(np.int64)

    def _taken(self, kind: str, numbers: I64, width: int = 1) -> I64:
        """Lines of a table by number, some at a time: each map is gone before the next one."""
        found = np.zeros((len(numbers), width), np.int64)
        for at in range(0, len(numbers), TAKEN):
            table = self._index(kind).reshape(-1, width)
            found[at : at + TAKEN] = table[numbers[at : at + TAKEN]]
        return found

    def ends_of(self, first: int, stop: int) -> I64:
        return self._block("ends", first, min(stop, self.documents))

    def origins_of(self, first: int, stop: int) -> tuple[list[str], I64, I64]:
        return self.source_names, *origins_in(self.runs, first, stop)

    def span(self, document: int) -> tuple[int, int]:
        return int(self.ends[document - 1]) if document else 0, int(self.ends[document])

    def spans(self, documents: I64) -> tuple[I64, I64]:
        """First token and end of each document."""
        starts = self._taken("ends", np.maximum(documents - 1, 0))[:, 0]
        return np.where(documents > 0, starts, 0), self._taken("ends", documents)[:, 0]

    def from_row(self, source: int, row: int) -> int:
        """The first document that comes from this row of this source, or from a later one."""
        return document_from_row(self.runs, self.documents, source, row)

    def documents_of(self, source: int, first: int, stop: int) -> tuple[I64, I64]:
        """Numbers and rows of the documents made from rows [first, stop) of a source, by row."""
        if not self.shuffled:
            low, high = self.from_row(source, first), self.from_row(source, stop)
            return np.arange(low, high, dtype=np.int64), origins_in(self.runs, low, high)[1]
        low, high = self._place(source, first), self._place(source, stop)
        documents = self._block("rows", low, high)
        if fault := self._order_fault(documents):
            raise damaged(f"index/{self.name}.rows", fault)
        origins = self._taken("runs", documents, 3)
        rows = origins[:, 2]
        inside = (origins[:, 1] == source) & (rows >= first) & (rows < stop)
        least = 0 if self.repeats else 1
        if not inside.all() or (np.diff(rows) < least).any():
            at = f"entries {low} to {high - 1}"
            raise damaged(f"index/{self.name}.rows", f"{at} are not in the order of their rows")
        return documents, rows

    def _place(self, source: int, row: int) -> int:
        """In the table of rows: the first entry of this row of this source, or of a later one."""
        rows, runs = self._index("rows"), self._index("runs").reshape(-1, 3)

        def origin(entry: int) -> tuple[int, int]:
            document = int(rows[entry])
            if document >= len(runs):
                raise damaged(f"index/{self.name}.rows", self._order_fault(rows[entry : entry + 1]))
            return int(runs[document, 1]), int(runs[document, 2])

        return bisect.bisect_left(range(len(rows)), (source, row), key=origin)

    def entries(self, kind: str) -> int:
        """How many numbers a table of the index has."""
        return len(self._index(kind))

    def numbers(self, first: int, stop: int) -> I64:
        """The numbers that documents [first, stop) had before `export` shuffled them."""
        return self._block("numbers", first, stop)

    def numbers_by_row(self, first: int, stop: int) -> I64:
        """The same of some documents by source and row."""
        return self._taken("numbers", self._block("rows", first, stop))[:, 0]

    def old_places(self, documents: I64) -> I64:
        """Where documents were in the order that `prepare` gave them."""
        if self.settings.reshuffle is None:
            return documents
        return self._taken("numbers", documents)[:, 0]

    def documents_by_source(self) -> I64:
        """How many documents of each source there are, copies counted."""
        found = np.zeros(len(self.source_names), np.int64)
        for first in range(0, len(self.runs), BLOCK):
            runs = self._block("runs", first * 3, min(first + BLOCK, len(self.runs)) * 3)
            np.add.at(found, runs.reshape(-1, 3)[:, 1], 1)
        return found

    def _order_fault(self, documents: Array) -> str:
        beyond = documents[documents >= self.documents]
        return f"names document {int(beyond[0])} of {self.documents}" if len(beyond) else ""

    def number_in_split(self, document: int, token: int) -> tuple[str, int, int]:
        """Split, document in it and token in it, as `inspect` counts, of a token of the stream."""
        for split in reversed(self.splits):
            if split.tokens and token >= split.first_token:
                first = np.uint64(split.first_token)
                before = int(np.searchsorted(self.ends, first, side="right")) if first else 0
                return split.name, document - before, token - split.first_token
        return self.splits[0].name, document, token

    def faults(self) -> Iterator[str]:
        """Where ends and runs contradict themselves or the token files."""
        before = 0
        for block in range(0, self.documents, BLOCK):
            ends = self.ends_of(block, block + BLOCK)
            wrong = np.flatnonzero(np.diff(ends, prepend=before) < 0)
            if len(wrong):
                yield f"index/{self.name}.ends: document {block + wrong[0]} ends before it begins"
                return
            before = int(ends[-1])
        if before != self.tokens:
            yield (
                f"index/{self.name}.ends: documents end at token {before}, "
                f"the files hold {self.tokens}"
            )
        fault = self._shuffled_fault() if self.shuffled else self._run_fault()
        if fault:
            yield f"index/{self.name}.{fault}"

    def _shuffled_fault(self) -> str:
        """One run for each document, and each document once in the table of rows. Whether that
        table is in order, each look into it tells."""
        tables = {"runs": len(self.runs), "rows": len(self._index("rows"))}
        for kind, entries in tables.items():
            if entries != self.documents:
                return f"{kind}: {entries} entries for {self.documents} documents"
        for first in range(0, self.documents, BLOCK):
            stop = min(first + BLOCK, self.documents)
            runs = self._block("runs", first * 3, stop * 3).reshape(-1, 3)
            if not np.array_equal(runs[:, 0], np.arange(first, stop)):
                return "runs: documents are not numbered in order"
            if runs[:, 1].max() >= len(self.source_names):
                return "runs: names a source that is not there"
            if fault := self._order_fault(self._block("rows", first, stop)):
                return f"rows: {fault}"
        return ""

    def _run_fault(self) -> str:
        if (len(self.runs) == 0) != (self.documents == 0):
            return f"runs: {len(self.runs)} runs for {self.documents} documents"
        for block in range(0, len(self.runs), BLOCK):
            stop = min(block + BLOCK + 1, len(self.runs))
            runs = self._block("runs", block * 3, stop * 3).reshape(-1, 3)
            first, source, row = runs[:, 0], runs[:, 1], runs[:, 2]
            lengths = np.diff(first)
            later = np.diff(source) > 0
            beyond = (np.diff(source) == 0) & (row[1:] >= row[:-1] + lengths)
            if (block == 0 and first[0] != 0) or (lengths <= 0).any():
                return "runs: documents are not numbered in order"
            if not (later | beyond).all():
                at = block + int(np.flatnonzero(~(later | beyond))[0])
                return f"runs: rows are not in order after run {at}"
            if first[-1] >= self.documents or source.max() >= len(self.source_names):
                return "runs: names a document or a source that is not there"
        return ""

    def border_faults(self) -> Iterator[str]:
        """Where splits and files do not begin where the plan's rules say."""
        position = 0
        for number, split in enumerate(self.splits):
            if split.first_token != position:
                yield f"split {split.name}: begins at token {split.first_token}, not {position}"
            position = split.first_token + split.tokens
            if number == 0 and len(self.splits) == 2 and position != (end := self._first_end()):
                yield f"split {split.name}: ends at token {position}, by its rule at {end}"
            yield from self._file_faults(split)
        if fault := self._cut_fault():
            yield fault
        if position != self.tokens:
            yield f"stream {self.name}: splits end at token {position}, files at {self.tokens}"

    def _first_end(self) -> int:
        """Where the first of two splits ends: val, or train before a tail."""
        val, layout = self.settings.val, self.layout
        if val.kind == "docs":
            return int(self.ends[min(val.amount, self.documents) - 1]) if self.documents else 0
        token = val.amount or layout.shard_tokens
        if val.kind == "tail":
            token = val.tail_start(self.tokens)
        if val.kind != "tokens" and layout.cut != "document":
            return min(token, self.tokens)
        # Where the first document begins that begins at `token` or later.
        at = int(np.searchsorted(self.ends, np.uint64(token), side="left"))
        return int(self.ends[at]) if at < self.documents else self.tokens

    def _cut_fault(self) -> str:
        """The first file that does not begin where the rules of cutting say."""
        names = [s.name for s in self.splits]
        rules = CutRule.all_of(self.settings, self.layout)
        rule = next(r for r in rules if list(r.splits) == names)
        cuts = cuts_of(ReframedStream(self, self.settings, self.layout), rule)
        for file, cut in zip(self.files, cuts, strict=False):
            if file.first_token != cut.first_token or file.split != cut.split:
                begins = f"{file.path}: begins at token {file.first_token}"
                return f"{begins}, by its rule at {cut.first_token}"
        if len(self.files) != len(cuts):
            return f"stream {self.name}: {len(self.files)} files, by its rule {len(cuts)}"
        return ""

    def _file_faults(self, split: SplitEntry) -> Iterator[str]:
        files = [f for f in self.files if f.split == split.name]
        if sum(f.tokens for f in files) != split.tokens:
            yield f"split {split.name}: its files do not hold its {split.tokens} tokens"
        fmt, layout = self.format, self.layout
        folder = self.settings.folder_of(layout)
        for number, file in enumerate(files):
            name = folder + fmt.file_name(layout, split.name, number, len(files))
            if file.path != name:
                yield f"{file.path}: not the name of file {number} of {split.name}"
            if fmt.framed:
                continue
            header = read_range(self.dataset.store, file.path, 0, fmt.header_bytes(layout))
            if header != fmt.header(layout, file.tokens):
                yield f"{file.path}: its header is not that of {file.tokens} tokens"
