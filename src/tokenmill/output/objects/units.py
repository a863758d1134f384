"""Units as objects: each is all pieces of a unit, under a name that holds their hash.

An object is never changed: other content has another name. So a unit that is put twice, or late by
a worker that was taken for dead, is the same object.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from tokenmill.errors import StorageError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.files import JobFiles
from tokenmill.output.journal import PieceRecord, UnitRecord
from tokenmill.output.objects.relative import Shift, shift_of
from tokenmill.system.disk import Buffer
from tokenmill.system.store import ObjectStore, Store, read_range


def unit_name(folder: str, unit: UnitId, pieces: Sequence[PieceRecord]) -> str:
    """The hash is of the lengths and digests of the pieces, which the unit's record holds."""
    table = np.array([(piece.length, piece.digest) for piece in pieces], "<u8")
    return f"{folder}/{unit}-{xxhash.xxh3_128_hexdigest(table.tobytes())}"


def object_name(folder: str, record: UnitRecord) -> str:
    """The object that holds a unit, also one that got its place after it was written."""
    if record.object:
        return f"{folder}/{record.object}"
    return unit_name(folder, record.unit, record.pieces)


class UnitPiece(NamedTuple):
    """A piece of a file that is nowhere whole."""

    offset: int  # in that file
    length: int
    digest: int
    object: str
    at: int  # in that object
    shift: Shift | None = None  # how it is made absolute


def pieces_in(folder: str, record: UnitRecord) -> Iterator[tuple[str, UnitPiece]]:
    """The pieces of a unit, each with the file that it is a piece of."""
    name, at = object_name(folder, record), 0
    for piece in record.pieces:
        shift = shift_of(piece.file, record.before) if record.object else None
        yield piece.file, UnitPiece(piece.offset, piece.length, piece.digest, name, at, shift)
        at += piece.length


def piece_content(store: ObjectStore, piece: UnitPiece) -> bytes | None:
    """The bytes of a piece; None if they are not what its unit's worker had in memory."""
    length, shift = piece.length, piece.shift
    if shift is not None and shift.kind == "quarantine":  # the last in its object
        length = max(0, (store.size(piece.object) or 0) - piece.at)
    content = read_range(store, piece.object, piece.at, length)
    try:
        content = content if shift is None else shift.apply(content)
    except (ValueError, msgspec.DecodeError):
        return None
    whole = len(content) == piece.length and xxhash.xxh3_64_intdigest(content) == piece.digest
    return content if whole else None


def is_unit_whole(store: ObjectStore, folder: str, record: UnitRecord) -> bool:
    pieces = [piece for _, piece in pieces_in(folder, record)]
    try:
        return all(piece_content(store, piece) is not None for piece in pieces)
    except (OSError, StorageError):
        return False


