"""Where a text may be cut so that its pieces, encoded apart, give the ids of the whole.

Before the space in `[A-Za-z] [A-Za-z]`: every pattern we know begins a new word there, whatever
stands before or behind. After a line end would be wrong: gpt2 joins line ends at a text's end,
and only there. Encodings without such a place (SentencePiece) keep their documents whole.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tokenmill.texts import I64, Texts

WORDS = re.compile(rb"[A-Za-z] [A-Za-z]")


def next_cut(data: Any, position: int, stop: int) -> int:
    """The first place at `position` or later, before `stop`, at which a text may be cut; or -1.

    The letter behind the space must stand before `stop` too.
    """
    match = WORDS.search(data, max(0, position - 1), stop)
    return match.start() + 1 if match else -1


def cut_long(texts: Texts, limit: int) -> tuple[Texts, I64 | None]:
    """Documents longer than `limit` in pieces; and which bounds are those of documents.

    None where nothing was cut: of almost every batch, all documents are short.
    """
    long = np.flatnonzero(texts.lengths > limit)
    if len(long) == 0:
        return texts, None
    view = memoryview(texts.data)  # type: ignore[arg-type]
    extra: list[int] = []
    for index in long.tolist():
        start, end = int(texts.offsets[index]), int(texts.offsets[index + 1])
        position = start + limit
        while position < end:
            cut = next_cut(view, position, end)
            if cut < 0:
                break
            extra.append(cut)
            position = cut + limit
    if not extra:
        return texts, None
    offsets = np.sort(np.concatenate((texts.offsets, np.array(extra, np.int64))), kind="stable")
    # Cuts lie inside documents, so no bound of a document equals one.
    bounds = np.flatnonzero(~np.isin(offsets, np.array(extra, np.int64)))
    return Texts(texts.data, offsets), bounds
