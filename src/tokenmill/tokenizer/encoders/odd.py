"""Find the odd documents of a batch: those on which two encoders are most likely to differ.

A document is odd if it begins or ends in white space, holds combining marks, an added token that
is not special, a digit or a sign after two or more spaces, or a script that no checked document
held yet. The search works on the bytes of the whole batch, in numpy or with one regular
expression. It looks at a bounded part of the batch, so that it takes under 1 % of the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from string import digits, punctuation

import numpy as np
import numpy.typing as npt

from tokenmill.texts import I64, U8, Texts, are_among, distinct
from tokenmill.tokenizer.encoders.screens import CodePoints

U16 = npt.NDArray[np.uint16]

WHITE_SPACE, MARKS, ADDED, DIGITS, SCRIPT = "white_space", "marks", "added", "digits", "script"
ODD_KINDS = (WHITE_SPACE, MARKS, ADDED, DIGITS, SCRIPT)

# Only the beginning of a long document is looked at and checked: rather many than long ones.
DOCUMENT_BYTES = 8 << 10
# The ends of so many documents are looked at in any case: 0.1 ms.
ENDS_DOCUMENTS = 4096
# At most so many characters outside ASCII, and so many new scripts: in text that has no ASCII at
# all, each byte takes ten times as long.
MAX_LEADS = 1 << 16
MAX_SCRIPTS = 8
MAX_ADDED = 1000
MAX_ADDED_BYTES = 32  # bounds how deep the regular expression nests

_WHITE = [letter.encode() for letter in map(chr, range(0x3001)) if letter.isspace()]
# Marks that may follow a letter of any script, and those of Cyrillic, Hebrew, Arabic and kana.
# Marks of other scripts are in most words of these: `SCRIPT` finds such documents.
MARK_RANGES = (
    (0x0300, 0x036F), (0x0483, 0x0489), (0x0591, 0x05BD), (0x0610, 0x061A), (0x064B, 0x065F),
    (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x3099, 0x309A), (0xFE20, 0xFE2F),
)  # fmt: skip


def _byte_table(members: bytes) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, bool)
    table[list(members)] = True
    return table


_IS_WHITE = _byte_table(b"".join(letter for letter in _WHITE if len(letter) == 1))
_IS_SIGN = _byte_table((digits + punctuation).encode())
_WIDE_WHITE = np.sort([int.from_bytes(letter, "big") for letter in _WHITE if len(letter) > 1])
_MARKS = CodePoints(MARK_RANGES)
# First bytes of characters that tell the script: of two bytes, CJK, Hangul, private use.
_SCRIPT_OF_LEAD = np.zeros(256, np.uint16)
_SCRIPT_OF_LEAD[0xC0:0xE0] = range(0xC0, 0xE0)
_SCRIPT_OF_LEAD[0xE4:0xEA] = 0xE4
_SCRIPT_OF_LEAD[0xEB:0xEE] = 0xEB
_SCRIPT_OF_LEAD[0xEE] = 0xEE


class OddDocuments:
    """Finds odd documents, and remembers which scripts were checked."""

    def __init__(self, added: Sequence[bytes] = ()) -> None:
        self._added = added_pattern(added)
        self._seen = np.zeros(1 << 16, bool)

    def find(self, texts: Texts, begin: int, budget: int) -> dict[str, list[int]]:
        """The odd documents of each kind, in at most `budget` bytes from document `begin` on.

        Of every script that is new, one document. Empty documents are never odd.
        """
        found: dict[str, list[int]] = {kind: [] for kind in ODD_KINDS}
        in_budget = texts.documents * budget // max(1, texts.size)
        found[WHITE_SPACE] = _white_ends(texts, begin, max(ENDS_DOCUMENTS, in_budget))
        for start, stop in _windows(texts, begin, budget):
            data = texts.data[start:stop]
            spaces = _signs_after_spaces(data)
            found[DIGITS] += _documents(texts, start + spaces, start + spaces + 2)
            found[MARKS] += _documents(texts, start + _MARKS.places(data))
            leads, scripts = _scripts(data)
            found[SCRIPT] += self._new_scripts(texts, start + leads, scripts)
            found[ADDED] += self._with_added(texts, start, stop)
        return found

    def saw(self, document: bytes) -> None:
        """Remember the scripts of a document that is checked now."""
        self._seen[_scripts_of(document)] = True

    def has_new_script(self, document: bytes) -> bool:
        return not bool(self._seen[_scripts_of(document)].all())

    def _new_scripts(self, texts: Texts, positions: I64, scripts: U16) -> list[int]:
        """One document for each script: a short one where there is one."""
        found: list[int] = []
        for script in distinct(scripts[~self._seen[scripts]])[:MAX_SCRIPTS]:
            holders = _documents(texts, positions[scripts == script])
            found += sorted(holders, key=lambda i: texts.offsets[i + 1] - texts.offsets[i])[:1]
        return sorted(set(found))

    def _with_added(self, texts: Texts, start: int, stop: int) -> list[int]:
        if self._added is None:
            return []
        view = memoryview(texts.data)  # type: ignore[arg-type]
        found = []
        while match := self._added.search(view, start, stop):
            index = int(np.searchsorted(texts.offsets, match.start(), side="right")) - 1
            end = int(texts.offsets[index + 1])
            if match.end() > end:  # the token would begin in one document and end in the next
                start = match.start() + 1
                continue
            if match.start() - int(texts.offsets[index]) < DOCUMENT_BYTES:
                found.append(index)
            start = end
        return found


def _windows(texts: Texts, begin: int, budget: int) -> Iterator[tuple[int, int]]:
    """Bytes to look at: from document `begin` to the end, then from the first document on."""
    first, middle, last = (int(texts.offsets[i]) for i in (0, begin, -1))
    stop = min(last, middle + budget)
    if stop > middle:
        yield middle, stop
    again = min(middle, first + budget - (stop - middle))
    if again > first:
        yield first, again


def _documents(texts: Texts, positions: I64, ends: I64 | None = None) -> list[int]:
    """The documents that hold these positions in their beginning, each once.

    Where `ends` are given, what begins at a position must not reach into the next document.
    """
    index = np.searchsorted(texts.offsets, positions, side="right") - 1
    inside = positions - texts.offsets[index] < DOCUMENT_BYTES
    if ends is not None:
        inside &= ends < texts.offsets[index + 1]
    found: list[int] = distinct(index[inside]).tolist()
    return found


def _white_ends(texts: Texts, begin: int, count: int) -> list[int]:
    """Documents that begin or end in white space, among `count` of them."""
    first = max(0, min(begin, texts.documents - count))
    bounds = texts.offsets[first : first + count + 1]
    starts, ends = bounds[:-1], bounds[1:]
    some = np.flatnonzero(ends > starts)
    starts, ends, data = starts[some], ends[some], texts.data
    white = _IS_WHITE[data[starts]] | _IS_WHITE[data[ends - 1]]
    for size in (2, 3):
        long = np.flatnonzero(ends - starts >= size)
        for place in (starts[long], ends[long] - size):
            white[long] |= are_among(_numbers(data, place, size), _WIDE_WHITE)
    found: list[int] = (some[white] + first).tolist()
    return found


def _numbers(data: U8, place: I64, size: int) -> I64:
    """`size` bytes at each place as one number."""
    number = np.zeros(len(place), np.int64)
    for offset in range(size):
        number = number << 8 | data[place + offset]
    return number


def _signs_after_spaces(data: U8) -> I64:
    """Where two spaces and then a digit or a sign begin."""
    space = data == 32
    pairs = np.flatnonzero(space[:-2] & space[1:-1])
    return pairs[_IS_SIGN[data[pairs + 2]]]


def _scripts(data: U8) -> tuple[I64, U16]:
    """Where a character of several bytes begins, and a coarse number for its script: the first two
    bytes, which 64 code points share (4096 of the upper planes), or what the first byte tells."""
    leads = np.flatnonzero(data[:-1] >= 0xC0)[:MAX_LEADS]
    pairs = (data[leads].astype(np.uint16) << np.uint16(8)) | data[leads + 1]
    by_lead = _SCRIPT_OF_LEAD[data[leads]]
    return leads, np.where(by_lead > 0, by_lead, pairs)


def _scripts_of(document: bytes) -> U16:
    return _scripts(np.frombuffer(document, np.uint8)[:DOCUMENT_BYTES])[1]


# --- added tokens ----------------------------------------------------------------------------


def added_pattern(strings: Sequence[bytes]) -> re.Pattern[bytes] | None:
    """One expression that finds any of the strings, or None where there is none."""
    shortest: list[bytes] = []
    for string in sorted(filter(None, strings)):
        # A text that holds the longer string holds the shorter one too.
        if not shortest or not string.startswith(shortest[-1]):
            shortest.append(string)
    kept = [string for string in shortest if len(string) <= MAX_ADDED_BYTES][:MAX_ADDED]
    return re.compile(_any_of(kept)) if kept else None


def _any_of(strings: list[bytes]) -> bytes:
    """Common beginnings are written once: else each place in the text would try every string."""
    parts = []
    for first, group in groupby(strings, key=lambda string: string[:1]):
        rests = [member[1:] for member in group]
        more = _any_of(rests) if len(rests) > 1 else re.escape(rests[0])
        parts.append(re.escape(first) + more)
    return b"(?:" + b"|".join(parts) + b")"
