"""The encoder that workers use: fast where that is exact, the reference elsewhere.

The choice is made document by document and never changes the ids, only the speed.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from tokenmill.errors import EncoderError
from tokenmill.settings import EncoderChoice
from tokenmill.texts import I64, Texts, from_bytes
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.cuts import next_cut
from tokenmill.tokenizer.encoders.fast import (
    U32,
    FastEncoder,
    FastEncoderMissingError,
    fast_verdict,
    join_ids,
)
from tokenmill.tokenizer.encoders.reference import ReferenceEncoder, ReferenceEncoderError


class EncoderStats(msgspec.Struct):
    """What the encoder had to do besides the plain case; reported, never silent."""

    reference_documents: int = 0  # newer characters, or tokens that the file adds
    reference_failures: int = 0  # the reference could not, the fast one served
    checked_documents: int = 0
    checked_bytes: int = 0


class ExactEncoder:
    """`auto`: gigatoken where exact, the reference elsewhere. `reference`: that for all.

    `gigatoken`: never the reference, and so an error where only the reference is exact.
    """

    def __init__(self, encoding: Encoding, choice: EncoderChoice) -> None:
        self.encoding = encoding
        self.choice = choice
        self.stats = EncoderStats()
        self.by_reference: list[int] = []  # documents of the last batch: they need no check
        self._fast: FastEncoder | None = None
        if choice == "gigatoken" or (choice == "auto" and fast_verdict(encoding).rules):
            self._fast = FastEncoder(encoding)

    @property
    def is_fast(self) -> bool:
        return self._fast is not None

    @cached_property
    def reference(self) -> ReferenceEncoder:
        """Opened on first need: most workers never meet a document that wants it."""
        return ReferenceEncoder(self.encoding)

    def reopen(self) -> None:
        """Drop the fast encoder's cache of words."""
        if self._fast is not None:
            self._fast.reopen()

    def encode(self, texts: Texts) -> tuple[U32, I64]:
        if self._fast is None:
            return join_ids(
                [self._reference_ids(texts.document(i)) for i in range(texts.documents)]
            )
        ids, offsets = self._fast.encode(texts)
        suspects = self.by_reference = self._fast.screen.suspects(texts)
        if not suspects:
            return ids, offsets
        if self.choice == "gigatoken":
            raise EncoderError(
                "a document holds characters newer than the reference encoder's Unicode tables, or "
                "a token that the file adds, where gigatoken alone is not exact",
                hint="use --encoder auto: such documents then go to the reference encoder",
            )
        self.stats.reference_documents += len(suspects)
        exact = [self._reference_ids(texts.document(index)) for index in suspects]
        pieces = np.split(ids, offsets[np.add.outer(suspects, [0, 1]).ravel()])
        pieces[1::2] = exact
        lengths = np.diff(offsets)
        lengths[suspects] = list(map(len, exact))
        return np.concatenate(pieces), np.concatenate(([0], np.cumsum(lengths)))

    def _reference_ids(self, document: bytes) -> U32:
        """The reference's ids, or the fast encoder's where the reference itself fails."""
        try:
            return self.reference.encode_document(document)
        except ReferenceEncoderError as error:
            try:
                fast = self._fast or FastEncoder(self.encoding)
            except FastEncoderMissingError:
                raise error from None
            self.stats.reference_failures += 1
            return fast.encode(from_bytes([document]))[0]

    def check(
        self, texts: Texts, ids: U32, offsets: I64, index: int, limit: int, tail: bool = False
    ) -> int:
        """Encode one document again with the reference; fail loudly on a difference.

        Of one longer than `limit` its beginning, or its end if `tail`, where it may be cut.
        Returns the bytes checked.
        """
        document, whole = texts.document(index), True
        if len(document) > limit and self.encoding.cuttable:
            cut = next_cut(document, len(document) - limit if tail else limit, len(document))
            if cut >= 0:
                document, whole = document[cut:] if tail else document[:cut], False
        try:
            expected = self.reference.encode_document(document)
        except ReferenceEncoderError:
            self.stats.reference_failures += 1
            return len(document)
        self.stats.checked_documents += 1
        self.stats.checked_bytes += len(document)
        found = ids[offsets[index] : offsets[index + 1]]
        if not whole:
            found = found[max(0, len(found) - len(expected)) :] if tail else found[: len(expected)]
        if not np.array_equal(expected, found):
            raise EncoderError(
                f"the fast encoder and the reference differ on a document that begins with "
                f"{document[:80].decode(errors='replace')!r}",
                hint="nothing wrong was written; run again with --encoder reference, and report "
                "this document",
            )
        return len(document)
