"""The encoders whose ids are right by definition.

tiktoken for its encodings, `tokenizers` for a tokenizer.json, `sentencepiece` for its models.
"""

from __future__ import annotations

import numpy as np

from tokenmill.errors import EncoderError, faults_become
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.cuts import cut_long
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokenizer.families import family_of

# A long document is encoded in pieces where that is exact: tokenizers takes some 200 bytes of
# memory for each byte of text, and tiktoken's time grows faster than the text.
REFERENCE_PIECE_BYTES = 256 << 10


class ReferenceEncoderError(EncoderError):
    """The reference cannot encode this document at all (tiktoken panics on a million spaces)."""


class ReferenceEncoder:
    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._encode = family_of(encoding).open_reference(encoding)

    def encode_document(self, document: bytes) -> U32:
        if self.encoding.cuttable and len(document) > REFERENCE_PIECE_BYTES:
            pieces, _ = cut_long(from_bytes([document]), REFERENCE_PIECE_BYTES)
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
