"""The encoder that workers use: fast where that is exact, the reference elsewhere.

The choice is made document by document and never changes the ids, only the speed.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tokenmill.config import EncoderChoice
from tokenmill.encoders.cuts import cut_long, next_cut
from tokenmill.encoders.fast import U32, FastEncoder, FastEncoderMissingError
from tokenmill.encoders.gap_tables import Ranges
from tokenmill.encoders.reference import ReferenceEncoder, ReferenceEncoderError, join_ids
from tokenmill.encoders.unicode_gap import CONTEXTS, NORMALIZER_CONTEXTS, GapScanner, find_gap
from tokenmill.errors import EncoderError
from tokenmill.texts import I64, Texts, from_bytes
from tokenmill.tokenizer import Encoding

# A longer document goes to the fast encoder in pieces, where that is exact: its memory grows with
# the longest text it is given.
PIECE_BYTES = 4 << 20


class EncoderStats(msgspec.Struct):
    """What the encoder had to do besides the plain case; reported, never silent."""

    reference_documents: int = 0  # held a code point of the Unicode gap
    reference_failures: int = 0  # the reference could not, the fast one served
    checked_documents: int = 0
    checked_bytes: int = 0


class ExactEncoder:
    """`auto`: gigatoken where exact, the reference elsewhere. `reference`: that for all.

    `gigatoken`: never the reference, and so an error where only the reference is exact.
    """

    def __init__(self, encoding: Encoding, choice: EncoderChoice, gap: Ranges) -> None:
        self.encoding = encoding
        self.choice = choice
        self.stats = EncoderStats()
        self.use_gap(gap)
        self._reference: ReferenceEncoder | None = None
        self._fast: FastEncoder | None = None
        if choice != "reference":
            try:
                self._fast = FastEncoder(encoding)
            except FastEncoderMissingError:
                if choice == "gigatoken":
                    raise

    @property
    def is_fast(self) -> bool:
        return self._fast is not None

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
        ids, offsets = self._encode_fast(self._fast, texts)
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

    def _encode_fast(self, fast: FastEncoder, texts: Texts) -> tuple[U32, I64]:
        if not self.encoding.cuttable:
            return fast.encode(texts)
        pieces, bounds = cut_long(texts, PIECE_BYTES)
        ids, offsets = fast.encode(pieces)
        return (ids, offsets) if bounds is None else (ids, offsets[bounds])

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
        except ReferenceEncoderError as error:
            try:
                fast = self._fast or FastEncoder(self.encoding)
            except FastEncoderMissingError:
                raise error from None
            self.stats.reference_failures += 1
            return self._encode_fast(fast, from_bytes([document]))[0]

    def check(self, texts: Texts, ids: U32, offsets: I64, index: int, limit: int) -> int:
        """Encode one document again with the reference; fail loudly on a difference.

        Of one longer than `limit` its beginning, where it may be cut. Returns the bytes checked.
        """
        document, whole = texts.document(index), True
        if len(document) > limit and self.encoding.cuttable:
            cut = next_cut(document, limit, len(document))
            if cut >= 0:
                document, whole = document[:cut], False
        self.stats.checked_documents += 1
        self.stats.checked_bytes += len(document)
        try:
            expected = self.reference.encode_document(document)
        except ReferenceEncoderError:
            return len(document)
        found = ids[offsets[index] : offsets[index + 1]]
        if not np.array_equal(expected, found if whole else found[: len(expected)]):
            raise EncoderError(
                f"the fast encoder and the reference differ on a document that begins with "
                f"{document[:80].decode(errors='replace')!r}",
                hint="nothing wrong was written; run again with --encoder reference, and report "
                "this document",
            )
        return len(document)


def measure_gap(encoding: Encoding) -> Ranges:
    """Every code point on which gigatoken and the reference differ with this vocabulary."""
    fast, reference = FastEncoder(encoding), ReferenceEncoder(encoding)

    def encode_fast(texts: list[str]) -> list[list[int]]:
        ids, offsets = fast.encode(from_bytes([text.encode() for text in texts]))
        return [a.tolist() for a in np.split(ids, offsets[1:-1])]

    def encode_reference(texts: list[str]) -> list[list[int]]:
        return [reference.encode_document(text.encode()).tolist() for text in texts]

    contexts = CONTEXTS if encoding.kind == "tiktoken" else (*CONTEXTS, *NORMALIZER_CONTEXTS)
    return find_gap(encode_fast, encode_reference, contexts=contexts)  # type: ignore[arg-type]
