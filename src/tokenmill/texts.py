"""Documents as flat bytes: one buffer and 64-bit offsets, from the reader to the encoder.

A Python object per document would cost more than encoding it; a batch is two arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.integer]
Integer = TypeVar("Integer", bound=np.integer)

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

    def only(self, keep: Flags) -> Texts:
        """The documents at which `keep` is true; without a copy where all others are empty."""
        if not self.lengths[~keep].any():
            return Texts(self.data, self.offsets[np.append(keep, True)])
        return from_bytes(map(self.document, np.flatnonzero(keep).tolist()))

    def with_documents(self, changed: Mapping[int, bytes]) -> Texts:
        """The same texts with some documents replaced."""
        parts: list[bytes | U8] = []
        lengths = self.lengths
        done = 0
        for index in sorted(changed):
            parts.append(self.data[int(self.offsets[done]) : int(self.offsets[index])])
            parts.append(changed[index])
            lengths[index] = len(changed[index])
            done = index + 1
        parts.append(self.data[int(self.offsets[done]) : int(self.offsets[-1])])
        data = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        return Texts(data, offsets_of(lengths))

    def to_arrow(self) -> Any:
        """The same bytes as an Arrow array of strings, without a copy."""
        import pyarrow

        buffers = [None, pyarrow.py_buffer(self.offsets), pyarrow.py_buffer(self.data)]
        return pyarrow.Array.from_buffers(pyarrow.large_string(), self.documents, buffers)

    def faults(self) -> dict[int, str]:
        """The documents that are not UTF-8, by number, and what is wrong with each.

        Each document by itself: two that are cut inside a letter are wrong, also where they are
        right put together.
        """
        if self.are_utf8():
            return {}
        found = ((i, utf8_fault(self.document(i))) for i in range(self.documents))
        return {index: fault for index, fault in found if fault}

    def are_utf8(self) -> bool:
        import pyarrow

        try:
            self.to_arrow().validate(full=True)  # 13 GB/s
        except pyarrow.ArrowInvalid:
            return False
        return True


def runs(offsets: I64, size: int, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Documents [start, stop) worth up to `size` bytes together: at least one, `most` at most."""
    start = 0
    while start < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[start] + size, side="right")) - 1
        stop = min(max(start + 1, stop), start + most)
        yield start, stop
        start = stop


def offsets_of(lengths: I64) -> I64:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def from_bytes(documents: Iterable[bytes | bytearray | memoryview]) -> Texts:
    documents = list(documents)
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    return Texts(np.frombuffer(b"".join(documents), np.uint8), offsets_of(lengths))


def utf8_fault(content: bytes | U8, offset: int = 0) -> str:
    """What is wrong with text that should be UTF-8, `offset` bytes into its document; or ''."""
    whole = Texts(np.frombuffer(content, np.uint8), np.array([0, len(content)], np.int64))
    if not whole.are_utf8():
        try:
            bytes(content).decode()
        except UnicodeDecodeError as error:
            return f"not valid UTF-8 at byte {offset + error.start} ({error.reason})"
    return ""


def from_arrow(column: Any) -> tuple[Texts, Flags]:
    """The text or bytes of an Arrow array, without a copy where possible, and which rows are null.

    A null row is an empty document. Raises pyarrow.ArrowInvalid where offsets are out of bounds.
    Whether the documents are UTF-8 is not checked here but by `Texts.faults`.
    """
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_view(column.type) or types.is_null(column.type):
        column = column.cast(pyarrow.large_binary())
    raw = checked_bytes(column)
    nulls = null_rows(raw)
    if not len(raw):  # an array of another library may have no buffers at all
        return from_bytes([]), nulls
    if np.diff(arrow_offsets(raw))[nulls].any():  # there may be text under a null
        raw = raw.fill_null(b"")
    return Texts(np.frombuffer(raw.buffers()[2] or b"", np.uint8), arrow_offsets(raw)), nulls


def checked_bytes(column: Any) -> Any:
    """A column as binary of the same layout; its offsets or views are in bounds."""
    import pyarrow

    column.validate()
    if is_view(column.type):
        raw = column.view(pyarrow.binary_view())
    else:
        raw = column.view(pyarrow.large_binary() if is_large(column.type) else pyarrow.binary())
    raw.validate(full=True)
    return raw


def null_rows(column: Any) -> Flags:
    """Which rows of a checked column are null.

    Read from the bits: pyarrow's own conversion to numpy imports pandas where that is installed,
    which takes 0.2 s in every worker.
    """
    if not column.null_count:
        return np.zeros(len(column), bool)
    return ~_bits(column.buffers()[0], column.offset, len(column))


