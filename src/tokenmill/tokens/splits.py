"""Splits: which stream of tokens a document belongs to.

There are one or two streams. Where a hashed fraction of the documents is the validation split, or
whole sources are, `train` and `val` are two streams, each in document order. With every other rule
there is one stream, and the validation split is its beginning, or (`tail`) its end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.inputs.source import Source
from tokenmill.settings import Val
from tokenmill.texts import I64

U64 = npt.NDArray[np.uint64]
GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
# A product with these undoes a product with a constant of `mix`.
UNMIX_1: np.uint64 = np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
UNMIX_2: np.uint64 = np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))


def streams_of(val: Val) -> tuple[tuple[str, ...], ...]:
    """For each stream, the splits that follow each other in it."""
    if val.kind in ("fraction", "given", "split"):
        return (("train",), ("val",))
    if val.kind == "none":
        return (("train",),)
    if val.kind == "tail":
        return (("train", "val"),)
    return (("val", "train"),)


def mix(value: U64) -> U64:
    """The finaliser of splitmix64; arrays of uint64 wrap around without a warning."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def unmix(value: U64) -> U64:
    """What `mix` made this of."""
    value = value ^ (value >> np.uint64(31)) ^ (value >> np.uint64(62))
    value = value * UNMIX_2
    value = value ^ (value >> np.uint64(27)) ^ (value >> np.uint64(54))
    value = value * UNMIX_1
    before: U64 = value ^ (value >> np.uint64(30)) ^ (value >> np.uint64(60))
    return before


def document_hash(seed: int, source: int, positions: I64) -> U64:
    """A 64-bit hash of each document's position: what decides its split, now and for ever."""
    key = np.array([seed % 2**64], np.uint64) + GOLDEN_RATIO
    key = mix(mix(key) + np.array([source], np.uint64) * GOLDEN_RATIO)
    return mix(positions.astype(np.uint64) * GOLDEN_RATIO + key)


def held_out(val: Val, seed: int, source: Source, positions: I64) -> npt.NDArray[np.bool_]:
    """Which documents of a source are in the second stream, where there are two."""
    if val.kind == "split":
        return np.full(len(positions), source.split == "val")
    return document_hash(seed, source.number, positions) < np.uint64(val.threshold)


def stream_name(splits: tuple[str, ...]) -> str:
    return splits[0] if len(splits) == 1 else "all"


class WorkingFile(NamedTuple):
    """A token file while it grows: the split that it holds, and its number in that split."""

    split: str
    number: int

    @property
    def name(self) -> str:
        return f"tokens-{self.split}-{self.number:06d}"

    @classmethod
    def named(cls, name: str) -> WorkingFile | None:
        """The token file of that name; None where it is the name of another file."""
        match name.split("-"):
            case ["tokens", split, number] if number.isdigit():
                return cls(split, int(number))
        return None
