"""Files that are made after encoding: indexes, framed formats, formats of a second kind.

Each grows in the work folder in pieces whose checksums are taken from memory. A file that is
complete and synced is noted in a log with its pieces; after a crash, what the log notes is checked
and kept, and only the rest is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec
import numpy as np
import xxhash

from tokenmill.formats.base import Info
from tokenmill.manifest import (
    FileEntry,
    checksum_of_digests,
    framed,
    framed_records,
    journal_header,
)
from tokenmill.steps import read_file, read_piece, sync_directory
from tokenmill.storage import AppendLog, OutputFiles, Workspace

PIECE_BYTES = 8 << 20
LOG = "made"


class Made(msgspec.Struct, frozen=True, array_like=True):
    """A complete file in the work folder: length and digest of each piece, in order."""

    working: str
    pieces: list[tuple[int, int]]
    info: Info

    @property
    def size(self) -> int:
        return sum(length for length, _ in self.pieces)

    def table(self) -> bytes:
        return np.array(self.pieces, "<u8").tobytes()

    def entry(self, path: str, kind: str, **fields: Any) -> FileEntry:
        digests = np.array([digest for _, digest in self.pieces], "<u8").tobytes()
        return FileEntry(
            path=path,
            kind=kind,
            size=self.size,
            checksum=checksum_of_digests(digests),
            pieces=len(self.pieces),
            **fields,
        )


class Production:
    """Makes files in the work folder, each once."""

    def __init__(
        self,
        workspace: Workspace,
        files: OutputFiles,
        fingerprint: str,
        check_interrupt: Callable[[], None],
    ) -> None:
        self.workspace, self.files = workspace, files
        self.check_interrupt = check_interrupt
        self.kept: dict[str, Made] = {}
        self._header = journal_header(fingerprint)
        self._log: AppendLog | None = None
        self._length = self._recover()

    def _recover(self) -> int:
        try:
            content = read_file(self.workspace.files / LOG)
        except FileNotFoundError:
            return 0
        if not content.startswith(self._header):
            return 0
        length = len(self._header)
        for body, end in framed_records(content, length):
            try:
                made = msgspec.msgpack.decode(body, type=Made)
            except msgspec.DecodeError:
                break
            self.kept[made.working] = made
            length = end
        return length

    def make(self, working: str, buffers: Generator[Any, None, Info | None]) -> Made:
        """A file of these buffers; what is left of an earlier attempt is kept if it is whole."""
        kept = self.kept.get(working)
        if kept is not None and self._is_whole(kept):
            return kept
        pieces: list[tuple[int, int]] = []
        waiting: list[memoryview] = []
        size = at = 0
        self.files.truncate(working, 0)

        def flush() -> None:
            nonlocal at, size, waiting
            piece = waiting[0] if len(waiting) == 1 else memoryview(b"".join(waiting))
            if len(piece):
                self.files.write(working, at, piece)
                pieces.append((len(piece), xxhash.xxh3_64_intdigest(piece)))
            at, size, waiting = at + len(piece), 0, []
            self.check_interrupt()

        info: Info | None = None
        while True:
            try:
                buffer = next(buffers)
            except StopIteration as stop:
                info = stop.value
                break
            view = memoryview(buffer).cast("B")
            while len(view):
                part = view[: PIECE_BYTES - size]
                waiting.append(part)
                size, view = size + len(part), view[len(part) :]
                if size == PIECE_BYTES:
                    flush()
        if waiting:
            flush()
        made = Made(working, pieces, info or {})
        self._note(made)
        return made

    def _note(self, made: Made) -> None:
        self.files.sync(made.working)
        if self._log is None:
            self._log = AppendLog(self.workspace.files / LOG, self._length, self._header)
        sync_directory(self.workspace.files)
        self._log.append(framed(msgspec.msgpack.encode(made)))
        self.kept[made.working] = made

    def _is_whole(self, made: Made) -> bool:
        path, at = self.workspace.files / made.working, 0
        try:
            if path.stat().st_size != made.size:
                return False
            for length, digest in made.pieces:
                content = read_piece(path, at, length)
                if len(content) != length or xxhash.xxh3_64_intdigest(content) != digest:
                    return False
                at += length
                self.check_interrupt()
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
