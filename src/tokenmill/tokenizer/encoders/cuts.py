"""Where a text may be cut so that its pieces, encoded apart, give the ids of the whole.

Between a letter and what certainly is none: before the space in `[A-Za-z] [A-Za-z]`, and the same
for a few other scripts. Every pattern we know ends a word there, whatever follows, and begins the
next match there, whatever came before; nothing in it looks back, and only white space looks at
the end of a text. After a line end would be wrong: gpt2 joins line ends at a text's end, and only
there. Encodings without such a place (SentencePiece) keep their documents whole.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tokenmill.texts import I64, Texts, are_among

# Letters of every version of Unicode, which no mark or apostrophe follows.
PLACES = re.compile(
    rb"[A-Za-z](?= [A-Za-z])"
    rb"|(?:\xd0[\xb0-\xbf]|\xd1[\x80-\x8f])(?= [\xd0\xd1])"  # Cyrillic and a space
    # Hangul and a space
    rb"|(?:\xea[\xb0-\xbf]|[\xeb\xec][\x80-\xbf]|\xed[\x80-\x9d])[\x80-\xbf](?= [\xea-\xed])"
    rb"|[\xe5-\xe9][\x80-\xbf]{2}(?=\xef\xbc\x8c|\xe3\x80[\x81\x82])"  # Han and ，、。
    rb"|\xe3(?:\x81[\x82-\xbf]|\x82[\x80-\x90])(?=\xe3\x80[\x81\x82])"  # Hiragana and 、。
)
LETTER_BYTES = 3  # at most, before a cut
BEHIND_BYTES = 3  # at most, that are looked at behind it


def next_cut(data: Any, position: int, stop: int) -> int:
    """The first place at `position` or later at which data[:stop] may be cut; or -1."""
    begin = max(0, position - LETTER_BYTES)
    while match := PLACES.search(data, begin, stop):
        if match.end() >= position:
            return match.end()
        begin = match.end()
    return -1


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
    return with_cuts(texts, np.array(extra, np.int64)) if extra else (texts, None)


def with_cuts(texts: Texts, cuts: I64) -> tuple[Texts, I64]:
    """The texts cut at these places inside them; and which bounds are those of documents."""
    offsets = np.sort(np.concatenate((texts.offsets, cuts)), kind="stable")
    # Cuts lie inside documents, so no bound of a document equals one.
    return Texts(texts.data, offsets), np.flatnonzero(~are_among(offsets, np.sort(cuts)))
