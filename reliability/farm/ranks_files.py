"""Drawing a .tiktoken file: consistent ranks, and ranks that no training gives."""

from __future__ import annotations

import binascii
import functools
import random

from reliability.farm.vocabularies import SIZES, byte_level
from tokenmill.tokenizer.bundled import PATTERN_ALIASES, PATTERNS, bundled_ranks

Ranks = dict[bytes, int]
OWN_PATTERNS = (
    r"\s+|\w+|[^\s\w]+",
    r" ?\p{L}+|\p{N}{1,2}|\s+$|[^\p{L}\p{N}]",
    r"[^\n]+|\n+",
    PATTERNS["llama3"].replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
)
PATTERN_NAMES = (*PATTERNS, *PATTERN_ALIASES)


@functools.cache
def _letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary means."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def as_bytes(token: str) -> bytes:
    return bytes(_letters()[letter] for letter in token)


@functools.cache
def trained(size: int, splits: str, part: int) -> tuple[tuple[bytes, int], ...]:
    return tuple((as_bytes(t), i) for t, i in byte_level(size, splits, part).ids.items())


@functools.cache
def first_of_gpt2(size: int) -> tuple[tuple[bytes, int], ...]:
    return tuple((t, rank) for t, rank in bundled_ranks("gpt2").items() if rank < size)


def draw_ranks(rng: random.Random) -> tuple[str, Ranks]:
    """Consistent ranks in half of the cases, then up to two changes."""
    ranks = consistent(rng)
    names = []
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        change = rng.choice((_swap, _drop, _holes, _move_bytes, _unreachable))
        ranks = change(rng, ranks)
        names.append((change.__doc__ or "").rstrip("."))
    return ", ".join(names) or "consistent", ranks


def consistent(rng: random.Random) -> Ranks:
    if rng.random() < 0.4:
        return dict(first_of_gpt2(rng.choice((300, 1000, 4000, 12000))))
    splits = rng.choice(("gpt2", "llama3", "none"))
    return dict(trained(rng.choice(SIZES), splits, rng.randrange(3)))


def _swap(rng: random.Random, ranks: Ranks) -> Ranks:
    """ranks swapped."""
    tokens = [token for token in ranks if len(token) > 1]
    for _ in range(rng.choice((1, 10, 200))):
        one, other = rng.choice(tokens), rng.choice(tokens)
        ranks[one], ranks[other] = ranks[other], ranks[one]
    return ranks


def _drop(rng: random.Random, ranks: Ranks) -> Ranks:
    """tokens left out, ranks closed up."""
    share = rng.choice((0.01, 0.1, 0.4))
    kept = [t for t in sorted(ranks, key=ranks.__getitem__) if len(t) == 1 or rng.random() > share]
    return {token: rank for rank, token in enumerate(kept)}


def _holes(rng: random.Random, ranks: Ranks) -> Ranks:
    """holes in the ranks."""
    start = rng.randrange(len(ranks))
    gap = rng.choice((1, 5, 100, 2000))
    return {token: rank + gap * (rank >= start) for token, rank in ranks.items()}


def _move_bytes(rng: random.Random, ranks: Ranks) -> Ranks:
    """ranks of bytes in another order, or behind other tokens."""
    if rng.random() < 0.5:
        bytes_only = [token for token in ranks if len(token) == 1]
        numbers = [ranks[token] for token in bytes_only]
        rng.shuffle(numbers)
        return {**ranks, **dict(zip(bytes_only, numbers, strict=True))}
    tokens = sorted(ranks, key=lambda token: (len(token) == 1, ranks[token]))
    return {token: rank for rank, token in enumerate(tokens)}


def _unreachable(rng: random.Random, ranks: Ranks) -> Ranks:
    """tokens whose parts are not there."""
    number = max(ranks.values()) + 1
    words = (
        b"hello world",
        b" the quick",
        b"\n \n",
        b"12345",
        b"\xe3\x81",
        b"don't",
        b"  |",
        b"\n ",
    )
    for word in rng.sample(words, rng.randint(1, len(words))):
        if word not in ranks:
            ranks[word] = number
            number += 1
    return ranks


def as_file(ranks: Ranks) -> bytes:
    lines = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(
        b"%b %d\n" % (binascii.b2a_base64(token, newline=False), rank) for token, rank in lines
    )
