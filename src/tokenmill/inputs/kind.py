"""What an input kind says about its files. `kinds.py` is the table of all kinds."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import MappingProxyType
from typing import IO, NamedTuple

from tokenmill.errors import InputError, SourceError
from tokenmill.inputs.batch import BadRow, Batch, FatalRows, SignOfLife, nobody_watches
from tokenmill.inputs.readers.decompress import expansion
from tokenmill.inputs.segments import Segment, byte_segments
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading
from tokenmill.system.memory import NO_LIMIT, MemoryShare

# How files begin that are not text. A text file that begins so has the wrong extension.
SIGNATURES = {
    "gz": b"\x1f\x8b",
    "zst": b"\x28\xb5\x2f\xfd",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "parquet": b"PAR1",
    "arrow": b"ARROW1",
}


class FileFacts(NamedTuple):
    """What the check of a file has found out about it."""

    rows: int = -1  # -1: only reading tells
    chained: bool = False  # its segments must be read in order


class ReadRequest(NamedTuple):
    """A segment to be read."""

    source: Source
    segment: Segment
    reading: Reading
    aside: FatalRows = MappingProxyType({})  # rows that end their worker, and the reason
    alive: SignOfLife = nobody_watches  # to be called now and then while nothing is yielded
    room: MemoryShare = NO_LIMIT  # memory for what must be held whole
    ranges: bool = False  # what cannot be read is a range of bad rows, where rows are known


class InputKind(ABC):
    """A kind of input file. The base is one of lines or text, cut at any byte."""

    name: str
    title: str  # in messages, such as "JSON lines"
    extensions: tuple[str, ...]
    typical: tuple[float, float]  # bytes of text and GPT-2 tokens for each byte of a file
    may_be_compressed = True  # as a whole: .gz, .zst, .bz2, .xz
    may_be_empty = False
    has_separators = False  # between documents, given by --text-separator
    cuts_documents = False  # its reader itself cuts long documents
    quarantines_fatal = False  # its reader itself takes out the rows in `aside`: it knows lines
    numbers_rows = False  # a segment's rows count from the first of the file, not of the segment
    holds_ids = False  # its documents are ids already, as bytes of uint32: nothing is encoded
    sequential = False  # only reading all that comes before tells where a row begins
    parts = "bytes"  # what the start and the stop of a segment count

    def __init_subclass__(cls) -> None:
        if not isinstance(getattr(cls, "extensions", ()), tuple):
            raise TypeError(f"{cls.__name__}.extensions must be a tuple of strings")

    def check_head(self, path: str, size: int, head: bytes, file: IO[bytes]) -> None:
        """Refuse a file that does not begin, or end, like one of this kind."""
        for name, signature in SIGNATURES.items():
            if head.startswith(signature):
                raise InputError(
                    f"{path}: looks like {name}, not like {self.title}",
                    hint=f"give it its right extension (.{name})",
                )

    def check(self, path: str, mtime_ns: int, compression: str, text_column: str) -> FileFacts:
        """Refuse a file without the text column; what else the file tells without being read."""
        return FileFacts()

    def check_columns(
        self, path: str, mtime_ns: int, compression: str, names: tuple[str, ...]
    ) -> FileFacts:
        """The same where a template or a filter reads several columns."""
        raise InputError(
            f"{path}: {self.title} has no columns to read by --text or --where",
            hint="give such files to another run",
        )

    def settled(self, path: str, compression: str) -> InputKind:
        """The kind, where only the file's beginning tells which of two it is."""
        return self

    def segments(self, source: Source, reading: Reading) -> Iterator[Segment]:
        """Cut a file, from its bytes and from constants alone."""
        return byte_segments(source)

    @abstractmethod
    def read(self, request: ReadRequest) -> Iterator[Batch]:
        """The documents of a segment in order."""

    def input_bytes(
        self, source: Source, segment: Segment, batch: Batch, reading: Reading
    ) -> float:
        """How many bytes of the file on disk a batch of a segment comes from."""
        read = float(batch.texts.size)
        if len(batch.positions) > 1:  # from the first line to the last, the last as an average
            read = int(batch.positions[-1] - batch.positions[0]) * len(batch.positions)
            read /= len(batch.positions) - 1
        if source.compression:
            read /= expansion(source.path, source.compression)
        return max(1.0, min(read, float(segment.size)))

    def refuse_changed(self, source: Source) -> None:
        """A file that is not what it was when planned: its rows would be neither old nor new."""
        try:
            stat = os.stat(source.path)
        except OSError as error:
            raise SourceError(f"{source.name}: cannot be read any more: {error.strerror}") from None
        if (stat.st_size, stat.st_mtime_ns) != (source.size, source.mtime_ns):
            raise SourceError(
                f"{source.name}: changed while it was being read (its size or its time)",
                hint="start again with the file as it should be",
            )

    @abstractmethod
    def place(self, source: Source, segment: Segment, bad: BadRow, reading: Reading) -> str:
        """Where in the file a row is, also when its segment begins in the middle of the file."""
