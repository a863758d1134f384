"""Code points that the fast encoder and the reference put into different classes.

gigatoken's classes are Unicode 17, tiktoken's regex engine knows Unicode 16. A document that
holds one of the code points between the two may be split differently, so it goes to the
reference. Almost no document does, and the scan looks only for the lead bytes involved.

The table is for the versions named here and a test recomputes it; for any other pair of versions
`find_gap` computes it when the encoder is opened (half a minute, at every start).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tokenmill.errors import EncoderError
from tokenmill.texts import I64, U8, Texts, contains_byte

Ranges = tuple[tuple[int, int], ...]

MEASURED_FOR = {"gigatoken": "0.10.0", "tiktoken": "0.14.0"}

# First and last code point, both included. The union over gpt2, cl100k and o200k: o200k's pattern
# also asks for marks (\p{M}), which adds 1ACF-1AEB, 10EFA-10EFB, 11B60-11B67 and 1E6E3-1E6F5.
GAP: Ranges = (
    (0x88F, 0x88F),
    (0xC5C, 0xC5C),
    (0xCDC, 0xCDC),
    (0x1ACF, 0x1ADD),
    (0x1AE0, 0x1AEB),
    (0xA7CE, 0xA7CF),
    (0xA7D2, 0xA7D2),
    (0xA7D4, 0xA7D4),
    (0xA7F1, 0xA7F1),
    (0x10940, 0x10959),
    (0x10EC5, 0x10EC7),
    (0x10EFA, 0x10EFB),
    (0x11B60, 0x11B67),
    (0x11DB0, 0x11DDB),
    (0x11DE0, 0x11DE9),
    (0x16EA0, 0x16EB8),
    (0x16EBB, 0x16ED3),
    (0x16FF2, 0x16FF6),
    (0x187F8, 0x187FF),
    (0x18D09, 0x18D1E),
    (0x18D80, 0x18DF2),
    (0x1E6C0, 0x1E6DE),
    (0x1E6E0, 0x1E6F5),
    (0x1E6FE, 0x1E6FF),
    (0x2B73A, 0x2B73F),
    (0x2CEA2, 0x2CEAD),
    (0x323B0, 0x33479),
)

# Texts in which a different class shows in the ids: a contraction after a letter, digits in
# threes, line ends after punctuation, a space before a word, a change of case.
CONTEXTS = ("A{}'s", "1{}234", "!{}\n\nx", " {} ", "a{}B", "a{}'S x")


def find_gap(
    fast: Callable[[Sequence[str]], list[list[int]]],
    reference: Callable[[Sequence[str]], list[list[int]]],
    block: int = 128,
) -> Ranges:
    """Every code point for which the two encoders differ in some context."""
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    blocks = [points[i : i + block] for i in range(0, len(points), block)]
    different: set[int] = set()
    for context in CONTEXTS:
        # Whole blocks first (a digit and a line end keep the samples apart), single ones only
        # where a block differs.
        texts = ["".join(context.format(chr(c)) + "\n0\n" for c in b) for b in blocks]
        for members, one, other in zip(blocks, fast(texts), reference(texts), strict=True):
            if one == other:
                continue
            single = [context.format(chr(c)) + "\n0\n" for c in members]
            different.update(
                c
                for c, x, y in zip(members, fast(single), reference(single), strict=True)
                if x != y
            )
    return _as_ranges(sorted(different))


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
