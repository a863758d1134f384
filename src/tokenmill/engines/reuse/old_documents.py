"""The ids of documents that a finished dataset holds, found by source and row.

A worker reads a source as always. Where the old dataset has a document of the same row of the same
file, its ids are taken from there; what it does not have is encoded.
"""

from __future__ import annotations

import bisect
import functools

import numpy as np

from tokenmill.formats.base import Array
from tokenmill.inputs.batch import Batch
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.output.editions import UNITS
from tokenmill.output.manifest import Manifest
from tokenmill.output.prepared.checked_store import CheckedStore
from tokenmill.output.prepared.documents import DocumentStream, streams_in
from tokenmill.output.stored import StreamFiles
from tokenmill.planning.reuse import Reuse
from tokenmill.system.store import store_of
from tokenmill.texts import I64
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokenizer.known import KnownIds
from tokenmill.tokenizer.session import EncoderSession
from tokenmill.tokens.shards import document_from_row, origins_in

# Where the old dataset was changed.
TOLD = (
    "nothing of it is reused",
    "run the same command again without --reuse: what is done already is kept",
)
NEAR = 4  # documents are read in one go where no more than so many times as many lie between


class OldDocuments:
    """An old dataset as a worker sees it. Counts what it gave, and what it did not have."""

    def __init__(self, reuse: Reuse, session: EncoderSession) -> None:
        self.reuse = reuse
        manifest = Manifest.load(store_of(reuse.directory))
        self._store = CheckedStore(reuse.directory, manifest, *TOLD)
        if manifest.checksum != reuse.checksum:
            raise self._store.damaged("", "was changed since this run began")
        names = {entry.path for entry in manifest.files if entry.size}
        self._streams = [
            OldStream(self._store, about, rows if rows in names else "")
            for about in streams_in(manifest)
            for rows in [f"index/{about.name}.rows"]
        ]
        table = np.frombuffer(self._store.table(UNITS), "<u8").reshape(-1, 5)
        self._units = table.T.astype(np.int64, order="C")
        self.stats = {"reused_documents": 0, "reused_tokens": 0, "encoded_documents": 0}
        session.more_stats |= self.stats
        self.stats = session.more_stats

    def find(self, source: Source, segment: Segment, batch: Batch) -> list[KnownIds]:
        """What each stream has of a batch. Rows of the batch count as its reader counts."""
        if batch.fragment is not None:
            # Which ids of the document are those of this piece, only encoding tells.
            self.stats["encoded_documents"] += int(batch.fragment.last)
            return []
        known = self._known(source, segment, batch) if len(batch.rows) else []
        reused = sum(len(part.documents) for part in known)
        self.stats["reused_documents"] += reused
        self.stats["reused_tokens"] += sum(len(part.ids) for part in known)
        self.stats["encoded_documents"] += len(batch.rows) - reused
        return known

    def _known(self, source: Source, segment: Segment, batch: Batch) -> list[KnownIds]:
        number = self.reuse.sources.get(source.number)
        first = -1 if number is None else self._first_row(number, segment.number)
        if number is None or first < 0:
            return []
        rows = batch.rows + (0 if kind_named(source.kind).numbers_rows else first)
        found = (stream.find(number, rows) for stream in self._streams)
        return [part for part in found if len(part.documents)]

    def _first_row(self, source: int, segment: int) -> int:
        """The row of its source that a segment begins with; -1 where it was not read then."""
        sources, segments, _, first_rows, _ = self._units
        low, high = np.searchsorted(sources, [source, source + 1]).tolist()
        at = low + int(np.searchsorted(segments[low:high], segment))
        return int(first_rows[at]) if at < high and segments[at] == segment else -1


class OldStream(DocumentStream):
    """A stream of an old dataset, in which documents are found by source and row.

    `rows` names the table of a shuffled stream: its documents in the order of sources and rows.
    """

    def __init__(self, store: CheckedStore, about: StreamFiles, rows: str = "") -> None:
        super().__init__(store, about)
        self._rows_name = rows

    def find(self, source: int, rows: I64) -> KnownIds:
        """The documents made from these rows, which are in order."""
        numbers = there = np.zeros(0, np.int64)
        if self.documents:
            numbers, stored = self._made_from(source, int(rows[0]), int(rows[-1]) + 1)
            stored, firsts = np.unique(stored, return_index=True)  # of copies, the first
            there = np.flatnonzero(np.isin(rows, stored, assume_unique=True))
            numbers = numbers[firsts[np.searchsorted(stored, rows[there])]]
        if not len(there):
            return KnownIds(there, np.zeros(0, np.uint32), there)
        order = np.argsort(numbers, kind="stable")
        parts = [self._texts(some) for some in _near(numbers[order])]
        ids, lengths = (np.concatenate(one) for one in zip(*parts, strict=True))
        if (np.diff(order) < 0).any():
            texts = np.split(ids, np.cumsum(lengths)[:-1])
            back = np.argsort(order)
            ids, lengths = np.concatenate([texts[i] for i in back.tolist()]), lengths[back]
        return KnownIds(there, ids, lengths)

    def _made_from(self, source: int, first: int, stop: int) -> tuple[I64, I64]:
        """Documents made from rows [first, stop) of a source, by number, and the row of each."""
        if self._rows_name:
            table, runs = self._rows, self._runs

            def origin(at: int) -> tuple[int, int]:
                _, its_source, row = runs[int(table[at])].tolist()
                return its_source, row

            low, high = (
                bisect.bisect_left(range(len(table)), (source, row), key=origin)
                for row in (first, stop)
            )
            numbers = np.array(table[low:high], np.int64)
            return numbers, np.array(runs[numbers, 2], np.int64)
        low, high = (
            document_from_row(self._runs, self.documents, source, row) for row in (first, stop)
        )
        sources, rows = origins_in(self._runs, low, high)
        mine = np.flatnonzero(sources == source)
        return low + mine, rows[mine]

    @functools.cached_property
    def _rows(self) -> Array:
        return np.frombuffer(self.store.view(self._rows_name), "<u8")

    def _texts(self, numbers: I64) -> tuple[U32, I64]:
        """Ids of documents without their frames, and how many each has."""
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        wanted = np.zeros(stop - first, bool)
        wanted[numbers - first] = True
        return self.texts(self.bounds(first, stop), wanted)


def _near(numbers: I64) -> list[I64]:
    """Documents that are read together: all of them, unless many others lie between."""
    if int(numbers[-1] - numbers[0]) < NEAR * len(numbers):
        return [numbers]
    return np.split(numbers, np.flatnonzero(np.diff(numbers) > NEAR) + 1)
