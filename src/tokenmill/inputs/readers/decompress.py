"""The bytes of a file, decompressed where it is compressed, and never cut short in silence."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from tokenmill.inputs.batch import SignOfLife
from tokenmill.inputs.readers.separators import BLOCK_BYTES
from tokenmill.inputs.source import Source

EXPANSION_BYTES = 1 << 20  # of a compressed file, to see how far it expands
# What reading raises where a file is damaged or cut short.
READ_FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)
UNKNOWN_ROWS = "; how many rows are lost is not known, so they cannot be quarantined"
DAMAGED_HINT = "the file is damaged or cut short: download it again and compare its size"


def read_exactly(fd: int, start: int, stop: int) -> bytes:
    """[start, stop) of an open file, in several calls where the system reads less at once."""
    pieces = []
    while start < stop:
        piece = os.pread(fd, stop - start, start)
        if not piece:
            raise OSError(f"the file ends at byte {start}")
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def open_stream(source: str | io.BytesIO, compression: str) -> Any:
    """The decompressed bytes of a file, several members or frames included."""
    if compression == "gz":
        return gzip.open(source, "rb")
    if compression == "bz2":
        return io.BufferedReader(_Streams(source, bz2.BZ2Decompressor, padded=False), 1 << 20)
    if compression == "xz":
        return io.BufferedReader(_Streams(source, lzma.LZMADecompressor, padded=True), 1 << 20)
    if compression == "zst":
        import pyarrow

        file = pyarrow.OSFile(source) if isinstance(source, str) else source
        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), 1 << 20)
    return _opened(source)


def _opened(source: str | io.BytesIO) -> IO[bytes]:
    return open(source, "rb") if isinstance(source, str) else source


class _Streams(io.RawIOBase):
    """One or more bz2 or xz streams end to end, and nothing else.

    The standard library's own readers take whatever follows a stream and does not begin like one
    for garbage and end there in silence: a flipped bit in a magic number would lose the rest of
    the file. Between xz streams zeros in fours are padding.
    """

    def __init__(self, source: str | io.BytesIO, make: Callable[[], Any], padded: bool) -> None:
        self._file = _opened(source)
        self._make, self._padded = make, padded
        self._decompressor = make()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decompressor.eof and not self._next_stream():
                return 0
            data = b""
            if self._decompressor.needs_input:
                data = self._file.read(1 << 20)
                if not data:
                    raise EOFError("the file ends in the middle of a compressed stream")
            content = self._decompressor.decompress(data, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)

    def _next_stream(self) -> bool:
        """Begin the stream that follows; False at the end of the file."""
        self._file.seek(-len(self._decompressor.unused_data), os.SEEK_CUR)
        head = self._file.read(4)
        while self._padded and head == bytes(4):
            head = self._file.read(4)
        if self._padded and head.startswith(b"\0"):
            raise OSError("padding of a wrong length after a compressed stream")
        self._file.seek(-len(head), os.SEEK_CUR)
        if head:
            self._decompressor = self._make()
        return bool(head)


def expansion(path: str, compression: str) -> float:
    """Bytes out for each byte in, of the beginning of a compressed file."""
    with open(path, "rb") as file:
        head = file.read(EXPANSION_BYTES)
    size = 0
    # The head ends in the middle of a stream; of a damaged file the run will say more.
    with contextlib.suppress(*READ_FAULTS), open_stream(io.BytesIO(head), compression) as stream:
        while piece := stream.read1(1 << 20):
            size += len(piece)
    return max(1e-3, size / len(head)) if size else 1.0


def decompressed_range(source: Source, start: int, stop: int, alive: SignOfLife) -> Iterator[bytes]:
    """[start, stop) of a compressed file's text."""
    at = 0
    with open_stream(source.path, source.compression) as stream:
        while at < stop:
            alive()
            block = stream.read(BLOCK_BYTES)
            if not block:
                raise EOFError("it is shorter than it was")
            yield block[max(0, start - at) : stop - at]
            at += len(block)
