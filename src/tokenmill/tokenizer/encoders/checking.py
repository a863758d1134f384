"""Which documents are encoded again by the reference: none, a sample, or all of them.

A sample costs one byte in `CHECK_SHARE`. It takes odd documents first (`odd.py`), of the kind that
was checked least, and then any document from a place on that a hash gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain

from tokenmill.settings import EncoderCheck
from tokenmill.texts import I64, Texts
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokenizer.encoders.odd import (
    DOCUMENT_BYTES,
    ODD_KINDS,
    SCRIPT,
    WHITE_SPACE,
    OddDocuments,
)
from tokenmill.tokenizer.families import family_of

CHECK_SHARE = 2048  # one byte in so many is encoded again by the reference: under 1 % of the time
CHECK_BYTES = 16 << 10  # the most that is saved up
# One byte in so many is looked at for oddities, and all of the first megabyte.
LOOK_SHARE = 128
LOOK_BYTES = 1 << 20
# A longer document is not part of a sample: the reference might need too much memory for it.
MAX_BYTES = 4 << 20
# Of so many checks one takes any document: a corpus may be odd in one way from end to end.
ANY_EVERY = 4
OTHER = "other"
WHOLE = 1 << 62


class Checker:
    """Checks what one encoder made, batch by batch."""

    def __init__(self, encoder: ExactEncoder, how: EncoderCheck) -> None:
        self.encoder = encoder
        self.how = how
        # Checked documents by what was odd about them. Each is counted once.
        self.counts = dict.fromkeys((*ODD_KINDS, OTHER), 0)
        # Both in bytes of text that was encoded, so that small batches count too.
        self._credit = CHECK_BYTES * CHECK_SHARE
        self._look_credit = LOOK_BYTES * LOOK_SHARE
        self._chosen = 0

    def check(self, texts: Texts, ids: U32, offsets: I64, place: int) -> None:
        """Check as many documents of a batch as are due; `place` says where a sample begins."""
        if self.how == "all":
            self.check_all(texts, ids, offsets)
        elif self.how == "sample" and self.encoder.is_fast:
            self._credit = min(CHECK_BYTES * CHECK_SHARE, self._credit + texts.size)
            self._look_credit = min(LOOK_BYTES * LOOK_SHARE, self._look_credit + texts.size)
            if self._credit > 0 and texts.size:
                self._sample(texts, ids, offsets, place % texts.documents)

    def check_all(self, texts: Texts, ids: U32, offsets: I64) -> None:
        """Check every document that the fast encoder encoded, as far as `how` would go."""
        if not self.encoder.is_fast:
            return
        limit, longest = (WHOLE, WHOLE) if self.how == "all" else (DOCUMENT_BYTES, MAX_BYTES)
        by_reference, lengths = set(self.encoder.by_reference), texts.lengths
        for index in range(texts.documents):
            if index not in by_reference and lengths[index] <= longest:
                self.encoder.check(texts, ids, offsets, index, limit)

    def _sample(self, texts: Texts, ids: U32, offsets: I64, begin: int) -> None:
        """A long document may overdraw the credit. The text that follows pays it off."""
        stats = self.encoder.stats
        for kind, index in self._choose(texts, begin):
            before = stats.checked_documents
            tail = kind == WHITE_SPACE and _ends_white(texts, index)
            size = self.encoder.check(texts, ids, offsets, index, DOCUMENT_BYTES, tail)
            if stats.checked_documents > before:  # the reference could encode it
                self.counts[kind] += 1
            self._credit -= max(1, size) * CHECK_SHARE
            if self._credit <= 0:
                break

    def _choose(self, texts: Texts, begin: int) -> Iterator[tuple[str, int]]:
        """Documents to check, the most wanted first, each once."""
        finder = self._finder
        budget = min(max(0, self._look_credit // LOOK_SHARE), texts.size)
        self._look_credit -= budget * LOOK_SHARE
        odd = finder.find(texts, begin, budget)
        kinds = {index: kind for kind in reversed(ODD_KINDS) for index in odd[kind]}
        done = set(self.encoder.by_reference)
        lengths = texts.lengths

        def is_due(kind: str, index: int) -> bool:
            if index in done or not 0 < lengths[index] <= MAX_BYTES:
                return False
            return kind != SCRIPT or finder.has_new_script(texts.document(index))

        wanted = _odd_first(odd, begin, lengths, self.counts)
        others = ((OTHER, i) for i in chain(range(begin, texts.documents), range(begin)))
        while True:
            self._chosen += 1
            both = (wanted, others) if self._chosen % ANY_EVERY else (others, wanted)
            pick = next((one for one in chain(*both) if is_due(*one)), None)
            if pick is None:
                return
            kind, index = pick
            done.add(index)
            finder.saw(texts.document(index))
            yield kind if kind != OTHER else kinds.get(index, OTHER), index

    @cached_property
    def _finder(self) -> OddDocuments:
        encoding = self.encoder.encoding
        added = family_of(encoding).extra_tokens(encoding)
        return OddDocuments([t.encode() for t in added if t not in encoding.special_tokens])


def _odd_first(
    odd: dict[str, list[int]], begin: int, lengths: I64, counts: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """Odd documents: of the kind that was checked least so far, long documents last."""
    left = {
        kind: sorted(found, key=lambda i: (lengths[i] > DOCUMENT_BYTES, i < begin, i), reverse=True)
        for kind, found in odd.items()
        if found
    }
    while left:
        kind = min(left, key=lambda kind: counts[kind])
        yield kind, left[kind].pop()
        left = {kind: found for kind, found in left.items() if found}


def _ends_white(texts: Texts, index: int) -> bool:
    return texts.document(index)[-4:].decode(errors="ignore")[-1:].isspace()
