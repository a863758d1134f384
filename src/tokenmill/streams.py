"""The bytes of a file, decompressed where it is compressed, and never cut short in silence."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from typing import Any


def open_stream(path: str, compression: str) -> Any:
    """The decompressed bytes of a file, several members or frames included."""
    if compression == "gz":
        return gzip.open(path, "rb")
    if compression == "bz2":
        return io.BufferedReader(_Streams(path, bz2.BZ2Decompressor, padding=0), 1 << 20)
    if compression == "xz":
        return io.BufferedReader(_Streams(path, lzma.LZMADecompressor, padding=4), 1 << 20)
    if compression == "zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(pyarrow.OSFile(path), "zstd")
        return io.BufferedReader(stream, 1 << 20)
    return open(path, "rb")


class _Streams(io.RawIOBase):
    """One or more bz2 or xz streams end to end, and nothing else.

    The standard library's own readers take whatever follows a stream and does not begin like one
    for garbage and end there in silence: a flipped bit in a magic number would lose the rest of
    the file. Between xz streams zeros in fours are padding.
    """

    def __init__(self, path: str, make: Callable[[], Any], padding: int) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - closed with this object
        self._make, self._padding = make, padding
        self._decompressor = make()
        self._begun = False

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
        rest = self._decompressor.unused_data
        zeros = 0
        while True:
            if not rest:
                rest = self._file.read(1 << 20)
            if not rest:
                break
            kept = rest.lstrip(b"\0") if self._padding else rest
            zeros += len(rest) - len(kept)
            rest = kept
            if rest:
                break
        if zeros and zeros % self._padding:
            raise OSError("padding of a wrong length after a compressed stream")
        if not rest:
            return False
        self._decompressor = self._make()
        self._file.seek(-len(rest), os.SEEK_CUR)
        return True
