"""Documents as flat bytes: one buffer and 64-bit offsets, from the reader to the encoder.

A Python object per document would cost more than encoding it; a batch is two arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
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


def from_bytes(documents: Iterable[bytes]) -> Texts:
    documents = list(documents)
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    return Texts(np.frombuffer(b"".join(documents), np.uint8), offsets)


def contains_byte(data: U8, byte: int) -> bool:
    """memchr over the array without a copy: several times as fast as numpy's `==` and `any`."""
    return bool(len(data)) and _libc.memchr(data.ctypes.data, byte, len(data)) is not None


def positions_of(data: U8, byte: int) -> I64:
    """Where the byte occurs; cheap when it does not."""
    if not contains_byte(data, byte):
        return np.zeros(0, np.int64)
    return np.flatnonzero(data == byte)


def count_strings(texts: Texts, strings: Iterable[bytes]) -> int:
    """How often any of the strings occurs inside a document.

    Special tokens are looked for by a rare byte of theirs ('|' in '<|endoftext|>'), since a
    search for each string would cost a tenth of the time that encoding takes.
    """
    data = texts.used()
    total = 0
    by_rare_byte: dict[tuple[int, int], list[bytes]] = {}
    for string in strings:
        at = string.find(b"|")
        at = max(at, 0)
        by_rare_byte.setdefault((string[at], at), []).append(string)
    for (byte, at), group in by_rare_byte.items():
        starts = positions_of(data, byte) - at
        if len(starts) == 0:
            continue
        first = group[0][0]
        starts = starts[starts >= 0]
        starts = starts[data[starts] == first]
        if len(starts) == 0:
            continue
        ends = texts.offsets[1:] - texts.offsets[0]
        limit = ends[np.searchsorted(ends, starts, side="right")]
        for start, end in zip(starts.tolist(), limit.tolist(), strict=True):
            window = data[start : min(end, start + 64)].tobytes()
            total += sum(window.startswith(string) for string in group)
    return total
