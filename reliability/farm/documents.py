"""Hostile documents from a seed: odd pieces, real text in every normal form, strings of tokens.

Most documents are short (20 to 60 bytes), since a short document shows a difference as well as a
long one and costs less. A few have 2 to 20 KB.
"""

from __future__ import annotations

import functools
import random
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

from reliability.farm.characters import (
    NEARLY_WHITE,
    NEWER,
    WHITE_SPACE,
    changing,
    jamo,
    marks,
    numbers,
    pieces,
)
from reliability.farm.sample_text import sample_texts, snippets

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
LONG_SHARE = 0.002
EDGES = (16, 32, 64)  # bytes at which a vectorized encoder changes its path
TOKENS_SHARE = 0.25  # documents made of this tokenizer's own special and added tokens


def documents(seed: object, count: int, tokens: Sequence[str] = ()) -> list[str]:
    """`count` texts; `tokens` are the strings of the tokenizer's special and added tokens."""
    rng = random.Random(f"documents {seed}")
    own = int(count * TOKENS_SHARE) if tokens else 0
    texts = [_general(rng) for _ in range(count - own)]
    texts += [_with_tokens(rng, tokens) for _ in range(own)]
    for index in range(len(texts)):
        if rng.random() < 0.15:
            texts[index] = unicodedata.normalize(rng.choice(FORMS), texts[index])
    rng.shuffle(texts)
    return texts


@functools.cache
def _atoms() -> list[str]:
    """Pieces that documents are mixed of. A kind that matters more is there more often."""
    white = [*WHITE_SPACE, *NEARLY_WHITE, " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n"]
    rng = random.Random("atoms")
    return [
        *pieces() * 4,
        *white * 8,
        *rng.sample(changing(), 600),
        *rng.sample(numbers(), 150),
        *rng.sample(marks(), 150),
        *jamo(),
        *(snippet[: rng.randint(1, 8)] for snippet in rng.sample(snippets(), 1500)),
    ]


def _general(rng: random.Random) -> str:
    chance = rng.random()
    if chance < LONG_SHARE:
        return _long(rng)
    for limit, make in _SHAPES:
        if chance < limit:
            return make(rng) if rng.random() < 0.6 else make(rng) + _mix(rng)
    return ""


def _mix(rng: random.Random) -> str:
    return "".join(rng.choices(_atoms(), k=rng.choice((1, 2, 3, 4, 6, 9, 14))))


def _real(rng: random.Random) -> str:
    text = rng.choice(snippets())
    return text if rng.random() < 0.2 else unicodedata.normalize(rng.choice(FORMS), text)


def _between_white_space(rng: random.Random) -> str:
    middle = _real(rng) if rng.random() < 0.5 else _mix(rng)
    return _white(rng) + middle + _white(rng)


def _white(rng: random.Random) -> str:
    """A run of white space: of one kind, or mixed."""
    kinds = WHITE_SPACE + NEARLY_WHITE if rng.random() < 0.5 else " \n\t\r"
    if rng.random() < 0.5:
        return rng.choice(kinds) * rng.randint(0, 4)
    return "".join(rng.choices(kinds, k=rng.randint(0, 5)))


def _marks_in_any_order(rng: random.Random) -> str:
    base = rng.choice(("a", "e", "o", "は", "ｶ", "א", "ا", "क", "½", " ", "", rng.choice(_atoms())))
    return base + "".join(rng.choices(marks(), k=rng.randint(1, 6))) + rng.choice(("", "x", " y"))


def _any_points(rng: random.Random) -> str:
    low, high = rng.choice(((0, 0x80), (0x80, 0x700), (0x700, 0xD800), (0xE000, 0x33500)))
    return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 8)))


def _run(rng: random.Random) -> str:
    piece = rng.choice(_atoms())
    return rng.choice(("", "a", " ")) + piece * rng.randint(2, 24) + rng.choice(("", "b", "1"))


def _words(rng: random.Random) -> str:
    """Words, numbers and signs with one or several spaces between them."""
    parts = []
    for _ in range(rng.randint(2, 7)):
        parts.append(rng.choice(_WORDS))
        parts.append(rng.choice(_GAPS))
    return "".join(parts[rng.randint(0, 1) :])


def _at_an_edge(rng: random.Random) -> str:
    """An odd piece a few bytes before or behind 16, 32 or 64 bytes."""
    size = rng.choice(EDGES) + rng.randint(-4, 3)
    filler = rng.choice(("a", "ab ", "the quick ", "1", " ", "é", "字", "x\n", "A"))
    text = (filler * size).encode()[:size].decode(errors="ignore")
    return text + rng.choice(_atoms()) + rng.choice(("", " tail", "\n", "  "))


def _newer(rng: random.Random) -> str:
    return rng.choice(("a", " ", "1", "'")) + rng.choice(NEWER) + rng.choice(("s", " ", "'s", "2"))


def _long(rng: random.Random) -> str:
    size = rng.randint(2000, 9000)
    if rng.random() < 0.5:
        text = rng.choice(sample_texts())
        start = rng.randrange(max(1, len(text) - size))
        return text[start : start + size]
    return "".join(rng.choices(_atoms(), k=size // 4))


_WORDS = (
    "the", "The", "THE", "tHe", "hello", "don't", "I'LL", "naïve", "Straße", "1", "123", "12345",
    "0x1F", "3.14", "|", "||", "...", "!", "(x)", "a_b", "foo/bar", "e-mail", "東京", "данные",
    "العربية", "हिन्दी", "👍🏽", "½", "x²", "$5", "#1", "don’t", "fi", "ﬁ", "C++", "a\u0301",
    "\u0301", "123abc",
)  # fmt: skip
_GAPS = (" ", " ", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", " \t ", "\r\n", "\xa0", "")
_SHAPES: tuple[tuple[float, Callable[[random.Random], str]], ...] = (
    (0.24, _mix),
    (0.42, _real),
    (0.54, _between_white_space),
    (0.64, _words),
    (0.74, _marks_in_any_order),
    (0.82, _any_points),
    (0.88, _run),
    (0.95, _at_an_edge),
    (0.99, _newer),
)


def _with_tokens(rng: random.Random, tokens: Sequence[str]) -> str:
    """Strings of this tokenizer's tokens: whole, cut, doubled, overlapping, between spaces."""
    one, other = rng.choice(tokens), rng.choice(tokens)
    shape = rng.randrange(9)
    if shape == 0:
        return one
    if shape == 1:
        return one * rng.randint(2, 4)
    if shape == 2:
        return one[: rng.randint(0, len(one))] + other[rng.randint(0, len(other)) :]
    if shape == 3:
        return _white(rng) + one + _white(rng) + other + _white(rng)
    if shape == 4:  # the end of one token may be the beginning of the other
        return one[: max(1, len(one) - 1)] + other + one[1:]
    if shape == 5:
        return rng.choice(("a", "1", ".", "é", "_")) + one + rng.choice(("b", "2", "!", "\u0323"))
    if shape == 6:
        return unicodedata.normalize(rng.choice(FORMS), one + _mix(rng)) + other
    if shape == 7:
        return rng.choice((one.upper(), one.lower(), one.title(), one.swapcase())) + " " + other
    parts = [rng.choice(tokens) if rng.random() < 0.4 else _mix(rng) for _ in range(4)]
    return "".join(parts)
