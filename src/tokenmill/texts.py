"""Documents as flat bytes: one buffer and 64-bit offsets, from the reader to the encoder.

A Python object per document would cost more than encoding it; a batch is two arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_libc = ctypes.CDLL(None)
_libc.memchr.restype = ctypes.c_void_p
_libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


class Texts(NamedTuple):
    """`offsets` has one entry more than there are documents and indexes into `data`."""

    data: U8
    offsets: I64

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def lengths(self) -> I64:
        return np.diff(self.offsets)

    def used(self) -> U8:
        """The part of the buffer that the documents cover."""
        return self.data[int(self.offsets[0]) : int(self.offsets[-1])]

    def document(self, index: int) -> bytes:
        return self.data[int(self.offsets[index]) : int(self.offsets[index + 1])].tobytes()

    def slice(self, start: int, stop: int) -> Texts:
        return Texts(self.data, self.offsets[start : stop + 1])

    def runs(self, size: int) -> Iterator[tuple[int, int]]:
        """Documents [start, stop) worth up to `size` bytes together, at least one each."""
        start = 0
        while start < self.documents:
            limit = int(self.offsets[start]) + size
            stop = max(start + 1, int(np.searchsorted(self.offsets, limit, side="right")) - 1)
            yield start, stop
            start = stop


def from_bytes(documents: Iterable[bytes | bytearray | memoryview]) -> Texts:
    documents = list(documents)
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    return Texts(np.frombuffer(b"".join(documents), np.uint8), offsets)


def utf8_fault(content: bytes | U8, offset: int = 0) -> str:
    """What is wrong with text that should be UTF-8, `offset` bytes into its document; or ''."""
    if len(content) == 0:
        return ""
    import pyarrow

    bounds = pyarrow.py_buffer(np.array([0, len(content)], np.int64))
    text = pyarrow.Array.from_buffers(
        pyarrow.large_string(), 1, [None, bounds, pyarrow.py_buffer(content)]
    )
    try:
        text.validate(full=True)  # 13 GB/s
    except pyarrow.ArrowInvalid:
        try:
            bytes(content).decode()
        except UnicodeDecodeError as error:
            return f"not valid UTF-8 at byte {offset + error.start} ({error.reason})"
    return ""


def contains_byte(data: U8, byte: int) -> bool:
    """memchr over the array without a copy: several times as fast as numpy's `==` and `any`."""
    return bool(len(data)) and _libc.memchr(data.ctypes.data, byte, len(data)) is not None


def positions_of(data: U8, byte: int) -> I64:
    """Where the byte occurs; cheap when it does not."""
    if not contains_byte(data, byte):
        return np.zeros(0, np.int64)
    return np.flatnonzero(data == byte)


def longest_word(blocks: Iterable[bytes | U8]) -> int:
    """The longest stretch of a text that is all, or nowhere, white space; it comes in blocks."""
    longest = begin = at = 0
    last = None
    for block in blocks:
        white = np.frombuffer(block, np.uint8) <= 32
        if len(white) == 0:
            continue
        changes = np.flatnonzero(white[1:] != white[:-1]) + (1 + at)
        if last is not None and last != bool(white[0]):
            changes = np.concatenate((np.array([at], np.int64), changes))
        if len(changes):
            longest = max(longest, int(changes[0]) - begin, int(np.diff(changes).max(initial=0)))
            begin = int(changes[-1])
        last = bool(white[-1])
        at += len(white)
    return max(longest, at - begin)


def count_strings(texts: Texts, strings: Iterable[bytes]) -> int:
    """How often any of the strings occurs inside a document.

    Special tokens are looked for by a rare byte of theirs ('|' in '<|endoftext|>') or by their
    common beginning, since a search for each string would cost more than encoding.
    """
    data = texts.used()
    total = 0
    by_bar: dict[int, list[bytes]] = {}
    by_beginning: dict[bytes, list[bytes]] = {}
    for string in filter(None, strings):
        if 0 <= string.find(b"|") < 4:
            by_bar.setdefault(string.find(b"|"), []).append(string)
        else:
            by_beginning.setdefault(string[:4], []).append(string)
    for at, group in by_bar.items():
        starts = positions_of(data, ord("|")) - at
        starts = starts[starts >= 0]
        firsts = np.frombuffer(bytes({string[0] for string in group}), np.uint8)
        total += _count_at(texts, data, starts[np.isin(data[starts], firsts)], group)
    whole = data.tobytes() if by_beginning else b""
    for beginning, group in by_beginning.items():
        total += _count_at(texts, data, _find_all(whole, beginning), group)
    return total


def _find_all(data: bytes, string: bytes) -> I64:
    found = []
    position = data.find(string)
    while position >= 0:
        found.append(position)
        position = data.find(string, position + 1)
    return np.array(found, np.int64)


def _count_at(texts: Texts, data: U8, starts: I64, strings: list[bytes]) -> int:
    """How many of the strings stand at one of these places, inside one document."""
    if len(starts) == 0:
        return 0
    longest = max(map(len, strings))
    ends = texts.offsets[1:] - texts.offsets[0]
    limit = ends[np.searchsorted(ends, starts, side="right")]
    total = 0
    for start, end in zip(starts.tolist(), limit.tolist(), strict=True):
        window = data[start : min(end, start + longest)].tobytes()
        total += sum(window.startswith(string) for string in strings)
    return total
