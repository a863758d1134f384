"""Code points that the fast encoder and the reference put into different classes.

gigatoken's classes are Unicode 17, tiktoken's regex engine knows Unicode 16. A document that
holds one of the code points between the two may be split differently, so it goes to the
reference. Almost no document does, and the scan looks only for the lead bytes involved.

The tables are for certain versions and tests recompute them; for any other pair of versions, and
for a tokenizer.json with rules we do not know, `find_gap` computes one (half a minute), once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tokenmill.encoders.gap_tables import COMPOSING, GAP, NFC_GAP, SYMBOLS_GAP, Ranges
from tokenmill.errors import EncoderError
from tokenmill.texts import I64, U8, Texts, contains_byte

# Texts in which a different class shows in the ids: a contraction after a letter, digits in
# threes, line ends after punctuation, a space before a word, a change of case.
CONTEXTS = ("A{}'s", "1{}234", "!{}\n\nx", " {} ", "a{}B", "a{}'S x")
# And where a normalizer may order or join marks: a mark of another class behind and in front.
NORMALIZER_CONTEXTS = ("x{}\u0323y", "x\u0345{}y", "e{}\u0301 ")


def find_gap(
    fast: Callable[[Sequence[str]], list[list[int]]],
    reference: Callable[[Sequence[str]], list[list[int]]],
    block: int = 128,
    contexts: Sequence[str] = CONTEXTS,
) -> Ranges:
    """Every code point for which the two encoders differ in some context."""
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    blocks = [points[i : i + block] for i in range(0, len(points), block)]
    different: set[int] = set()
    for context in contexts:
        # Whole blocks first (a digit and a line end keep the samples apart), single ones only
        # where a block differs.
        texts = ["".join(context.format(chr(c)) + "\n0\n" for c in b) for b in blocks]
        for members, one, other in zip(blocks, fast(texts), reference(texts), strict=True):
            if one == other:
                continue
            single = [context.format(chr(c)) + "\n0\n" for c in members]
            if members[0] == 0:
                ascii_ids = fast(single)
                if any(x != y for x, y in zip(ascii_ids, reference(single), strict=True)):
                    return ((0, 0x10FFFF),)  # on ASCII: another way of splitting altogether
            different.update(
                c
                for c, x, y in zip(members, fast(single), reference(single), strict=True)
                if x != y
            )
    return _as_ranges(sorted(different))


def merge(*tables: Ranges) -> Ranges:
    """One table of all code points in any of them."""
    return _as_ranges(sorted({c for t in tables for a, b in t for c in range(a, b + 1)}))


def shipped_gap(kind: str) -> Ranges:
    """The table for an encoding of a kind whose rules we know."""
    return GAP if kind == "tiktoken" else merge(GAP, SYMBOLS_GAP, NFC_GAP, COMPOSING)


def _as_ranges(points: Sequence[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for point in points:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return tuple(ranges)


class GapScanner:
    """Finds the documents of a batch that hold a code point of the gap."""

    def __init__(self, ranges: Ranges) -> None:
        self.starts = np.array([first for first, _ in ranges], np.int64)
        self.ends = np.array([last for _, last in ranges], np.int64)
        self.seconds: dict[int, set[int]] = {}
        if ranges and ranges[0][0] < 0x80:
            raise EncoderError("the encoders differ on ASCII: no document could go to the fast one")
        for first, last in ranges:
            # Every 64th code point and the last: each new lead pair appears among them.
            for point in (*range(first, last, 64), last):
                lead, second = chr(point).encode()[:2]
                self.seconds.setdefault(lead, set()).add(second)

    def documents(self, texts: Texts) -> list[int]:
        data = texts.used()
        hits = [
            self._confirm(data, self._candidates(data, lead, seconds))
            for lead, seconds in self.seconds.items()
            if contains_byte(data, lead)
        ]
        positions = np.concatenate(hits) if hits else np.zeros(0, np.int64)
        if len(positions) == 0:
            return []
        ends = texts.offsets[1:] - texts.offsets[0]
        found: list[int] = np.unique(np.searchsorted(ends, positions, side="right")).tolist()
        return found

    def _candidates(self, data: U8, lead: int, seconds: set[int]) -> I64:
        is_lead = data == lead
        if np.count_nonzero(is_lead) * 16 < len(data):
            positions = np.flatnonzero(is_lead)
            wanted = np.zeros(256, bool)
            wanted[list(seconds)] = True
            return positions[wanted[data[positions + 1]]]
        # A script whose every letter has this lead byte (Thai: E0): compare, do not list.
        pairs = [np.flatnonzero(is_lead[:-1] & (data[1:] == second)) for second in seconds]
        return np.concatenate(pairs)

    def _confirm(self, data: U8, positions: I64) -> I64:
        """Keep the positions whose code point really is in the table."""
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
        at = np.searchsorted(self.starts, points, side="right") - 1
        return positions[(at >= 0) & (points <= self.ends[np.maximum(at, 0)])]
