"""tiktoken behind the same interface: the encoder whose ids are right by definition."""

from __future__ import annotations

import numpy as np

from tokenmill.encoders.fast import U32
from tokenmill.errors import EncoderError
from tokenmill.texts import I64, Texts
from tokenmill.tokenizer import Encoding, bundled_ranks


class ReferenceEncoderError(EncoderError):
    """The reference cannot encode this document at all (it panics on a million spaces)."""


class ReferenceEncoder:
    def __init__(self, encoding: Encoding) -> None:
        from tiktoken import Encoding as TiktokenEncoding

        self.encoding = encoding
        # No special tokens: whatever stands in a document is text (law 3).
        self._tiktoken = TiktokenEncoding(
            encoding.name,
            pat_str=encoding.pattern,
            mergeable_ranks=bundled_ranks(encoding.name),
            special_tokens={},
        )

    def encode_document(self, document: bytes) -> U32:
        try:
            ids = self._tiktoken.encode_to_numpy(document.decode(), disallowed_special=())
        except (KeyboardInterrupt, SystemExit, MemoryError, UnicodeDecodeError):
            raise
        except BaseException as error:
            # A panic in tiktoken's Rust is a BaseException that `except Exception` lets through.
            raise ReferenceEncoderError(
                f"tiktoken failed: {type(error).__name__}: {error}"
            ) from None
        return np.asarray(ids, np.uint32)

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        pieces = [self.encode_document(texts.document(i)) for i in range(texts.documents)]
        return join_ids(pieces)


def join_ids(pieces: list[U32]) -> tuple[U32, I64]:
    """Ids end to end and their offsets, from one array per document."""
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return (np.concatenate(pieces) if pieces else np.zeros(0, np.uint32)), offsets
