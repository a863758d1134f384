"""Documents sorted by key in one file of the work folder: what a unit of a shuffled job writes, and
a run of `export --shuffle`.

    words           u64: MAGIC, number of streams, then entries and tokens of each
    entries         of each stream: key, where its tokens end, row, source, flags
    tokens          of each stream, in the order of the entries
    digests         u64: xxh3 of every BLOCK bytes of the above

An entry is a document, or the part of a giant one that is in this unit. A file is written in one
half of a job and read in the other, from places that nobody knew before: so every block that is
read is compared with its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import StorageError
from tokenmill.system.disk import Buffer
from tokenmill.system.store import Store, read_range
from tokenmill.texts import I64
from tokenmill.tokens.packing import DROPPED, PackedStream, Tokens

MAGIC = 0x32746C6C696D6B74  # "tkmillt2"
# Flags: the document began in an earlier unit, goes on in the next. Those of DROPPED say that it is
# not written, and has no tokens.
CONTINUED, OPEN = 1, 2
ENTRY = np.dtype(
    [("key", "<u8"), ("end", "<u8"), ("row", "<u8"), ("source", "<u4"), ("flags", "<u4")]
)
BLOCK = 8192  # bytes: a range takes that much of a run, or more
WINDOW = 128  # entries that are read at once to find a key: 4 KB

Entries = npt.NDArray[Any]  # of ENTRY


class EntryTokens(NamedTuple):
    """Entries with their tokens."""

    entries: Entries
    tokens: Tokens


def arranged(tokens: Tokens, lengths: I64, order: I64) -> Tokens:
    """The tokens of documents in another order, copied document by document in native code."""
    # Not imported before it is needed: 0.05 to 0.1 s, in the coordinator and in the fork server.
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(order):
        return tokens[:0]
    size = tokens.itemsize
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths) * size))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(tokens))]
    documents = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
    # Not `pa.array`: where pandas is installed, it is imported for that, 0.4 s in every worker.
    wanted = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
    taken = pc.take(documents, wanted, boundscheck=False)
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
    if len(packed.flags):
        entries["flags"] = packed.flags
    if len(entries):
        entries["flags"][0] |= CONTINUED * packed.continued
        entries["flags"][-1] |= OPEN * packed.open
    return sorted_by_key(entries, packed.lengths, packed.tokens)


def head_of(streams: Iterable[tuple[int, int]]) -> bytes:
    """How a file of sorted documents begins; `streams`: entries and tokens of each."""
    counts = list(streams)
    words = [MAGIC, len(counts), *(count for both in counts for count in both)]
    return np.array(words, "<u8").tobytes()


def buffers_of(streams: Sequence[EntryTokens]) -> Iterator[Buffer]:
    """A file of sorted documents, one buffer after the other."""
    entries = b"".join(stream.entries.tobytes() for stream in streams)
    tokens = [np.ascontiguousarray(stream.tokens) for stream in streams if len(stream.tokens)]
    head = head_of((len(stream.entries), len(stream.tokens)) for stream in streams)
    yield from with_digests([head + entries, *tokens])


def with_digests(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """All of a file of sorted documents; behind it the digests of its blocks."""
    digests = _BlockDigests()
    for buffer in buffers:
        digests.add(buffer)
        yield buffer
    yield np.array(digests.end(), "<u8")


class _BlockDigests:
    """Of every block of what is added; the last one may be shorter."""

    def __init__(self) -> None:
        self._found: list[int] = []
        self._rest = b""

    def add(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        if self._rest:
            missing = BLOCK - len(self._rest)
            self._rest, view = self._rest + view[:missing], view[missing:]
            if len(self._rest) < BLOCK:
                return
            self._found.append(xxhash.xxh3_64_intdigest(self._rest))
        whole = len(view) - len(view) % BLOCK
        for at in range(0, whole, BLOCK):
            self._found.append(xxhash.xxh3_64_intdigest(view[at : at + BLOCK]))
        self._rest = bytes(view[whole:])

    def end(self) -> list[int]:
        if self._rest:
            self._found.append(xxhash.xxh3_64_intdigest(self._rest))
        self._rest = b""
        return self._found


def _digests_of(content: Buffer) -> list[int]:
    digests = _BlockDigests()
    digests.add(content)
    return digests.end()


class _Section(NamedTuple):
    """One stream of a file."""

    entries: int
    tokens: int
    entries_at: int
    tokens_at: int


class SortedRun:
    """A file of sorted documents, read in slices. It keeps no file open."""

    def __init__(
        self, store: Store, name: str, streams: int, dtype: np.dtype[Any], rows_before: int = 0
    ) -> None:
        """`rows_before`: added to every row that is read."""
        self.store, self.name, self.dtype = store, name, dtype
        self._rows_before = rows_before
        words = self._stored(0, 8 * (2 + 2 * streams))
        head = np.frombuffer(words, "<u8").tolist()
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
        self._digests_at = tokens_at
        self._read(0, len(words))  # compared, now that it is known where the digests are

    def entries(self, stream: int, first: int, stop: int) -> Entries:
        at = self.sections[stream].entries_at + ENTRY.itemsize * first
        found = np.frombuffer(self._read(at, ENTRY.itemsize * (stop - first)), ENTRY)
        if self._rows_before:
            found = found.copy()
            found["row"] += self._rows_before
        return found

    def tokens(self, stream: int, first: int, stop: int) -> Tokens:
        """Tokens [first, stop) of a stream."""
        at = self.sections[stream].tokens_at + self.dtype.itemsize * first
        content = self._read(at, self.dtype.itemsize * (stop - first))
        tokens: Tokens = np.frombuffer(content, self.dtype)
        return tokens

    def whole(self, stream: int) -> tuple[Entries, I64, Tokens]:
        """All entries of a stream, the length of each, and their tokens."""
        section = self.sections[stream]
        entries = self.entries(stream, 0, section.entries)
        ends: I64 = np.concatenate(([0], entries["end"])).astype(np.int64)
        lengths: I64 = np.diff(ends)
        return entries, lengths, self.tokens(stream, 0, section.tokens)

    def between(self, stream: int, low: int, high: int) -> tuple[Entries, int]:
        """The documents with keys in [low, high), and where the tokens of the first one begin."""
        first, stop = self._find(stream, low), self._find(stream, high)
        if first == stop:
            return np.zeros(0, ENTRY), 0
        found = self.entries(stream, max(0, first - 1), stop)
        begin = int(found["end"][0]) if first else 0
        found = found[1:] if first else found
        return found[found["flags"] & DROPPED == 0], begin

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

    def _read(self, at: int, length: int) -> memoryview:
        """These bytes, once the blocks that hold them are compared with their digests."""
        if not length:
            return memoryview(b"")
        first, stop = at // BLOCK, -(-(at + length) // BLOCK)
        begin = first * BLOCK
        content = self._stored(begin, min(stop * BLOCK, self._digests_at) - begin)
        digests = self._stored(self._digests_at + 8 * first, 8 * (stop - first))
        if _digests_of(content) != np.frombuffer(digests, "<u8").tolist():
            raise StorageError(
                f"{self.store.where(self.name)}: changed since it was written, in the bytes "
                f"{begin:,} to {begin + len(content):,}",
                hint="the same command compares all such files and makes the changed ones again; "
                "check the disk and the memory of this machine",
            )
        return memoryview(content)[at - begin : at - begin + length]

    def _stored(self, at: int, length: int) -> bytes:
        content = read_range(self.store, self.name, at, length)
        if len(content) != length:
            raise StorageError(f"{self.store.where(self.name)}: shorter than it was")
        return content


def _below(keys: npt.NDArray[np.uint64], key: int) -> int:
    """How many of the sorted keys are below a number, which may be 2**64."""
    return len(keys) if key >> 64 else int(np.searchsorted(keys, np.uint64(key)))
