"""The encoders whose ids are right by definition, behind the same interface.

tiktoken for its encodings, `tokenizers` for a tokenizer.json, `sentencepiece` for its models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tokenmill.encoders.cuts import cut_long
from tokenmill.encoders.fast import U32
from tokenmill.errors import EncoderError, faults_become
from tokenmill.texts import I64, Texts, from_bytes
from tokenmill.tokenizer import Encoding
from tokenmill.vocabulary_files import (
    load_sentencepiece,
    load_tokenizers,
    ranks_of,
    read_vocabulary,
)

# A long document is encoded in pieces where that is exact: tokenizers takes some 200 bytes of
# memory for each byte of text, and tiktoken's time grows faster than the text.
PIECE_BYTES = 256 << 10


class ReferenceEncoderError(EncoderError):
    """The reference cannot encode this document at all (tiktoken panics on a million spaces)."""


class ReferenceEncoder:
    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._encode = {
            "tiktoken": _open_tiktoken,
            "tokenizer.json": _open_tokenizers,
            "sentencepiece": _open_sentencepiece,
        }[encoding.kind](encoding)

    def encode_document(self, document: bytes) -> U32:
        if self.encoding.cuttable and len(document) > PIECE_BYTES:
            pieces, _ = cut_long(from_bytes([document]), PIECE_BYTES)
            return np.concatenate(
                [self._encode_piece(pieces.document(i)) for i in range(pieces.documents)]
            )
        return self._encode_piece(document)

    def _encode_piece(self, piece: bytes) -> U32:
        text = piece.decode()
        with faults_become(
            lambda e: ReferenceEncoderError(f"the reference failed: {type(e).__name__}: {e}")
        ):
            return np.asarray(self._encode(text), np.uint32)

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        pieces = [self.encode_document(texts.document(i)) for i in range(texts.documents)]
        return join_ids(pieces)


Encode = Callable[[str], "Sequence[int] | U32"]


def _open_tiktoken(encoding: Encoding) -> Encode:
    from tiktoken import Encoding as TiktokenEncoding

    # No special tokens: whatever stands in a document is text (law 3).
    try:
        opened = TiktokenEncoding(
            encoding.name,
            pat_str=encoding.pattern,
            mergeable_ranks=ranks_of(encoding),
            special_tokens={},
        )
    except ValueError as error:  # a pattern of the user's own
        raise EncoderError(f"--pattern: not a regular expression for tiktoken: {error}") from None
    return lambda text: opened.encode_to_numpy(text, disallowed_special=())


def _open_tokenizers(encoding: Encoding) -> Encode:
    opened = load_tokenizers(read_vocabulary(encoding), encoding.path)

    def encode(text: str) -> Sequence[int]:
        ids: Sequence[int] = opened.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _open_sentencepiece(encoding: Encoding) -> Encode:
    opened = load_sentencepiece(read_vocabulary(encoding), encoding.path)

    def encode(text: str) -> Sequence[int]:
        ids: Sequence[int] = opened.encode(text, out_type=int)
        return ids

    return encode


def join_ids(pieces: list[U32]) -> tuple[U32, I64]:
    """Ids end to end and their offsets, from one array per document."""
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return (np.concatenate(pieces) if pieces else np.zeros(0, np.uint32)), offsets
