"""Which documents of a mixture's source are taken, and how often: pure, and the same everywhere.

Each document has a 64-bit key that orders the shuffled stream. Documents are not chosen by this
key: a source of which a tenth is taken would then be in the first tenth of the stream only. They
are chosen by a second key that is made of the first one. The documents with the smallest choice
keys are taken until a budget is reached; the document that reaches it is the last.

If a budget is larger than the source, every document is taken in whole epochs, and some once
more. The first copy of a document has the document's own key, each further copy a key made of it,
so that copies are spread over the stream.

Documents with the same key are taken together: the pieces of a giant document have one key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from tokenmill.texts import I64
from tokenmill.tokens.splits import GOLDEN_RATIO, U64, mix

# Other numbers than those that any other hash of ours begins with.
CHOICE = np.uint64(0x2545F4914F6CDD1D)
COPY = np.uint64(0xD1342543DE82EF95)
BITS = 16  # of a choice key that one pass over the documents settles
EVERYTHING = (1 << 64) - 1

# Keys of documents, and how much each counts: its tokens, or 1.
Amounts = tuple[U64, I64]


class Choice(NamedTuple):
    """How often the documents of a source are taken: all of them `whole` times, and those with a
    choice key up to `bound` once more. `bound` -1: none."""

    whole: int
    bound: int

    def copies(self, keys: U64) -> I64:
        """How often each document is taken."""
        found = np.full(len(keys), self.whole, np.int64)
        if self.bound >= 0:
            found += choice_keys(keys) <= np.uint64(self.bound)
        return found

    @property
    def most(self) -> int:
        """The copies of a document that is taken most often."""
        return self.whole + (self.bound >= 0)


def choice_keys(keys: U64) -> U64:
    """What documents are chosen by; different keys stay different."""
    return mix(keys * GOLDEN_RATIO + CHOICE)


def copy_keys(keys: U64, copy: int) -> U64:
    """What orders a document's further copies: number 0 has the document's own key."""
    if copy == 0:
        return keys
    number = mix(np.array([copy], np.uint64) * GOLDEN_RATIO + COPY)
    return mix(keys + number)


def choose(documents: Callable[[], Iterable[Amounts]], whole: int, part: int) -> Choice:
    """The choice that takes a source `whole` times, and `part` of it once more, or as little more
    as whole documents allow.

    `documents` is called once for each pass over the source (four at most), and gives its
    documents in parts of any size and order.
    """
    return Choice(whole, _bound(documents, part) if part else -1)


def _bound(documents: Callable[[], Iterable[Amounts]], part: int) -> int:
    """The smallest choice key up to which documents amount to `part`: its bits from the highest
    on, each pass the next ones."""
    prefix = 0
    for shift in range(64 - BITS, -1, -BITS):
        sums = np.zeros(1 << BITS, np.int64)
        for keys, amounts in documents():
            found = choice_keys(keys)
            digits = (found >> np.uint64(shift)) & np.uint64((1 << BITS) - 1)
            inside = np.full(len(found), True)
            if shift + BITS < 64:
                inside = (found >> np.uint64(shift + BITS)) == np.uint64(prefix)
            np.add.at(sums, digits[inside].astype(np.int64), amounts[inside])
        before = np.cumsum(sums)
        digit = int(np.searchsorted(before, part))  # the first whose documents reach it
        part -= int(before[digit] - sums[digit])
        prefix = prefix << BITS | digit
    return prefix