class ObjectFiles(JobFiles):
    """Where a worker puts its units, and the files that it makes: under their final names."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store, self._folder = store, folder
        self.ranged = store.ranged
        self._pieces: list[Buffer] = []  # of the unit that is being written

    def where(self, name: str = "") -> str:
        return self._store.where(name)

    def size(self, name: str) -> int | None:
        return self._store.size(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self._store.read(name, offset, length)

    def stream(self, name: str, offset: int, length: int) -> Iterator[Buffer]:
        return self._store.stream(name, offset, length)

    def view(self, name: str) -> memoryview:
        return self._store.view(name)

    def list(self, folder: str) -> Iterator[str]:
        return self._store.list(folder)

    def write_at(self, name: str, offset: int, buffer: Buffer) -> None:
        self._pieces.append(buffer)

    def unit_written(self, unit: UnitId, pieces: Sequence[PieceRecord]) -> None:
        given, self._pieces = self._pieces, []
        if pieces:  # what is before these is of a unit that failed
            mine = given[len(given) - len(pieces) :]
            self._store.write_parts(unit_name(self._folder, unit, pieces), mine)

    def write_file(self, name: str, pieces: Iterable[Buffer], size: int = 0) -> None:
        self._store.write_parts(name, pieces, size)

    def write_whole(self, name: str, content: bytes) -> None:
        self._store.write_whole(name, content)

    def create(self, name: str, content: bytes) -> None:
        self._store.create(name, content)

    def remove(self, name: str) -> bool:
        return self._store.remove(name)

    def remove_all(self, names: Iterable[str]) -> None:
        self._store.remove_all(names)

    def truncate(self, name: str, size: int) -> None:
        """Nothing is ever behind a file."""

    def watch(self, name: str) -> None:
        """An error is told to the one who writes, at once."""

    def sync(self, name: str) -> None:
        """What is there is durable."""

    def sync_names(self, folder: str) -> None:
        """So are names."""

    def close(self) -> None:
        self._pieces = []


class _Pieces(NamedTuple):
    """The pieces of one file, by their offsets: 14 bytes of each in memory."""

    offsets: Any
    rows: Any  # of the records that have them
    numbers: Any  # which piece of its record

    def in_order(self) -> _Pieces:
        columns = [np.array(column) for column in self]
        order = np.argsort(columns[0], kind="stable")
        return _Pieces(*(column[order] for column in columns))


class JoinedFiles(Store):
    """Files that are nowhere whole, read from the objects of units.

    A piece is read as a whole and compared with its digest: every byte that goes into a file of
    the dataset is what its unit's worker had in memory.
    """

    def __init__(self, store: ObjectStore, folder: str, records: Sequence[UnitRecord]) -> None:
        """`records`: read again, one by one, when a file is read."""
        self._store, self._folder, self._records = store, folder, records
        self._last: dict[str, tuple[int, bytes]] = {}  # the piece that was read last
        found: dict[str, _Pieces] = {}
        for row, record in enumerate(records):
            for number, piece in enumerate(record.pieces):
                if piece.file not in found:
                    found[piece.file] = _Pieces(array("Q"), array("I"), array("H"))
                for column, value in zip(
                    found[piece.file], (piece.offset, row, number), strict=True
                ):
                    column.append(value)
        self._files = {name: pieces.in_order() for name, pieces in found.items()}

    def where(self, name: str = "") -> str:
        return self._store.where(name)

    def _piece(self, name: str, number: int) -> UnitPiece:
        pieces = self._files[name]
        mine = list(pieces_in(self._folder, self._records[int(pieces.rows[number])]))
        return mine[int(pieces.numbers[number])][1]

    def size(self, name: str) -> int | None:
        if name not in self._files:
            return None
        last = self._piece(name, len(self._files[name].offsets) - 1)
        return last.offset + last.length

    def read(self, name: str, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        offsets = self._files[name].offsets if name in self._files else ()
        number = max(0, int(np.searchsorted(offsets, offset, "right")) - 1)
        while length and number < len(offsets):
            start = offset - int(offsets[number])
            if start < 0:
                raise StorageError(f"{self.where(name)}: no unit holds its byte {offset}")
            part = self._content(name, number)[start : start + length]
            parts.append(part)
            offset, length, number = offset + len(part), length - len(part), number + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _content(self, name: str, number: int) -> bytes:
        last = self._last.get(name)
        if last is not None and last[0] == number:
            return last[1]
        piece = self._piece(name, number)
        content = piece_content(self._store, piece)
        if content is None:
            raise StorageError(
                f"{self._store.where(piece.object)}: is not what it was when it was written",
                hint="run the same command again: what is damaged is encoded again",
            )
        self._last[name] = number, content
        return content

    def list(self, folder: str) -> Iterator[str]:
        return iter(sorted(self._files))

    def write_whole(self, name: str, content: bytes) -> None:
        raise NotImplementedError

    def create(self, name: str, content: bytes) -> None:
        raise NotImplementedError

    def remove(self, name: str) -> bool:
        raise NotImplementedError
