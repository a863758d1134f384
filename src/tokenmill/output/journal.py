"""The journal: the units of an unfinished dataset whose bytes are durable.

Each record has its length and a checksum, so that a torn end is recognised and cut off. The log
of files that were made after encoding has the same form.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import xxhash

from tokenmill.inputs.segments import UnitId
from tokenmill.settings import is_plain_name
from tokenmill.system.store import Store, read_small
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.placement import StreamCounts

JOURNAL_MAGIC = b"tokenmill-journal-1\n"
_FRAME = struct.Struct("<IQ")  # length and xxh3 of a record


class PieceRecord(msgspec.Struct, frozen=True, array_like=True):
    file: str
    offset: int
    length: int
    digest: int


class AsideRecord(msgspec.Struct, frozen=True, array_like=True):
    """A row that is quarantined because encoding it killed or hung its worker several times."""

    row: int  # of its source
    segment_row: int  # as the batches of its segment count
    reason: str
    rows: int = 0  # of a range that cannot be read; 0: one row, which ended its worker
    part: str = ""  # of the file, that this range is in

    def to_dict(self) -> dict[str, Any]:
        """As the manifest names it."""
        told = {"row": self.row, "reason": self.reason}
        return {**told, "rows": self.rows, "part": self.part} if self.rows else told


class UnitRecord(msgspec.Struct, frozen=True, array_like=True):
    """A unit whose pieces are written: what resume needs to skip it and go on behind it."""

    unit: UnitId
    last: bool  # of its segment
    lines: int
    counts: Counts
    before: State
    after: State
    pieces: tuple[PieceRecord, ...]
    set_aside: tuple[AsideRecord, ...] = ()
    # Of a unit that is written before its place is known: what it adds to each stream. Rows and
    # lines of `before` and `after` are then counted in its segment.
    streams: tuple[StreamCounts, ...] = ()
    object: str = ""  # where a unit is that got its place after it was written


_encode_record = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(UnitRecord).decode
_is_plain = functools.lru_cache(is_plain_name)  # many records name the same few files
Record = TypeVar("Record")


def journal_header(fingerprint: str) -> bytes:
    return JOURNAL_MAGIC + fingerprint.encode() + b"\n"


def frame_record(record: UnitRecord) -> bytes:
    return framed(_encode_record(record))


def framed(body: bytes) -> bytes:
    return _FRAME.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body


def read_journal(store: Store, name: str, fingerprint: str) -> tuple[list[UnitRecord], int]:
    return read_log(store, name, fingerprint, unit_record)


def read_log(
    store: Store, name: str, fingerprint: str, decode: Callable[[bytes], Record]
) -> tuple[list[Record], int]:
    """The valid records and the length they take; whatever follows is torn and ignored."""
    try:
        content = read_small(store, name)
    except FileNotFoundError:
        return [], 0
    header = journal_header(fingerprint)
    if not content.startswith(header):
        return [], 0
    records: list[Record] = []
    length = len(header)
    for body, end in framed_records(content, length):
        try:
            records.append(decode(body))
        except msgspec.DecodeError:
            break
        length = end
    return records, length


def framed_records(content: bytes, position: int) -> Iterator[tuple[bytes, int]]:
    """Whole records from a position on, each with where it ends; a torn one ends it."""
    while position + _FRAME.size <= len(content):
        length, digest = _FRAME.unpack_from(content, position)
        start = position + _FRAME.size
        body = content[start : start + length]
        if len(body) < length or xxhash.xxh3_64_intdigest(body) != digest:
            return
        position = start + length
        yield body, position


def unit_record(body: bytes) -> UnitRecord:
    record = _decode_record(body)
    names = [piece.file for piece in record.pieces] + [record.object] * bool(record.object)
    if not all(map(_is_plain, names)):
        # The files would be read and written, and must never be outside the work folder.
        raise msgspec.ValidationError("names a file that is not in the work folder")
    return record
