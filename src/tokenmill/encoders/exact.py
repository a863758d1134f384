"""The encoder that workers use: fast where that is exact, the reference elsewhere.

The choice is made document by document and never changes the ids, only the speed.
"""

from __future__ import annotations

from importlib import metadata

import msgspec
import numpy as np

from tokenmill.config import EncoderChoice
from tokenmill.encoders.fast import U32, FastEncoder
from tokenmill.encoders.reference import ReferenceEncoder, ReferenceEncoderError, join_ids
from tokenmill.encoders.unicode_gap import GAP, MEASURED_FOR, GapScanner, Ranges, find_gap
from tokenmill.errors import EncoderError
from tokenmill.texts import I64, Texts, from_bytes
from tokenmill.tokenizer import Encoding, get_encoding


class EncoderStats(msgspec.Struct):
    """What the encoder had to do besides the plain case; reported, never silent."""

    reference_documents: int = 0  # held a code point of the Unicode gap
    reference_failures: int = 0  # the reference could not, the fast one served
    checked_documents: int = 0
    checked_bytes: int = 0


class ExactEncoder:
    """`auto`: gigatoken where exact, tiktoken otherwise. `reference`: tiktoken for all.

    `gigatoken`: never the reference, and so an error where only the reference is exact.
    """

    def __init__(self, encoding: Encoding, choice: EncoderChoice, gap: Ranges) -> None:
        self.encoding = encoding
        self.choice = choice
        self.stats = EncoderStats()
        self.use_gap(gap)
        self._reference: ReferenceEncoder | None = None
        self._fast: FastEncoder | None = None
        if choice == "gigatoken" or (choice == "auto" and encoding.gigatoken_scheme):
            self._fast = FastEncoder(encoding)

    def use_gap(self, gap: Ranges) -> None:
        self._scanner = GapScanner(gap)

    @property
    def reference(self) -> ReferenceEncoder:
        """Opened on first need: most workers never meet a document that wants it."""
        if self._reference is None:
            self._reference = ReferenceEncoder(self.encoding)
        return self._reference

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
        suspects = self._scanner.documents(texts)
        if not suspects:
            return ids, offsets
        if self.choice == "gigatoken":
            raise EncoderError(
                "a document holds characters newer than the reference encoder's Unicode tables, "
                "where gigatoken alone is not exact",
                hint="use --encoder auto: such documents then go to the reference encoder",
            )
        return self._replace(ids, offsets, texts, suspects)

    def _replace(
        self, ids: U32, offsets: I64, texts: Texts, suspects: list[int]
    ) -> tuple[U32, I64]:
        self.stats.reference_documents += len(suspects)
        pieces: list[U32] = []
        lengths = np.diff(offsets)
        done = 0
        for index in suspects:
            pieces.append(ids[offsets[done] : offsets[index]])
            exact = self._reference_ids(texts.document(index))
            lengths[index] = len(exact)
            pieces.append(exact)
            done = index + 1
        pieces.append(ids[offsets[done] :])
        return np.concatenate(pieces), np.concatenate(([0], np.cumsum(lengths)))

    def _reference_ids(self, document: bytes) -> U32:
        """The reference's ids, or the fast encoder's where the reference itself fails."""
        try:
            return self.reference.encode_document(document)
        except ReferenceEncoderError:
            if self.encoding.gigatoken_scheme is None:
                raise
            self.stats.reference_failures += 1
            fast = self._fast or FastEncoder(self.encoding)
            return fast.encode(from_bytes([document]))[0]

    def check(self, texts: Texts, ids: U32, offsets: I64, index: int) -> None:
        """Encode one document again with the reference; fail loudly on a difference."""
        document = texts.document(index)
        self.stats.checked_documents += 1
        self.stats.checked_bytes += len(document)
        try:
            expected = self.reference.encode_document(document)
        except ReferenceEncoderError:
            return
        if not np.array_equal(expected, ids[offsets[index] : offsets[index + 1]]):
            raise EncoderError(
                f"the fast encoder and the reference differ on a document that begins with "
                f"{document[:80].decode(errors='replace')!r}",
                hint="nothing wrong was written; run again with --encoder reference, and report "
                "this document",
            )


def gap_for_installed_versions(encoding_name: str) -> Ranges:
    """The shipped table for the versions it was made with; else computed, exactly."""
    installed = {name: metadata.version(name) for name in MEASURED_FOR}
    encoding = get_encoding(encoding_name)
    if installed == MEASURED_FOR or encoding.gigatoken_scheme is None:
        return GAP
    return measure_gap(encoding)


def measure_gap(encoding: Encoding) -> Ranges:
    fast, reference = FastEncoder(encoding), ReferenceEncoder(encoding)

    def encode_fast(texts: list[str]) -> list[list[int]]:
        ids, offsets = fast.encode(from_bytes([text.encode() for text in texts]))
        return [a.tolist() for a in np.split(ids, offsets[1:-1])]

    def encode_reference(texts: list[str]) -> list[list[int]]:
        return [reference.encode_document(text.encode()).tolist() for text in texts]

    return find_gap(encode_fast, encode_reference)  # type: ignore[arg-type]
