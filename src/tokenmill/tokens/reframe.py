"""A stream of tokens as another format wants it: with other separators.

Documents keep their numbers. The end of a document moves by the tokens that its frame, and the
frames before it, gain or lose. No I/O here: a `StoredStream` does that.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tokenmill.formats.base import Array, stored_dtype
from tokenmill.settings import Layout, PlanSettings
from tokenmill.texts import I64
from tokenmill.tokens.packing import frame_of, frames

BLOCK_TOKENS = 1 << 22
BLOCK_DOCUMENTS = 1 << 18
LOOKED_THROUGH = 1 << 12  # so many ends are read at once rather than halved further


class StoredStream(Protocol):
    """A stream as it is on disk."""

    name: str
    settings: PlanSettings
    layout: Layout
    tokens: int
    documents: int

    def read(self, start: int, stop: int) -> Array:
        """Tokens [start, stop)."""

    def ends_of(self, first: int, stop: int) -> I64:
        """Where documents [first, stop) end."""

    def origins_of(self, first: int, stop: int) -> tuple[list[str], I64, I64]:
        """Names of all sources; source and row of documents [first, stop)."""


class ReframedStream:
    """A stored stream with the separators and the dtype of another layout."""

    def __init__(self, stored: StoredStream, settings: PlanSettings, layout: Layout) -> None:
        self.stored, self.settings, self.layout = stored, settings, layout
        self.name, self.documents = stored.name, stored.documents
        self.dtype = stored_dtype(layout)
        self._before, self._after = frame_of(stored.settings, stored.layout)
        before, after = frame_of(settings, layout)
        width = len(self._before) + len(self._after)
        self._grows = len(before) + len(after) - width
        self.tokens = stored.tokens + self._grows * stored.documents
        self._same = (self._before, self._after) == (before, after)
        # `E a E b` and `a E b E` are one another moved by a token, wherever documents end.
        self._moved = 0
        self._frame = self._before + self._after
        if width == 1 and not self._same and before + after == self._frame:
            self._moved = 1 if after else -1

    def ends(self, first: int, stop: int) -> I64:
        ends = self.stored.ends_of(first, stop)
        return ends + self._grows * np.arange(first + 1, stop + 1) if self._grows else ends

    def end(self, document: int) -> int:
        return int(self.ends(document, document + 1)[0]) if document >= 0 else 0

    def ended_by(self, token: int) -> int:
        """How many documents end at or before a token."""
        low, high = 0, self.documents
        while high - low > LOOKED_THROUGH:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.end(middle) <= token else (low, middle)
        return low + int(np.searchsorted(self.ends(low, high), token, side="right"))

    def read(self, start: int, stop: int) -> Array:
        if stop <= start:
            return np.zeros(0, self.dtype)
        if self._same:
            tokens = self.stored.read(start, stop)
        elif self._moved:
            tokens = self._read_moved(start, stop)
        else:
            tokens = self._read_framed(start, stop)
        return tokens.astype(self.dtype, copy=False)

    def _read_moved(self, start: int, stop: int) -> Array:
        low, high = start + self._moved, stop + self._moved
        parts = [self.stored.read(max(0, low), min(self.tokens, high))]
        separator = np.array(self._frame, parts[0].dtype)
        if low < 0:
            parts.insert(0, separator)
        if high > self.tokens:
            parts.append(separator)
        return np.concatenate(parts)

    def _read_framed(self, start: int, stop: int) -> Array:
        """The text of these tokens is one range of the stored stream, with old frames in it.

        Only what is wanted of the first and the last document: one may be all of a stream.
        """
        first, last = self.ended_by(start), self.ended_by(stop - 1)
        stored = self.stored.ends_of(max(0, first - 1), last + 1)
        if first == 0:
            stored = np.concatenate((np.zeros(1, np.int64), stored))
        ends = stored + self._grows * np.arange(first, last + 2)
        before, after = frame_of(self.settings, self.layout)

        def stored_at(token: int, document: int) -> int:
            """Where the text of a document from this token on is stored."""
            begin, end = map(int, stored[document : document + 2])
            skipped = max(0, token - int(ends[document]) - len(before))
            return min(begin + len(self._before) + skipped, end - len(self._after))

        low, high = stored_at(start, 0), stored_at(stop, last - first)
        old = self.stored.read(low, high)
        new = np.empty(stop - start, self.dtype)
        was_text, is_text = np.ones(len(old), bool), np.ones(len(new), bool)
        for at, _ in frames(stored - low, self._before, self._after):
            was_text[at[(at >= 0) & (at < len(old))]] = False
        for at, token in frames(ends - start, before, after):
            inside = at[(at >= 0) & (at < len(new))]
            new[inside], is_text[inside] = token, False
        new[is_text] = old[was_text]
        return new
