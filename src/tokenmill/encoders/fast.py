"""gigatoken behind our interface: flat bytes in, flat ids out, on the calling thread."""

from __future__ import annotations

import ctypes
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.encoders.arrays import encode_flat, settle
from tokenmill.errors import EncoderError
from tokenmill.texts import I64, Texts
from tokenmill.tokenizer import Encoding, bundled_ranks_file

U32 = npt.NDArray[np.uint32]


class FastEncoder:
    """Exact up to the Unicode gap; `exact.py` takes care of that.

    It is loaded with no special tokens, else it would turn '<|endoftext|>' in a document into the
    separator's id. Its cache of words grows without limit (98 million words: 7 GB), so `reopen`
    throws it away when the worker's share of the memory is used.
    """

    def __init__(self, encoding: Encoding) -> None:
        if encoding.gigatoken_scheme is None:
            raise EncoderError(
                f"gigatoken cannot load {encoding.name} (there is a hole in its ranks)",
                hint="use --encoder auto or --encoder reference",
            )
        self.encoding = encoding
        self._backend: Any = None
        self.reopen()

    def reopen(self) -> None:
        from gigatoken import Tokenizer

        self._backend = None
        _trim_heap()
        with _RanksFile(bundled_ranks_file(self.encoding.name)) as path:
            self._backend = Tokenizer.from_tiktoken(
                path, pretokenizer=self.encoding.gigatoken_scheme, special_tokens={}
            ).backend
        settle(self._backend)

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        """Ids of all documents end to end, and the offsets at which each begins and ends."""
        if texts.documents == 0 or texts.size == 0:
            return np.zeros(0, np.uint32), np.zeros(texts.documents + 1, np.int64)
        return encode_flat(self._backend, texts)


class _RanksFile:
    """gigatoken reads ranks from a path only; this is one that never reaches a disk on Linux."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.file: Any = None

    def __enter__(self) -> str:
        if hasattr(os, "memfd_create"):
            self.file = os.fdopen(os.memfd_create("tokenmill-ranks", os.MFD_CLOEXEC), "wb")
            self.file.write(self.content)
            self.file.flush()
            return f"/proc/self/fd/{self.file.fileno()}"
        self.file = tempfile.NamedTemporaryFile(suffix=".tiktoken")
        self.file.write(self.content)
        self.file.flush()
        return str(self.file.name)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _trim_heap() -> None:
    """Give freed memory back to the system; without it a dropped cache stays in the process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
