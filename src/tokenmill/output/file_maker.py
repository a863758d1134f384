"""Files that are made after encoding: indexes, framed formats, formats of a second kind.

Each grows in the work folder in pieces whose checksums are taken from memory. A file that is
complete and synced is noted in a log with its pieces; after a crash, what the log notes is checked
and kept, and only the rest is made again. Parts of `finish` on several machines note their files in
a log that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import numpy as np
import xxhash

from tokenmill.errors import InputError
from tokenmill.formats.base import Buffers, Info, MadeFile
from tokenmill.output.files import GrowingLog, JobFiles, is_intact
from tokenmill.output.journal import framed, journal_header
from tokenmill.output.workspace import MADE_BY_PARTS, WorkArea
from tokenmill.system.disk import Buffer
from tokenmill.system.store import Store, has_file, read_range

PIECE_BYTES = 8 << 20
LOG = "files/made"
READERS = 8  # threads that compare files with what is noted of them
_decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[int, int]], Info]).decode


class FileTask(msgspec.Struct, frozen=True, array_like=True):
    """Make a file of the work folder, or bytes [start, stop) of it: small plain data."""

    working: str
    layout: int  # which of the plan's
    stream: int  # which of the job's
    split: str
    number: int
    of: int
    first_token: int
    tokens: int
    first_document: int
    documents: int
    start: int = 0
    stop: int = 0  # 0: all of the file
    kind: str = ""  # of a file of another order, see output/order/reordering.py; "": tokens

    @property
    def name(self) -> str:
        """What the log of made files calls it."""
        return f"{self.working}@{self.start}" if self.stop else self.working


class BufferSource:
    """Buffers that can be made again: a store begins an upload once more if it fails."""

    def __init__(self, make: Callable[[], Buffers]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def made_file(working: str, pieces: Iterable[tuple[int, int]], info: Info) -> MadeFile:
    return MadeFile(working, np.array(list(pieces), "<u8").reshape(-1, 2), info)


def noted_file(body: bytes) -> MadeFile:
    """A record of a log of made files."""
    return made_file(*_decode(body))


def digested(content: Buffer) -> tuple[int, int]:
    """A piece as a `MadeFile` names it: length and digest."""
    return memoryview(content).nbytes, xxhash.xxh3_64_intdigest(content)


def write_pieces(
    files: JobFiles,
    working: str,
    buffers: Buffers,
    on_piece: Callable[[int], None],
    *,
    start: int | None = None,
    size: int = 0,
) -> tuple[list[tuple[int, int]], Info]:
    """Write a file; its pieces, and what its format notes of it. Of a `BufferSource`, it is written
    again if an upload fails. With `start`: only these bytes of it, from there on. `size`: about how
    long it gets."""
    info: Info = {}

    def noted() -> Iterator[Buffer]:
        info.update((yield from cast("Generator[Any, None, Info | None]", buffers)) or {})

    def digested_pieces() -> Iterator[Buffer]:
        pieces.clear()
        for piece in _in_pieces(noted()):
            on_piece(len(piece))
            pieces.append(digested(piece))
            yield piece

    pieces: list[tuple[int, int]] = []
    if start is None:
        once = isinstance(buffers, Iterator)
        given = digested_pieces() if once else BufferSource(digested_pieces)
        files.write_file(working, given, size)
        return pieces, info
    for piece in digested_pieces():
        files.write_at(working, start, piece)
        start += len(piece)
    return pieces, info


class FileMaker:
    """Makes files in the work folder, each once."""

    def __init__(
        self,
        workspace: WorkArea,
        fingerprint: str,
        check_interrupt: Callable[[], None],
        log: str = LOG,
    ) -> None:
        """`log`: where files are noted that are made now. Those in either log are known."""
        self.workspace, self.files = workspace, workspace.open_files()
        self.check_interrupt = check_interrupt
        self.source: Store | None = None  # of what files are made; None: a worker opens it by name
        self._header, self._log_name = journal_header(fingerprint), log
        self._log: GrowingLog | None = None
        self._length = 0
        # In the order in which they were noted. Two machines may have noted the same file.
        self._noted: dict[str, list[MadeFile]] = {}
        for name in (LOG,) if workspace.has_places else (MADE_BY_PARTS, LOG):
            known, length = workspace.read_log(name, fingerprint, noted_file)
            self._length = length if name == log else self._length
            for made in known:
                self._noted.setdefault(made.working, []).append(made)
        self.kept: dict[str, MadeFile] = {}  # made, or found whole, by this run

    def make(self, working: str, buffers: Buffers) -> MadeFile:
        """A file of these buffers; what is left of an earlier attempt is kept if it is whole."""
        if self._is_whole(working):
            return self.kept[working]
        self.workspace.announce([working])
        pieces, info = write_pieces(self.files, working, buffers, lambda _: self.check_interrupt())
        made = made_file(working, pieces, info)
        self.files.sync(made.working)
        self.files.sync_names("")
        self._note(made)
        return made

    def put(self, working: str, content: bytes) -> MadeFile:
        """A file that is a single piece; made anew each time."""
        self.workspace.announce([working])
        self.files.write_file(working, [content])
        self.files.sync(working)
        return made_file(working, [digested(content)], {})

    # --- files that workers make ---------------------------------------------------------------

    def missing(self, parts: Iterable[FileTask]) -> list[FileTask]:
        """The parts that are to be made: all but those that are noted and whole."""
        parts = list(parts)

        def is_made(part: FileTask) -> bool:
            return self._is_whole(part.working) or self._is_whole(part.name, part)

        if self.workspace.has_places:
            made = list(map(is_made, parts))
        else:  # other machines may have made terabytes of them
            with ThreadPoolExecutor(READERS) as readers:
                made = list(readers.map(is_made, parts))
        return [part for part, whole in zip(parts, made, strict=True) if not whole]

    def note(self, part: FileTask, pieces: list[tuple[int, int]], info: Info) -> None:
        """A part is made and durable."""
        self._note(made_file(part.name, pieces, info))

    def joined(self, parts: Sequence[FileTask]) -> MadeFile | None:
        """The file that these parts are; None if one of them is not made."""
        working = parts[0].working
        if self._is_whole(working):
            return self.kept[working]
        if not all(self._is_whole(part.name, part) for part in parts):
            return None
        pieces = np.concatenate([self.kept[part.name].pieces for part in parts])
        made = MadeFile(working, pieces, {})
        if self.files.size(working) != made.size:  # what an earlier job left behind them
            self.files.truncate(working, made.size)
            self.files.sync(working)
        return made

    def _note(self, made: MadeFile) -> None:
        if self._log is None:
            self._log = self.workspace.open_log(self._log_name, self._length, self._header)
        record = made.working, made.pieces.tolist(), made.info
        self._log.append(framed(msgspec.msgpack.encode(record)))
        self.kept[made.working] = made

    def _is_whole(self, name: str, part: FileTask | None = None) -> bool:
        """Whether a file, or a part of one, is noted and still what it was."""
        if name in self.kept:
            return True
        for made in reversed(self._noted.get(name, [])):
            if self._is_same(made, part):
                self.kept[name] = made
                return True
        return False

    def _is_same(self, made: MadeFile, part: FileTask | None) -> bool:
        working, at = (made.working, 0) if part is None else (part.working, part.start)
        if not has_file(self.files, working):
            return False
        if (part is None or not part.stop) and self.files.size(working) != made.size:
            return False
        for length, digest in made.pieces.tolist():
            if not is_intact(self.files, working, at, length, digest):
                return False
            at += length
            self.check_interrupt()
        return True

    def close(self) -> None:
        self.files.close()
        if self._log is not None:
            self._log.close()
            self._log = None


def pieces_of(store: Store, name: str, size: int) -> Generator[bytes, None, None]:
    """The first `size` bytes of a file, as they are cut for checksums."""
    at = 0
    while at < size:
        content = read_range(store, name, at, min(PIECE_BYTES, size - at))
        if not content:
            raise InputError(f"{store.where(name)}: became shorter while it was read")
        yield content
        at += len(content)


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
