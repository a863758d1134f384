"""Finds the documents of a batch that must not go to the fast encoder as they are.

gigatoken's classes are Unicode 17, the references know older versions. A document that holds one
of the code points between the two may be split differently, so it goes to the reference. Almost no
document does. The same scan finds documents that a normalizer may change, and a search finds
strings that only the reference treats rightly.
"""

from __future__ import annotations

import numpy as np

from tokenmill.errors import EncoderError
from tokenmill.texts import (
    I64,
    U8,
    Texts,
    contains_byte,
    documents_at,
    documents_with,
    true_rows,
)
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.proof import gap_tables
from tokenmill.tokenizer.proof.gap_tables import Ranges
from tokenmill.tokenizer.proof.rules import RULE_SETS

DENSE = 24  # one character in so many bytes: more is dense
FEW_PAIRS = 6
FEW_LEADS = 8


def merge(*tables: Ranges) -> Ranges:
    """One table of all code points in any of them."""
    return as_ranges(sorted({c for t in tables for a, b in t for c in range(a, b + 1)}))


def as_ranges(points: list[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for point in points:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return tuple(ranges)


def gap_of(encoding: Encoding) -> Ranges:
    """Code points whose documents go to the reference."""
    rules = RULE_SETS[encoding.rules]
    if rules.kind == "ranks":
        return gap_tables.GAP
    if rules.kind == "characters":  # no step of these looks at classes of code points
        return ()
    newer = gap_tables.NEWER if rules.form else ()
    numerals = gap_tables.NEWER_NUMERALS if rules.digits else ()
    return merge(gap_tables.GAP, gap_tables.SYMBOLS_GAP, newer, numerals)


class Screen:
    """The documents that only the reference encodes rightly."""

    def __init__(self, encoding: Encoding) -> None:
        self._gap = CodePoints(gap_of(encoding))
        self._strings = [string.encode() for string in encoding.screened]

    def suspects(self, texts: Texts) -> list[int]:
        found = self._gap.documents(texts)
        if self._strings:
            found = sorted({*found, *documents_with(texts, self._strings)})
        return found


class CodePoints:
    """Finds certain code points in a batch.

    A text in which few characters are above the lowest of them (English: dashes and quotes) is
    searched by the first two bytes of each such character, at some 2 GB/s; any other text for the
    pairs of bytes themselves, if few of them can occur (1 GB/s), else by an automaton (0.5 GB/s).
    """

    def __init__(self, ranges: Ranges) -> None:
        self._starts = np.array([first for first, _ in ranges], np.int64)
        self._ends = np.array([last for _, last in ranges], np.int64)
        self._pairs = np.zeros(1 << 16, bool)
        self._seconds: dict[int, set[int]] = {}
        if not ranges:
            return
        if ranges[0][0] < 0x80:
            raise EncoderError("a table of code points holds ASCII, which every document does")
        self._lowest_lead = chr(ranges[0][0]).encode()[0]
        for first, last in ranges:
            # Of three bytes and more, every 64th code point and the last have all pairs.
            for point in (*range(first, last, 1 if first < 0x800 else 64), last):
                lead, second = chr(point).encode()[:2]
                self._pairs[lead << 8 | second] = True
                self._seconds.setdefault(lead, set()).add(second)
        self._pattern = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)

    def documents(self, texts: Texts) -> list[int]:
        """The documents that hold one, by number."""
        data = texts.used()
        if len(self._seconds) <= FEW_LEADS and not self._present(data):
            return []
        leads = data >= self._lowest_lead
        count = np.count_nonzero(leads)
        if count * DENSE < len(data):
            return documents_at(texts, self._confirmed(data, np.flatnonzero(leads)))
        present = self._present(data)
        if sum(map(len, present.values())) <= FEW_PAIRS:
            return documents_at(texts, self._confirmed(data, _find_pairs(data, present)))
        import pyarrow.compute

        found = pyarrow.compute.match_substring_regex(texts.to_arrow(), f"[{self._pattern}]")
        numbers: list[int] = np.flatnonzero(true_rows(found)).tolist()
        return numbers

    def _present(self, data: U8) -> dict[int, set[int]]:
        """The first bytes that occur at all, with the second ones that would have to follow."""
        return {k: v for k, v in self._seconds.items() if contains_byte(data, k)}

    def positions(self, texts: Texts) -> I64:
        """Where one begins in `texts.used()`."""
        found = [np.zeros(0, np.int64)]
        for index in self.documents(texts):
            one = texts.slice(index, index + 1)
            found.append(self.places(one.used()) + (one.offsets[0] - texts.offsets[0]))
        return np.concatenate(found)

    def places(self, data: U8) -> I64:
        """Where one begins in a text."""
        return self._confirmed(data, np.flatnonzero(data >= self._lowest_lead))

    def _confirmed(self, data: U8, positions: I64) -> I64:
        """Of the places where a character begins, those where it is in the table."""
        behind = [data[np.minimum(positions + i, len(data) - 1)] for i in (0, 1)]
        pairs = (behind[0].astype(np.uint16) << 8) | behind[1]
        positions = positions[self._pairs[pairs]]
        if len(positions) == 0:
            return positions
        lead = data[positions].astype(np.int64)
        tail = [
            data[np.minimum(positions + i, len(data) - 1)].astype(np.int64) & 63 for i in (1, 2, 3)
        ]
        two = ((lead & 31) << 6) | tail[0]
        three = ((lead & 15) << 12) | (tail[0] << 6) | tail[1]
        four = ((lead & 7) << 18) | (tail[0] << 12) | (tail[1] << 6) | tail[2]
        points = np.where(lead >= 0xF0, four, np.where(lead >= 0xE0, three, two))
        at = np.searchsorted(self._starts, points, side="right") - 1
        return positions[(at >= 0) & (points <= self._ends[np.maximum(at, 0)])]


def _find_pairs(data: U8, seconds: dict[int, set[int]]) -> I64:
    found = [np.zeros(0, np.int64)]
    for lead, others in seconds.items():
        is_lead = data[:-1] == lead
        found += [np.flatnonzero(is_lead & (data[1:] == second)) for second in others]
    return np.concatenate(found)
