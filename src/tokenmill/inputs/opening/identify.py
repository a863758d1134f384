"""One input file: is it what its name says, and what binds a plan to its content?

Whatever cannot be read as what it claims to be is an error here, not after an hour.
"""

from __future__ import annotations

import os
from stat import S_ISREG
from typing import IO

import msgspec
import xxhash

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.input_rules import InputRules
from tokenmill.inputs.kind import SIGNATURES, InputKind
from tokenmill.inputs.kinds import kind_named, kind_of_path, reading_for
from tokenmill.inputs.rows.row_rule import columns_needed
from tokenmill.inputs.source import SAMPLED, Source
from tokenmill.settings import Reading

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

# Files up to this size are hashed whole; of larger ones as much, in blocks spread evenly.
FINGERPRINT_BYTES = 16 << 20
FINGERPRINT_BLOCK = 64 << 10


class InputFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that was found, and what the options say about it."""

    number: int
    path: str
    name: str
    as_kind: str
    text_column: str  # its own, or ''
    columns: tuple[str, ...]  # that it must have; of one: the text
    needed: bool  # these are for a template or a filter

    @classmethod
    def by(
        cls, rules: InputRules, number: int, path: str, name: str, text_column: str
    ) -> InputFile:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InputError(f"{path!r}: a file name that is not UTF-8", hint="rename it") from None
        own = rules.column_for(path)
        names = rules.needed or (text_column,)
        if own:
            names = tuple(own if name == text_column else name for name in names)
        return cls(number, path, name, rules.kind_for(path), own, names, bool(rules.needed))


def at_hand(source: Source, path: str, reading: Reading) -> Source:
    """A source that is downloaded now: checked as any other file."""
    needed = columns_needed(reading_for(source, reading))
    columns = needed or (source.text_column or reading.text_column,)
    file = InputFile(
        source.number, path, source.name, source.as_kind, source.text_column, columns, bool(needed)
    )
    try:
        return identify(file, source)
    except InputError as error:  # the user knows the file by its URL
        raise error.located(source.name, instead_of=path) from None


def identify(file: InputFile, listed: Source | None = None) -> Source:
    """`listed`: what was known before the download; its fingerprint has been compared."""
    path = file.path
    if listed is None:
        kind, compression = kind_of_path(path, file.as_kind)
    else:
        kind, compression = kind_named(listed.kind), listed.compression
    try:
        stat = os.stat(path)
        if not S_ISREG(stat.st_mode):
            raise InputError(f"{path}: not a regular file")
        with open(path, "rb") as content:
            _check_magic(path, kind, compression, stat.st_size, content)
            fingerprint = listed.fingerprint if listed else _fingerprint(content, stat.st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not file.as_kind:
        kind = kind.settled(path, compression)
    try:
        look = path, stat.st_mtime_ns, compression
        if file.needed:
            facts = kind.check_columns(*look, file.columns)
        else:
            facts = kind.check(*look, file.columns[0])
    except SourceError as error:  # nothing has been read yet: the input itself is wrong
        raise InputError(error.message, hint=error.hint) from None
    return Source(
        number=file.number,
        name=file.name,
        path=path,
        kind=kind.name,
        compression=compression,
        size=stat.st_size,
        fingerprint=fingerprint,
        mtime_ns=stat.st_mtime_ns,
        ctime_ns=stat.st_ctime_ns,
        inode=stat.st_ino,
        rows=facts.rows,
        chained=facts.chained,
        as_kind=file.as_kind,
        text_column=file.text_column,
        split=listed.split if listed else "",
        twin=listed.twin if listed else 0,
    )


def _check_magic(path: str, kind: InputKind, compression: str, size: int, file: IO[bytes]) -> None:
    if size == 0 and (compression or not kind.may_be_empty):
        raise InputError(f"{path}: the file is empty", hint="remove it, or download it again")
    head = file.read(max(len(LFS_POINTER), 8))
    if head.startswith(LFS_POINTER):
        raise InputError(
            f"{path}: a git-LFS pointer, not the file itself",
            hint="run `git lfs pull` in that repository, or download the file",
        )
    if not compression:
        kind.check_head(path, size, head, file)
    elif not head.startswith(SIGNATURES[compression]) and not _skippable_frame(head, compression):
        raise InputError(
            f"{path}: does not begin like a .{compression} file",
            hint="give it the extension of what it is, or download it again",
        )


def _skippable_frame(head: bytes, compression: str) -> bool:
    """A zstd file may begin with a skippable frame (pzstd writes one)."""
    return compression == "zst" and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F


def _fingerprint(file: IO[bytes], size: int) -> str:
    """xxh3 over the content: all of it, or 256 blocks spread evenly with both ends."""
    digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
    if size <= FINGERPRINT_BYTES:
        file.seek(0)
        digest.update(file.read())
        return "xxh3:" + digest.hexdigest()
    blocks = FINGERPRINT_BYTES // FINGERPRINT_BLOCK
    for i in range(blocks):
        file.seek((size - FINGERPRINT_BLOCK) * i // (blocks - 1))
        digest.update(file.read(FINGERPRINT_BLOCK))
    return SAMPLED + digest.hexdigest()
