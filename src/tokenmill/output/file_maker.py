"""Files that are made after encoding: indexes, framed formats, formats of a second kind.

Each grows in the work folder in pieces whose checksums are taken from memory. A file that is
complete and synced is noted in a log with its pieces; after a crash, what the log notes is checked
and kept, and only the rest is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

import msgspec
import numpy as np
import xxhash

from tokenmill.formats.base import Buffers, Info, MadeFile
from tokenmill.output.files import AppendLog, OutputFiles, is_intact
from tokenmill.output.journal import framed, journal_header, read_log
from tokenmill.output.workspace import Workspace
from tokenmill.system.disk import Buffer
from tokenmill.system.store import has_file

PIECE_BYTES = 8 << 20
LOG = "made"
_decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[int, int]], Info]).decode


def made_file(working: str, pieces: Iterable[tuple[int, int]], info: Info) -> MadeFile:
    return MadeFile(working, np.array(list(pieces), "<u8").reshape(-1, 2), info)


def digested(content: Buffer) -> tuple[int, int]:
    """A piece as a `MadeFile` names it: length and digest."""
    return memoryview(content).nbytes, xxhash.xxh3_64_intdigest(content)


class FileMaker:
    """Makes files in the work folder, each once."""

    def __init__(
        self, workspace: Workspace, fingerprint: str, check_interrupt: Callable[[], None]
    ) -> None:
        self.files = OutputFiles(workspace)
        self.check_interrupt = check_interrupt
        self._header = journal_header(fingerprint)
        self._log: AppendLog | None = None
        known, self._length = read_log(
            self.files, LOG, fingerprint, lambda body: made_file(*_decode(body))
        )
        self.kept = {made.working: made for made in known}

    def make(self, working: str, buffers: Buffers) -> MadeFile:
        """A file of these buffers; what is left of an earlier attempt is kept if it is whole."""
        kept = self.kept.get(working)
        if kept is not None and self._is_whole(kept):
            return kept
        info: Info = {}

        def noted() -> Iterator[Buffer]:
            info.update((yield from cast("Generator[Any, None, Info | None]", buffers)) or {})

        pieces: list[tuple[int, int]] = []
        at = 0
        self.files.truncate(working, 0)
        for piece in _in_pieces(noted()):
            self.files.write_at(working, at, piece)
            pieces.append(digested(piece))
            at += len(piece)
            self.check_interrupt()
        made = made_file(working, pieces, info)
        self._note(made)
        return made

    def _note(self, made: MadeFile) -> None:
        self.files.sync(made.working)
        if self._log is None:
            self._log = AppendLog(self.files.within(""), LOG, self._length, self._header)
        self.files.sync_names("")
        record = made.working, made.pieces.tolist(), made.info
        self._log.append(framed(msgspec.msgpack.encode(record)))
        self.kept[made.working] = made

    def _is_whole(self, made: MadeFile) -> bool:
        at = 0
        if not has_file(self.files, made.working) or self.files.size(made.working) != made.size:
            return False
        for length, digest in made.pieces.tolist():
            if not is_intact(self.files, made.working, at, length, digest):
                return False
            at += length
            self.check_interrupt()
        return True

    def close(self) -> None:
        self.files.close()
        if self._log is not None:
            self._log.close()
            self._log = None


def _in_pieces(buffers: Iterator[Buffer]) -> Iterator[Buffer]:
    """The same bytes, PIECE_BYTES at a time."""
    waiting: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while len(view):
            part = view[: PIECE_BYTES - size]
            waiting.append(part)
            size, view = size + len(part), view[len(part) :]
            if size == PIECE_BYTES:
                yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
