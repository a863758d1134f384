"""Documents sorted by key in one file of the work folder: what a unit of a shuffled job writes.

    words           u64: MAGIC, number of streams, then entries and tokens of each
    entries         of each stream: key, where its tokens end, row, source, flags
    tokens          of each stream, in the order of the entries

An entry is a document, or the part of a giant one that is in this unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import StorageError
from tokenmill.inputs.segments import UnitId
from tokenmill.system.disk import Buffer
from tokenmill.system.store import Store, read_range
from tokenmill.texts import I64
from tokenmill.tokens.packing import PackedStream, Tokens

MAGIC = 0x31746C6C696D6B74  # "tkmillt1"
CONTINUED, OPEN = 1, 2  # flags: the document began in an earlier unit, goes on in the next
ENTRY = np.dtype(
    [("key", "<u8"), ("end", "<u8"), ("row", "<u8"), ("source", "<u4"), ("flags", "<u4")]
)
WINDOW = 128  # entries that are read at once to find a key: 4 KB

Entries = npt.NDArray[Any]  # of ENTRY


def run_name(unit: UnitId) -> str:
    return f"sorted-{unit}"


class EntryTokens(NamedTuple):
    """Entries with their tokens; `end` counts from any beginning."""

    entries: Entries
    tokens: Tokens

    @property
    def lengths(self) -> I64:
        ends = self.entries["end"].astype(np.int64)
        return np.diff(ends, prepend=ends[-1] - len(self.tokens) if len(ends) else 0)


def arranged(tokens: Tokens, lengths: I64, order: I64) -> Tokens:
    """The tokens of documents in another order, copied document by document in native code."""
    if not len(order):
        return tokens[:0]
    size = tokens.itemsize
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths) * size))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(tokens))]
    documents = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
    taken = pc.take(documents, pa.array(order), boundscheck=False)
    _, _, content = taken.buffers()
    if content is None or not content.size:
        return tokens[:0]
    return np.frombuffer(content, tokens.dtype, int(lengths[order].sum()))


def sorted_by_key(entries: Entries, lengths: I64, tokens: Tokens) -> EntryTokens:
    """Entries in the order of the dataset; equal ones stay as they are."""
    order = order_of(entries)
    ordered = entries[order]
    ordered["end"] = np.cumsum(lengths[order])
    return EntryTokens(ordered, arranged(tokens, lengths, order))


def order_of(entries: Entries) -> I64:
    """By key, then source and row; parts of one document stay as they are."""
    keys = entries["key"]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    if (sorted_keys[1:] == sorted_keys[:-1]).any():
        order = np.lexsort((entries["row"], entries["source"], keys))
    return order


def sorted_stream(packed: PackedStream, source: int, rows_before: int) -> EntryTokens:
    """The documents of a unit in one stream, sorted."""
    entries = np.zeros(len(packed.lengths), ENTRY)
    entries["key"], entries["source"] = packed.order, source
    entries["row"] = packed.rows + rows_before
    if len(entries):
        entries["flags"][0] |= CONTINUED * packed.continued
        entries["flags"][-1] |= OPEN * packed.open
    return sorted_by_key(entries, packed.lengths, packed.tokens)


def buffers_of(streams: Sequence[EntryTokens]) -> Iterator[Buffer]:
    """A file of sorted documents, one buffer after the other."""
    words = [MAGIC, len(streams)]
    for stream in streams:
        words += [len(stream.entries), len(stream.tokens)]
    yield b"".join(
        [np.array(words, "<u8").tobytes(), *(stream.entries.tobytes() for stream in streams)]
    )
    for stream in streams:
        if len(stream.tokens):
            yield np.ascontiguousarray(stream.tokens)


class _Section(NamedTuple):
    """One stream of a file."""

    entries: int
    tokens: int
    entries_at: int
    tokens_at: int


class SortedRun:
    """A file of sorted documents, read in slices. It keeps no file open."""

    def __init__(self, store: Store, name: str, streams: int, dtype: np.dtype[Any]) -> None:
        self.store, self.name, self.dtype = store, name, dtype
        head = np.frombuffer(self._read(0, 8 * (2 + 2 * streams)), "<u8").tolist()
        if head[:2] != [MAGIC, streams]:
            raise StorageError(f"{store.where(name)}: not a file of sorted documents")
        counts = list(zip(head[2::2], head[3::2], strict=True))
        at = 8 * len(head)
        tokens_at = at + ENTRY.itemsize * sum(entries for entries, _ in counts)
        self.sections: list[_Section] = []
        for entries, tokens in counts:
            self.sections.append(_Section(entries, tokens, at, tokens_at))
            at += ENTRY.itemsize * entries
            tokens_at += dtype.itemsize * tokens
        self.size = tokens_at

    def entries(self, stream: int, first: int, stop: int) -> Entries:
        at = self.sections[stream].entries_at + ENTRY.itemsize * first
        return np.frombuffer(self._read(at, ENTRY.itemsize * (stop - first)), ENTRY)

    def tokens(self, stream: int, first: int, stop: int) -> Tokens:
        """Tokens [first, stop) of a stream."""
        at = self.sections[stream].tokens_at + self.dtype.itemsize * first
        content = self._read(at, self.dtype.itemsize * (stop - first))
        tokens: Tokens = np.frombuffer(content, self.dtype)
        return tokens

    def between(self, stream: int, low: int, high: int) -> tuple[Entries, int]:
        """The entries with keys in [low, high), and where the tokens of the first one begin."""
        first, stop = self._find(stream, low), self._find(stream, high)
        if first == stop:
            return np.zeros(0, ENTRY), 0
        found = self.entries(stream, max(0, first - 1), stop)
        return (found[1:], int(found["end"][0])) if first else (found, 0)

    def _find(self, stream: int, key: int) -> int:
        """The first entry whose key is not below `key`: keys are spread evenly, so that mostly
        one look finds it."""
        low, high = 0, self.sections[stream].entries
        guess = min(high, key * high >> 64)
        while low < high:
            first = max(low, min(guess - WINDOW // 2, high - WINDOW))
            keys = self.entries(stream, first, min(high, first + WINDOW))["key"]
            at = first + _below(keys, key)
            if at == first and first > low:
                high = first
            elif at == first + len(keys):
                low = at
            else:
                return at
            guess = (low + high) // 2
        return low

    def _read(self, at: int, length: int) -> bytes:
        content = read_range(self.store, self.name, at, length)
        if len(content) != length:
            raise StorageError(f"{self.store.where(self.name)}: shorter than it was")
        return content


def _below(keys: npt.NDArray[np.uint64], key: int) -> int:
    """How many of the sorted keys are below a number, which may be 2**64."""
    return len(keys) if key >> 64 else int(np.searchsorted(keys, np.uint64(key)))
