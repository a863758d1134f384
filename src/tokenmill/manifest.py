"""What is on disk about a dataset: the journal while it grows, the manifest when it is done.

Both are strict, versioned and self-checking. The manifest holds nothing of the run: no time,
host, worker count or absolute path; the same plan gives the same manifest, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from tokenmill.config import is_plain_name, is_plain_path
from tokenmill.errors import VerificationError
from tokenmill.formats import FORMATS
from tokenmill.pack import StreamState
from tokenmill.plan import UnitId
from tokenmill.steps import read_file

MANIFEST_VERSION = 2
NOT_DATA = ("manifest.json", "run.json", "index")  # never among a dataset's files
JOURNAL_MAGIC = b"tokenmill-journal-1\n"
_FRAME = struct.Struct("<IQ")  # length and xxh3 of a record


class Counts(msgspec.Struct, array_like=True):
    """rows = documents + dropped + quarantined, in every unit, source and dataset."""

    rows: int = 0
    documents: int = 0
    dropped: int = 0
    quarantined: int = 0
    empty: int = 0
    tokens: int = 0
    text_bytes: int = 0
    special_strings: int = 0
    too_short: int = 0  # of the dropped: under --min-tokens
    too_long: int = 0

    def add(self, other: Counts) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    @property
    def balanced(self) -> bool:
        return self.rows == self.documents + self.dropped + self.quarantined

    def to_dict(self) -> dict[str, int]:
        return {field: getattr(self, field) for field in self.__struct_fields__}


class State(msgspec.Struct, frozen=True, array_like=True):
    """Where the next unit goes: all prefix sums over the units before it."""

    streams: tuple[StreamState, ...]
    source: int = 0
    rows: int = 0  # of that source, before the unit
    lines: int = 0
    quarantine_bytes: int = 0

    def entering(self, unit: UnitId) -> State:
        """The state as seen by a unit: rows count anew in each source."""
        if unit.source == self.source:
            return self
        return msgspec.structs.replace(self, source=unit.source, rows=0, lines=0)


class PieceRecord(msgspec.Struct, frozen=True, array_like=True):
    file: str
    offset: int
    length: int
    digest: int


class AsideRecord(msgspec.Struct, frozen=True, array_like=True):
    """A row that was set aside because encoding it killed or hung its worker, again and again."""

    row: int  # of its source
    segment_row: int  # as the batches of its segment count
    reason: str


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


_encode_record = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(UnitRecord).decode


def journal_header(fingerprint: str) -> bytes:
    return JOURNAL_MAGIC + fingerprint.encode() + b"\n"


def frame_record(record: UnitRecord) -> bytes:
    return framed(_encode_record(record))


def framed(body: bytes) -> bytes:
    return _FRAME.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body


def read_journal(path: Path, fingerprint: str) -> tuple[list[UnitRecord], int]:
    """The valid records and the length they take; whatever follows is torn and ignored."""
    try:
        content = read_file(path)
    except FileNotFoundError:
        return [], 0
    header = journal_header(fingerprint)
    if not content.startswith(header):
        return [], 0
    records: list[UnitRecord] = []
    position = len(header)
    for record, end in _records(content, position):
        records.append(record)
        position = end
    return records, position


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


def _records(content: bytes, position: int) -> Iterator[tuple[UnitRecord, int]]:
    known: set[str] = set()
    for body, end in framed_records(content, position):
        try:
            record = _decode_record(body)
        except msgspec.DecodeError:
            return
        files = {piece.file for piece in record.pieces} - known
        if not all(map(is_plain_name, files)):  # it would be read and written: never outside
            return
        known |= files
        yield record, end


# --- the manifest ----------------------------------------------------------------------------


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the dataset. `checksum` is the xxh3 of its pieces' digests in order."""

    path: str
    kind: str  # tokens, sidecar, ends, runs, units, pieces, quarantine
    size: int
    checksum: str
    pieces: int
    format: str = ""  # whose file it is; '' where it is ours
    split: str = ""
    stream: str = ""
    first_token: int = 0  # where in its stream the file begins
    tokens: int = 0


class SplitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [first_token, first_token + tokens) of a stream, as one format has it."""

    name: str
    format: str
    stream: str
    first_token: int
    tokens: int
    documents: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    fingerprint: str
    plan: dict[str, Any]
    counts: dict[str, int]
    splits: list[SplitEntry]
    sources: list[dict[str, Any]]
    set_aside: list[dict[str, Any]]  # source, row, reason: what the bytes depend on but the plan
    files: list[FileEntry]
    checksum: str = ""

    def sealed(self) -> Manifest:
        return msgspec.structs.replace(self, checksum=self._digest())

    def _digest(self) -> str:
        blank = msgspec.structs.replace(self, checksum="")
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(blank, order="deterministic"))

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def decode(cls, content: bytes, where: str) -> Manifest:
        try:
            manifest = msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise VerificationError(f"{where}: not a manifest of ours: {error}") from None
        if manifest.version != MANIFEST_VERSION:
            raise VerificationError(
                f"{where}: version {manifest.version}; this tokenmill reads {MANIFEST_VERSION}"
            )
        manifest._check_names(where)
        # The bytes as well as the values: a flipped bit in white space is a change too.
        if manifest.checksum != manifest._digest() or manifest.encode() != content:
            raise VerificationError(f"{where}: damaged (its own checksum does not match)")
        return manifest

    def _check_names(self, where: str) -> None:
        """These are opened and removed: files of the folder and of those in it, and no others."""
        for path in [entry.path for entry in self.files]:
            if not _is_own(path):
                raise VerificationError(f"{where}: names a file that is not its own: {path!r}")
        for stream in {entry.stream for entry in self.splits}:
            if not is_plain_name(stream):
                raise VerificationError(f"{where}: names an index that is not its own: {stream!r}")

    @classmethod
    def load(cls, path: Path) -> Manifest:
        try:
            content = read_file(path)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise VerificationError(f"{path}: cannot be read: {error.strerror}") from None
        return cls.decode(content, str(path))


def _is_own(path: str) -> bool:
    """In the folder itself, its index, or the folders of formats and splits: see links.py."""
    *folders, _ = path.split("/")
    if folders[:1] == ["index"] and len(folders) == 1:
        return is_plain_path(path)
    if folders[:1] and folders[0] in FORMATS:
        folders = folders[1:]
    known = not folders or folders in (["train"], ["val"])
    return known and is_plain_path(path) and path not in NOT_DATA


def checksum_of_digests(digests: bytes) -> str:
    """A file's checksum: xxh3 of the little-endian 64-bit digests of its pieces, in order."""
    return xxhash.xxh3_128_hexdigest(digests)