def true_rows(column: Any) -> Flags:
    """Where a column of truth values without nulls is true."""
    return _bits(column.buffers()[1], column.offset, len(column))


def numbers_of(column: Any) -> npt.NDArray[np.integer]:
    """A column of whole numbers, over the same memory; what stands for a null may be anything."""
    numbers = np.frombuffer(column.buffers()[1], column.type.to_pandas_dtype())
    return numbers[column.offset : column.offset + len(column)]


def _bits(buffer: Any, first: int, count: int) -> Flags:
    used = np.frombuffer(buffer, np.uint8)[first // 8 : (first + count + 7) // 8]
    bits = np.unpackbits(used, bitorder="little")[first % 8 : first % 8 + count]
    return bits.astype(bool)


def arrow_offsets(raw: Any) -> I64:
    """The offsets of a checked column of text or bytes that is not empty."""
    kind = np.int64 if is_large(raw.type) else np.int32
    offsets = np.frombuffer(raw.buffers()[1], kind)[raw.offset : raw.offset + len(raw) + 1]
    return offsets.astype(np.int64, copy=False)


def is_large(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_large_string(kind) or types.is_large_binary(kind))


def is_view(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def contains_byte(data: U8, byte: int) -> bool:
    """memchr over the array without a copy: several times as fast as numpy's `==` and `any`."""
    return bool(len(data)) and _libc.memchr(data.ctypes.data, byte, len(data)) is not None


def longest_word(blocks: Iterable[bytes | U8]) -> int:
    """The longest stretch of a text that is all, or nowhere, white space; it comes in blocks."""
    longest = begin = at = 0
    white = np.zeros(0, bool)
    for block in blocks:
        # Behind the last byte of the block before: a word may end between two blocks.
        white = np.concatenate((white[-1:], np.frombuffer(block, np.uint8) <= 32))
        at += len(block)
        changes = np.flatnonzero(white[1:] != white[:-1]) + (at - len(white) + 1)
        if len(changes):
            longest = max(longest, int(changes[0]) - begin, int(np.diff(changes).max(initial=0)))
            begin = int(changes[-1])
    return max(longest, at - begin)


def count_strings(texts: Texts, strings: Iterable[bytes]) -> int:
    """How often any of the strings occurs inside a document."""
    return sum(len(starts) for starts in _occurrences(texts, strings))


def documents_with(texts: Texts, strings: Iterable[bytes]) -> list[int]:
    """The documents that hold one of the strings, by number."""
    starts = [np.zeros(0, np.int64), *_occurrences(texts, strings)]
    return documents_at(texts, np.concatenate(starts))


def documents_at(texts: Texts, positions: I64) -> list[int]:
    """The documents at these places of `texts.used()`, each once, in order."""
    ends = texts.offsets[1:] - texts.offsets[0]
    found: list[int] = distinct(np.searchsorted(ends, positions, side="right")).tolist()
    return found


def distinct(numbers: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """The numbers in order, each once. `np.unique` imports numpy.ma: 10 ms in every worker."""
    ordered = np.sort(numbers)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def are_among(numbers: Integers, ordered: Integers) -> Flags:
    """Which of the numbers are among those of an array in order, which is not empty."""
    place = np.searchsorted(ordered, numbers)
    found: Flags = ordered[np.minimum(place, len(ordered) - 1)] == numbers
    return found


def _occurrences(texts: Texts, strings: Iterable[bytes]) -> Iterator[I64]:
    """Where in `texts.used()` the strings begin, those with one first byte at a time."""
    data = texts.used()
    by_first: dict[int, list[bytes]] = {}
    for string in filter(None, strings):
        by_first.setdefault(string[0], []).append(string)
    for first, group in by_first.items():
        if not contains_byte(data, first):  # the usual case, and cheap
            continue
        starts = np.flatnonzero(data == first)
        # Few places are left after four bytes; a search for each string would cost more.
        for at in range(1, min(4, *map(len, group))):
            starts = starts[starts + at < len(data)]
            wanted = np.zeros(256, bool)
            wanted[[string[at] for string in group]] = True
            starts = starts[wanted[data[starts + at]]]
        yield _confirmed(texts, data, starts, group)


def _confirmed(texts: Texts, data: U8, starts: I64, strings: list[bytes]) -> I64:
    """The places at which one of the strings stands, inside one document; once for each string."""
    longest = max(map(len, strings))
    ends = texts.offsets[1:] - texts.offsets[0]
    limit = ends[np.searchsorted(ends, starts, side="right")]
    found: list[int] = []
    for start, end in zip(starts.tolist(), limit.tolist(), strict=True):
        window = data[start : min(end, start + longest)].tobytes()
        found += [start] * sum(window.startswith(string) for string in strings)
    return np.array(found, np.int64)
