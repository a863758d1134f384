"""Are the documents of a shuffled dataset in the order of their keys?

A key is made from the seed, the source and the position of a document in it, so only reading the
sources tells it. Sources are read one after the other, and each tells the keys of documents all
over the dataset: these are kept by document, and compared with their neighbours at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from tokenmill.dataset.deep.origins import Problem
from tokenmill.dataset.streams import BLOCK, Stream
from tokenmill.texts import I64
from tokenmill.tokens.splits import U64

KEPT = 1 << 24  # keys of a stream: 128 MB. Of documents beyond, those read together are compared.


class KeyOrder:
    """The keys of the documents of one stream, as far as they were read; by the place that each
    document had when `prepare` was done."""

    def __init__(self, stream: Stream, kept: int = KEPT) -> None:
        self.stream = stream
        self._keys = np.zeros(min(stream.documents, kept), np.uint64)  # memory as they come
        self._seen = np.zeros(len(self._keys), bool)
        self._bounds = _source_bounds(stream)
        self._lock = threading.Lock()  # what follows is about all threads
        self._wrong = -1  # a document out of order among those that were read together
        self.last = -1  # the largest key that is there
        self.first_left: tuple[int, str, int] | None = None  # key, source and row

    def note(self, documents: I64, keys: U64, source: int = 0) -> None:
        """Documents of a source that are there, with their keys; each is told by one thread."""
        if not len(documents):
            return
        places = self.stream.old_places(documents)
        kept = places < len(self._keys)
        self._keys[places[kept]] = keys[kept]
        self._seen[places[kept]] = True
        order = np.argsort(places)
        wrong = order[np.flatnonzero(keys[order][1:] < keys[order][:-1]) + 1]
        if self._bounds is not None:
            low, high = self._bounds[source]
            wrong = np.concatenate((wrong, np.flatnonzero((places < low) | (places >= high))))
        with self._lock:
            self.last = max(self.last, int(keys.max()))
            if len(wrong):
                self._wrong = int(documents[wrong[0]])

    def note_left(self, source: str, rows: I64, keys: U64) -> None:
        """Rows that a limit has left out."""
        if not len(rows):
            return
        least = int(keys.argmin())
        left = int(keys[least]), source, int(rows[least])
        with self._lock:
            self.first_left = min(self.first_left or left, left)

    def wrong_document(self) -> int:
        """A document that does not follow the one before it; -1: none was seen."""
        seen = np.flatnonzero(self._seen)
        follows = self._keys[seen][1:] >= self._keys[seen][:-1]
        if self._bounds is not None:  # the next source of the mixture begins with the least keys
            for border in np.unique(self._bounds).tolist():
                at = int(np.searchsorted(seen[1:], border))
                if at < len(follows) and seen[at] < border:
                    follows[at] = True
        wrong = np.flatnonzero(~follows)
        return self._document_at(int(seen[wrong[0] + 1])) if len(wrong) else self._wrong

    def _document_at(self, place: int) -> int:
        """The document that was at a place when `prepare` was done."""
        if self.stream.settings.reshuffle is None:
            return place
        for first in range(0, self.stream.documents, BLOCK):
            numbers = self.stream.numbers(first, min(first + BLOCK, self.stream.documents))
            if len(found := np.flatnonzero(numbers == place)):
                return first + int(found[0])
        return 0


def _source_bounds(stream: Stream) -> I64 | None:
    """For each input file, the places [low, high) of its source of the mixture, where these
    follow one another; None where one order is that of all documents."""
    settings, mixture = stream.settings, stream.settings.mixture
    if settings.shuffle or mixture is None or (settings.only and settings.reshuffle):
        return None
    entries = stream.dataset.manifest.sources
    groups = np.array([mixture.names.index(entry["mix"]) for entry in entries])
    documents = np.zeros(len(mixture.names), np.int64)
    np.add.at(documents, groups, stream.documents_by_source())
    ends = np.cumsum(documents)
    bounds: I64 = np.stack((ends - documents, ends), axis=1)[groups]
    return bounds


def order_problems(orders: Sequence[KeyOrder]) -> Iterator[Problem]:
    for order in orders:
        document = order.wrong_document()
        if document >= 0:
            stream = order.stream
            split, number, _ = stream.number_in_split(document, stream.span(document)[0])
            message = (
                f"{split} document {number}: its key belongs before that of the document before"
            )
            yield Problem(message, "order", "", -1, split, number)
    lefts = [order.first_left for order in orders if order.first_left is not None]
    last = max((order.last for order in orders), default=-1)
    if lefts and min(lefts)[0] < last:
        _, name, row = min(lefts)
        message = f"{name}: row {row} is not there, but its key is before that of the last document"
        yield Problem(message, "order", name, row)
