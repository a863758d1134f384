"""gigatoken behind our interface: flat bytes in, flat ids out, on the calling thread."""

from __future__ import annotations

import binascii
import ctypes
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.encoders.arrays import encode_flat, settle
from tokenmill.errors import EncoderError, faults_become, first_line
from tokenmill.texts import I64, Texts
from tokenmill.tokenizer import Encoding
from tokenmill.vocabulary_files import parse_ranks, read_vocabulary, without_special

U32 = npt.NDArray[np.uint32]


class FastEncoderMissingError(EncoderError):
    """gigatoken cannot load this vocabulary: WordPiece, Unigram, user-defined symbols."""


class FastEncoder:
    """Exact up to the Unicode gap; `exact.py` takes care of that.

    It is loaded without special tokens, else it would turn '<|endoftext|>' in a document into the
    separator's id. Its cache of words grows without limit (98 million words: 7 GB), so `reopen`
    throws it away when the worker's share of the memory is used.
    """

    def __init__(self, encoding: Encoding) -> None:
        if encoding.gigatoken_scheme is None:
            raise FastEncoderMissingError(
                f"gigatoken cannot load {encoding.name}",
                hint="use --encoder auto or --encoder reference",
            )
        self.encoding = encoding
        self._backend: Any = None
        self.reopen()

    def reopen(self) -> None:
        self._backend = None
        _trim_heap()
        content = read_vocabulary(self.encoding)
        with faults_become(self._missing):
            self._backend = _load(self.encoding, content)
        settle(self._backend)

    def _missing(self, error: BaseException) -> FastEncoderMissingError:
        return FastEncoderMissingError(
            f"gigatoken cannot load {self.encoding.name}: {first_line(error)}",
            hint="use --encoder auto or --encoder reference",
        )

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        """Ids of all documents end to end, and the offsets at which each begins and ends."""
        if texts.documents == 0 or texts.size == 0:
            return np.zeros(0, np.uint32), np.zeros(texts.documents + 1, np.int64)
        return encode_flat(self._backend, texts)


def _load(encoding: Encoding, content: bytes) -> Any:
    from gigatoken import Tokenizer

    if encoding.kind == "tokenizer.json":
        return Tokenizer.from_json(without_special(content)).backend
    if encoding.kind == "sentencepiece":
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

        converted = sentencepiece_to_tokenizer_json(content)
        as_json = without_special(converted if isinstance(converted, bytes) else converted.encode())
        if json.loads(as_json)["added_tokens"]:
            raise ValueError("user-defined symbols, around which it puts spaces of its own")
        return Tokenizer.from_json(as_json).backend
    with _RanksFile(fill_holes(content)) as path:
        return Tokenizer.from_tiktoken(
            path, pretokenizer=encoding.gigatoken_scheme, special_tokens={}
        ).backend


def fill_holes(content: bytes) -> bytes:
    """Ranks without a gap, which gigatoken needs (p50k leaves one out): the gaps get tokens of two
    bytes that no UTF-8 text holds, so that they are never used."""
    last = content.rstrip().rpartition(b" ")[2]
    if content.count(b"\n") == int(last) + 1:
        return content
    ranks = parse_ranks(content, Path("the vocabulary"))
    tokens = {rank: token for token, rank in ranks.items()}
    fillers = (
        bytes((lead, other)) for lead in range(255, 247, -1) for other in range(255, 127, -1)
    )
    unused = (token for token in fillers if token not in ranks)
    lines = []
    for rank in range(max(tokens) + 1):
        token = tokens[rank] if rank in tokens else next(unused)
        lines.append(b"%b %d\n" % (binascii.b2a_base64(token, newline=False), rank))
    return b"".join(lines)


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
