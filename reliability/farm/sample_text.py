"""Real text in 297 languages, from the bundled sample: for training and for documents."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pyarrow.parquet

SAMPLE = Path(__file__).resolve().parent.parent.parent / "sample"
TRAINING_CHARACTERS = 300  # of each text: 200 KB together


@functools.cache
def sample_texts() -> tuple[str, ...]:
    """All texts of the sample, always in the same shuffled order."""
    texts: list[str] = []
    for path in sorted(SAMPLE.glob("*.parquet")):
        texts += pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist()
    random.Random("sample").shuffle(texts)
    return tuple(texts)


@functools.cache
def training_texts(part: int = 0) -> tuple[str, ...]:
    """About 200 KB to train on. Another part gives another vocabulary."""
    rng = random.Random(f"training {part}")
    cut = []
    for text in sample_texts():
        start = rng.randrange(max(1, len(text) - TRAINING_CHARACTERS))
        cut.append(text[start : start + TRAINING_CHARACTERS])
    return tuple(cut[:600])


@functools.cache
def snippets() -> tuple[str, ...]:
    """Short pieces of real text, 2 to 60 characters, in all languages."""
    rng = random.Random("snippets")
    found = []
    for text in sample_texts():
        for _ in range(12):
            start = rng.randrange(max(1, len(text)))
            found.append(text[start : start + rng.randint(2, 60)])
    return tuple(found)
