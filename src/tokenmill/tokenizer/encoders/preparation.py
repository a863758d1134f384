"""What happens to a text before it is split and merged, where that is not left to gigatoken.

The library's normalizer runs first, on the documents that it may change. Where a tokenizer takes
every numeral for a text of its own, the documents are cut there.
"""

from __future__ import annotations

import unicodedata

import numpy as np

from tokenmill.texts import I64, Texts, are_among, distinct, from_bytes
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.cuts import with_cuts
from tokenmill.tokenizer.encoders.screens import CodePoints, as_ranges
from tokenmill.tokenizer.families.sentencepiece import open_model
from tokenmill.tokenizer.proof import gap_tables
from tokenmill.tokenizer.proof.gap_tables import Ranges
from tokenmill.tokenizer.proof.rules import RULE_SETS


class Preparation:
    """Documents to the texts that gigatoken encodes."""

    def __init__(self, encoding: Encoding) -> None:
        rules = RULE_SETS[encoding.rules]
        # It writes spaces as U+2581 too.
        self._model_normalize = open_model(encoding).normalize if rules.form == "model" else None
        self._active = CodePoints(nfkc_active()) if rules.form == "NFKC" else None
        numerals = tuple(r for r in gap_tables.NUMERALS if r[0] >= 0x80)
        self._numerals = CodePoints(numerals) if rules.digits else None

    def prepare(self, texts: Texts) -> tuple[Texts, I64 | None]:
        """The texts, and which of their bounds are those of documents; None: all of them."""
        if self._model_normalize is not None:
            documents = (texts.document(i).decode() for i in range(texts.documents))
            texts = from_bytes(self._model_normalize(document).encode() for document in documents)
        if self._active is not None:
            texts = _normalize_nfkc(texts, self._active)
        return (texts, None) if self._numerals is None else _cut_numerals(texts, self._numerals)


def nfkc_active() -> Ranges:
    """Code points without which a text is its own NFKC: the others have no combining class, and are
    neither changed nor composed with a letter before them. It takes 0.1 s to list them.

    Unicode promises that the normal form of a letter never changes once it is assigned. So Python's
    tables serve for the library's, which are older: the screen has taken out newer letters.
    """
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # parts of Hangul syllables
    for point in range(0x80, 0x30000):
        letter = chr(point)
        if unicodedata.combining(letter) or not unicodedata.is_normalized("NFKC", letter):
            found.add(point)
        found.update(map(ord, unicodedata.normalize("NFD", letter)[1:]))
    return as_ranges(sorted(found))


def _normalize_nfkc(texts: Texts, active: CodePoints) -> Texts:
    changed: dict[int, bytes] = {}
    for index in active.documents(texts):
        text = texts.document(index).decode()
        if not unicodedata.is_normalized("NFKC", text):
            changed[index] = unicodedata.normalize("NFKC", text).encode()
    return texts.with_documents(changed) if changed else texts


def _cut_numerals(texts: Texts, numerals: CodePoints) -> tuple[Texts, I64 | None]:
    """Every numeral a text of its own, and so is what stands between two of them."""
    data = texts.used()
    ascii_digits = np.flatnonzero((data - ord("0")) < 10)
    others = numerals.positions(texts)
    if len(ascii_digits) + len(others) == 0:
        return texts, None
    lead = data[others]
    widths = np.where(lead >= 0xF0, 4, np.where(lead >= 0xE0, 3, 2))
    around = np.concatenate((ascii_digits, ascii_digits + 1, others, others + widths))
    cuts = distinct(around + texts.offsets[0])
    cuts = cuts[~are_among(cuts, texts.offsets)]
    return with_cuts(texts, cuts) if len(cuts) else (texts, None)
