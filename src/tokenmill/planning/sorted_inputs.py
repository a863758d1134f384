"""Do the documents look sorted? The beginning of a stream is compared with its end.

A trainer reads a dataset from its beginning to its end. Where the inputs are sorted (by language,
by length, one source after the other), so are its batches. Compared are the first and the last
sixteenth of the stream: bytes of text per token, which differ between languages, code and prose;
and the values of a language column, where there is one.

A difference counts if it is large in itself and larger than chance makes it among so few
documents. Where enough parts were seen, each must also be like the next one: very different
documents that are mixed well differ between all parts. docs/log.md has what was tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tokenmill.errors import printable, warning

BLOCK = 1 / 16  # of the stream
OUTER = 1 / 4  # of the stream, at either end: something of it must have been seen
LEAST_RATIO = 0.1  # of bytes per token, relative to their mean
LEAST_SHARE = 0.25  # of the documents, in another language
MANY_PARTS = 6  # from here on, neighbours tell whether the parts differ by chance
BY_CHANCE = 8.0, 5.0  # over the square root of the number of documents: few parts, many parts
LIKE_THE_NEXT = 1.0  # von Neumann's ratio is about 2 in a random order, near 0 in a sorted one


class StreamPart(NamedTuple):
    """A part of the stream, where it is, from 0 to 1, and what was seen of it."""

    start: float
    stop: float
    text_bytes: int
    tokens: int
    documents: int
    languages: Mapping[str, int] = {}


class _Block:
    """What was seen of a sixteenth of the stream, or of a longer part."""

    def __init__(self, first: StreamPart) -> None:
        self.start = self.stop = first.start
        self.text_bytes = self.tokens = self.documents = 0
        self.languages: Counter[str] = Counter()
        self.parts: list[StreamPart] = []

    def takes(self, part: StreamPart) -> bool:
        """Whether it is not whole yet, or the part is of the same segment as the last one."""
        return self.stop - self.start < BLOCK - 1e-9 or part.stop <= self.stop

    def add(self, part: StreamPart) -> None:
        self.stop = part.stop
        self.parts.append(part)
        self.text_bytes += part.text_bytes
        self.tokens += part.tokens
        self.documents += part.documents
        self.languages.update(part.languages)

    @property
    def bytes_per_token(self) -> float:
        return self.text_bytes / self.tokens


def units_as_parts(counts: Sequence[Sequence[int]]) -> list[StreamPart]:
    """Text bytes, tokens and documents of all units, in the order of the stream."""
    total = max(1, sum(tokens for _, tokens, _ in counts))
    parts, before = [], 0
    for text_bytes, tokens, documents in counts:
        after = before + tokens
        parts.append(StreamPart(before / total, after / total, text_bytes, tokens, documents))
        before = after
    return parts


def sorted_warnings(parts: Sequence[StreamPart]) -> list[str]:
    """What differs between the beginning and the end of a stream that is not shuffled."""
    told = _text_difference(_blocks([part for part in parts if part.tokens]))
    told += _language_difference(_blocks([part for part in parts if part.languages]))
    if not told:
        return []
    return [
        warning(
            "the documents look sorted: between the first and the last sixteenth of the stream, "
            f"{' and '.join(told)}; --shuffle puts the documents in random order"
        )
    ]


def _blocks(parts: Sequence[StreamPart]) -> list[_Block]:
    """Neighbouring parts together, a sixteenth or more; none if the beginning or the end of the
    stream was not seen."""
    blocks: list[_Block] = []
    for part in sorted(parts, key=lambda one: (one.start, one.stop)):
        if not blocks or not blocks[-1].takes(part):
            blocks.append(_Block(part))
        blocks[-1].add(part)
    if len(blocks) > 1 and blocks[-1].stop - blocks[-1].start < BLOCK / 2:
        blocks.pop()  # a rest of few documents
    if len(blocks) < 2 or blocks[0].start > OUTER or blocks[-1].stop < 1 - OUTER:
        return []
    return blocks


def _text_difference(blocks: list[_Block]) -> list[str]:
    if not blocks:
        return []
    first, last = blocks[0].bytes_per_token, blocks[-1].bytes_per_token
    if not first + last:  # empty documents
        return []
    documents = min(blocks[0].documents, blocks[-1].documents)
    change = 2 * abs(first - last) / (first + last)
    each = [part.text_bytes / part.tokens for block in blocks for part in block.parts]
    if change <= LEAST_RATIO or not _is_clear(change, documents, each):
        return []
    return [f"text per token goes from {first:.2f} to {last:.2f} bytes"]


def _language_difference(blocks: list[_Block]) -> list[str]:
    """The language whose share of the documents differs most."""
    if not blocks:
        return []
    first, last = blocks[0].languages, blocks[-1].languages
    changes = {name: abs(_share(first, name) - _share(last, name)) for name in first | last}
    most = max(sorted(changes), key=lambda name: changes[name])
    each = [_share(part.languages, most) for block in blocks for part in block.parts]
    documents = min(first.total(), last.total())
    if changes[most] <= LEAST_SHARE or not _is_clear(changes[most], documents, each):
        return []
    here, there = (f"{100 * _share(languages, most):.0f} %" for languages in (first, last))
    return [f"documents in the language {printable(most)!r} go from {here} to {there}"]


def _share(languages: Mapping[str, int], name: str) -> float:
    return languages.get(name, 0) / sum(languages.values())


def _is_clear(change: float, documents: int, each: list[float]) -> bool:
    """Whether a change is no accident; `each`: the same measure of all parts, in order."""
    few, many = (bound / math.sqrt(max(1, documents)) for bound in BY_CHANCE)
    if len(each) < MANY_PARTS:
        return change > few
    middle = sum(each) / len(each)
    spread = sum((one - middle) ** 2 for one in each)
    steps = sum((one - other) ** 2 for one, other in pairwise(each))
    return change > many and steps < LIKE_THE_NEXT * spread
