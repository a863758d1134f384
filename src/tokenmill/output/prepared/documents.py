"""Documents of a finished dataset as ids, without the separators around them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.formats import get_format
from tokenmill.output.manifest import Manifest
from tokenmill.output.prepared.checked_store import CheckedStore
from tokenmill.output.stored import FileStream, StreamFiles, TokenFile
from tokenmill.texts import I64, Flags
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokens.packing import frame_of, frames
from tokenmill.tokens.splits import stream_name, streams_of

ENDS_AT_ONCE = 1 << 16  # documents whose ends are read together


def streams_in(manifest: Manifest) -> list[StreamFiles]:
    """The streams of a dataset as its first format has them: its index speaks of that one."""
    settings = manifest.settings
    layout, fmt = settings.first, get_format(settings.first.format)
    sizes = {entry.path: entry.size for entry in manifest.files}
    streams = []
    for name in map(stream_name, streams_of(settings.val)):
        files = [
            TokenFile(entry.path, entry.first_token, entry.tokens)
            for entry in manifest.files
            if entry.kind == "tokens" and (entry.format, entry.stream) == (layout.format, name)
        ]
        files.sort(key=lambda file: file.first_token)
        ends, runs = f"index/{name}.ends", f"index/{name}.runs"
        streams.append(
            StreamFiles(
                name,
                settings,
                layout,
                sum(file.tokens for file in files),
                sizes.get(ends, 0) // 8,
                tuple(files),
                ends,
                runs,
                tuple(str(source["name"]) for source in manifest.sources),
                fmt.framed,
            )
        )
    return streams


class DocumentRange(NamedTuple):
    """Documents [first, stop) of a stream."""

    stream: StreamFiles
    first: int
    stop: int


class DocumentStream(FileStream):
    """A stream of which documents are read without their separators."""

    store: CheckedStore

    def __init__(self, store: CheckedStore, about: StreamFiles) -> None:
        super().__init__(store, about)
        self.before, self.after = frame_of(self.settings, self.layout)

    @property
    def frame(self) -> int:
        """How many special ids are around the text of a document."""
        return len(self.before) + len(self.after)

    def bounds(self, first: int, stop: int) -> I64:
        """Where documents [first, stop) begin, and where the last one ends."""
        ends = self.ends_of(max(0, first - 1), stop)
        if first == 0:
            ends = np.concatenate((np.zeros(1, np.int64), ends))
        if (np.diff(ends) < self.frame).any() or int(ends[-1]) > self.tokens:
            raise self.store.damaged(self.about.ends, "documents end before they begin")
        return ends

    def texts(self, bounds: I64, wanted: Flags | None = None) -> tuple[U32, I64]:
        """The ids of the wanted documents, and how many each has. `bounds`: of neighbours."""
        tokens = self.read(int(bounds[0]), int(bounds[-1]))
        ends = bounds - bounds[0]
        lengths = np.diff(ends)
        if wanted is None:
            wanted = np.ones(len(lengths), bool)
        is_text = np.repeat(wanted, lengths)
        for at, token in frames(ends, self.before, self.after):
            self._refuse_other(tokens[at], token)
            is_text[at] = False
        return tokens[is_text].astype(np.uint32), lengths[wanted] - self.frame

    def parts(self, begin: int, end: int, size: int) -> Iterator[U32]:
        """The ids of one long document, some at a time; the last part may be empty."""
        self._refuse_other(self.read(begin, begin + len(self.before)), self.before)
        self._refuse_other(self.read(end - len(self.after), end), self.after)
        begin, end = begin + len(self.before), end - len(self.after)
        for start in range(begin, max(end, begin + 1), size):
            yield self.read(start, min(start + size, end)).astype(np.uint32)

    def _refuse_other(self, found: object, expected: object) -> None:
        if not np.all(np.equal(found, expected)):  # type: ignore[call-overload]
            raise self.store.damaged("", f"stream {self.name} lacks a separator")


def trained_on(manifest: Manifest, store: CheckedStore) -> DocumentRange:
    """The documents of the training split, without those that a border of the split cuts."""
    name = manifest.settings.first.format
    entry = next(one for one in manifest.splits if (one.name, one.format) == ("train", name))
    about = next(one for one in streams_in(manifest) if one.name == entry.stream)
    stream = DocumentStream(store, about)
    first = _ended_by(stream, entry.first_token) if entry.first_token else 0
    if first < about.documents and int(stream.bounds(first, first + 1)[0]) < entry.first_token:
        first += 1  # it began in the validation split
    stop = _ended_by(stream, entry.first_token + entry.tokens)
    return DocumentRange(about, first, max(first, stop))


def _ended_by(stream: DocumentStream, token: int) -> int:
    """How many documents end at or before a token of their stream."""
    numbers = range(stream.documents)
    return bisect.bisect_right(numbers, token, key=lambda n: int(stream.ends_of(n, n + 1)[0]))
