"""The slow twin of `--mix`: all documents in memory, chosen and sorted one by one.

It shares no code with what it checks but the tables of encodings.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from support import reference
from support.reference import MASK, mix

import tokenmill

GOLDEN, CHOICE, COPY = 0x9E3779B97F4A7C15, 0x2545F4914F6CDD1D, 0xD1342543DE82EF95
ORDER, HOLD_OUT = 1, 2
EOT = 50256
FRAMES = {"append": (0, 1), "prepend": (1, 0), "none": (0, 0)}  # separators around a document


class MixedDocument(NamedTuple):
    key: int
    source: int
    row: int
    ids: tuple[int, ...]


def position_key(seed: int, domain: int, source: int, position: int) -> int:
    value = seed
    for lane in (domain, source):
        value = mix((value + GOLDEN) & MASK) ^ mix((lane + GOLDEN) & MASK)
    value = mix((value + GOLDEN) & MASK)
    return mix(mix((position * GOLDEN + value) & MASK) ^ value)


def choice_key(key: int) -> int:
    return mix((key * GOLDEN + CHOICE) & MASK)


def copy_key(key: int, copy: int) -> int:
    return mix((key + mix((copy * GOLDEN + COPY) & MASK)) & MASK) if copy else key


def found_documents(
    manifest: Any, folder: Path, seed: int, held: float, columns: dict[str, str]
) -> tuple[dict[str, list[MixedDocument]], list[MixedDocument]]:
    """Documents to train on by the mixture's source, and those of the validation split."""
    train: dict[str, list[MixedDocument]] = {}
    val: list[MixedDocument] = []
    seen: dict[str, int] = {}
    for number, source in enumerate(manifest.sources):
        fingerprint = source["fingerprint"]
        twin = seen[fingerprint] = seen.get(fingerprint, -1) + 1
        lane = xxhash.xxh3_64_intdigest(f"{fingerprint} {twin}".encode())
        column = columns.get(source["mix"], "text")
        for row, (position, ids) in enumerate(rows_of(folder / source["name"], column)):
            document = MixedDocument(position_key(seed, ORDER, lane, position), number, row, ids)
            if position_key(seed, HOLD_OUT, lane, position) < int(held * 2**64):
                val.append(document)
            else:
                train.setdefault(source["mix"], []).append(document)
    return train, sorted(val)


def rows_of(path: Path, column: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Position and ids of every row, with a separator behind them; of a prepared dataset, its
    documents to train on that are whole."""
    if not path.is_dir():
        for position, text in reference.rows(path, column):
            yield position, (*reference.encoded("gpt2", text), EOT)
        return
    dataset = tokenmill.open_dataset(path)
    before, after = FRAMES[dataset.settings.first.eot]
    documents, position = dataset["train"].documents, 0
    for number in range(len(documents)):
        if documents.span(number) == documents.whole_span(number):
            ids = documents[number].tolist()
            assert ids[:before] == [EOT] * before
            text = ids[before : len(ids) - after]
            yield position, (*text, EOT)
            position += 1


def taken(documents: list[MixedDocument], budget: int, unit: str = "tokens") -> list[MixedDocument]:
    """Every copy that a budget takes, with its own key."""
    sizes = {document: len(document.ids) if unit == "tokens" else 1 for document in documents}
    there = sum(sizes.values())
    copies = dict.fromkeys(documents, budget // there)
    left = budget % there
    for document in sorted(documents, key=lambda one: choice_key(one.key)):
        if left > 0:
            copies[document] += 1
            left -= sizes[document]
    return [
        document._replace(key=copy_key(document.key, copy))
        for document, count in copies.items()
        for copy in range(count)
    ]


def whole_numbers(shares: list[Fraction]) -> list[int]:
    """Rounded so that the sum stays: each to where the sum up to it is rounded down."""
    ends = [int(sum(shares[: i + 1], Fraction(0))) for i in range(len(shares))]
    return [end - before for end, before in zip(ends, [0, *ends], strict=False)]


def origins(directory: Path, split: str) -> list[tuple[str, int]]:
    view = tokenmill.open_dataset(directory)[split].documents
    return [view.source(index) for index in range(len(view))]
