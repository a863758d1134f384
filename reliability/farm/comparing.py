"""One drawn file: tokenmill's ids and the library's, document by document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from reliability.farm.documents import documents
from reliability.farm.drawing import Drawn
from reliability.farm.opening import open_encoder
from reliability.farm.oracle import Ids, open_oracle
from tokenmill.settings import EncoderChoice
from tokenmill.texts import from_bytes


@dataclass
class Result:
    seed: int
    kind: str
    line: str
    rules: str  # the proven rule set; '' where the reference encodes everything
    documents: int = 0
    differences: int = 0
    to_reference: int = 0  # documents that a fast encoding gave to the reference
    library_failed: int = 0  # documents that the library itself cannot encode
    redrawn: int = 0
    example: str = ""

    @property
    def is_fast(self) -> bool:
        return bool(self.rules)


def compare(drawn: Drawn, texts: Sequence[str], choice: EncoderChoice = "auto") -> Result:
    """Every text through both. `choice`: the encoder, as `--encoder` names it."""
    encoder = open_encoder(drawn.encoding, choice)
    result = Result(
        seed=drawn.seed,
        kind=drawn.kind,
        line=drawn.line,
        rules=drawn.encoding.rules or "fast" if encoder.is_fast else "",
        redrawn=len(drawn.redrawn),
    )
    expected = open_oracle(drawn.path, drawn.pattern)(texts)
    kept = [(text, ids) for text, ids in zip(texts, expected, strict=True) if ids is not None]
    result.documents, result.library_failed = len(kept), len(texts) - len(kept)
    ids, offsets = encoder.encode(from_bytes([text.encode() for text, _ in kept]))
    if not _all_equal(ids, offsets, [right for _, right in kept]):
        _count(result, kept, ids.tolist(), offsets.tolist())
    result.to_reference = encoder.stats.reference_documents if result.is_fast else 0
    return result


def _all_equal(ids: Any, offsets: Any, right: Sequence[Ids]) -> bool:
    """Without a loop over documents: nearly always there is no difference."""
    lengths = np.fromiter(map(len, right), np.int64, len(right))
    if not np.array_equal(np.diff(offsets), lengths):
        return False
    flat = np.fromiter(chain.from_iterable(right), np.uint32, int(lengths.sum()))
    return np.array_equal(ids, flat)


def _count(
    result: Result, kept: Sequence[tuple[str, Ids]], ids: Ids, offsets: Sequence[int]
) -> None:
    """Differences, and the shortest text as the example."""
    shortest = 1 << 60
    for index, (text, right) in enumerate(kept):
        found = ids[offsets[index] : offsets[index + 1]]
        if found == right:
            continue
        result.differences += 1
        if len(text) < shortest:
            shortest = len(text)
            result.example = describe(text, found, right)


def describe(text: str, found: Ids, right: Ids) -> str:
    """The text and both ids, from where they differ on."""
    start = next(
        (i for i, (a, b) in enumerate(zip(found, right, strict=False)) if a != b),
        min(len(found), len(right)),
    )
    start = max(0, start - 2)
    return (
        f"{text[:200]!r} ({len(text)} characters): from id {start} on "
        f"{found[start : start + 12]}, should be {right[start : start + 12]}"
    )


def examine(drawn: Drawn, count: int) -> Result:
    """Documents for this file, compared."""
    return compare(drawn, documents(drawn.seed, count, drawn.tokens))
