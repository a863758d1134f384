"""Every code point on which gigatoken and a reference split text differently."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenmill.texts import from_bytes
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.fast import FastEncoder
from tokenmill.tokenizer.encoders.reference import ReferenceEncoder
from tokenmill.tokenizer.encoders.screens import as_ranges
from tokenmill.tokenizer.proof.gap_tables import Ranges

# Texts in which a different class shows in the ids: a contraction after a letter, digits in
# threes, line ends after punctuation, a space before a word, a change of case.
CONTEXTS = ("A{}'s", "1{}234", "!{}\n\nx", " {} ", "a{}B", "a{}'S x")
BLOCK = 128


def find_gap(encoding: Encoding, contexts: Sequence[str] = CONTEXTS) -> Ranges:
    fast, reference = FastEncoder(encoding), ReferenceEncoder(encoding)

    def differ(texts: list[str]) -> list[bool]:
        ids, offsets = fast.encode(from_bytes([text.encode() for text in texts]))
        expected = [reference.encode_document(text.encode()) for text in texts]
        found = np.split(ids, offsets[1:-1])
        return [not np.array_equal(a, b) for a, b in zip(found, expected, strict=True)]

    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    blocks = [points[i : i + BLOCK] for i in range(0, len(points), BLOCK)]
    different: set[int] = set()
    for context in contexts:
        # Whole blocks first (a digit and a line end keep the samples apart), single ones only
        # where a block differs.
        texts = ["".join(context.format(chr(c)) + "\n0\n" for c in block) for block in blocks]
        for block, differs in zip(blocks, differ(texts), strict=True):
            if differs:
                single = differ([context.format(chr(c)) + "\n0\n" for c in block])
                different.update(c for c, one in zip(block, single, strict=True) if one)
    return as_ranges(sorted(different))
