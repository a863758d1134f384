"""The slow twin of `--shuffle`: every document read, encoded with the reference, and sorted.

It shares no code with what it checks but the tables of encodings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from support import reference
from support.reference import MASK, mix

import tokenmill

GOLDEN = 0x9E3779B97F4A7C15
ORDER, HOLD_OUT = 1, 2


def key(seed: int, domain: int, fingerprint: str, twin: int, position: int) -> int:
    """The function of docs/order.md, one document at a time."""
    source = xxhash.xxh3_64_intdigest(f"{fingerprint} {twin}".encode())
    value = seed
    for lane in (domain, source):
        value = mix((value + GOLDEN) & MASK) ^ mix((lane + GOLDEN) & MASK)
    value = mix((value + GOLDEN) & MASK)
    return mix(mix((position * GOLDEN + value) & MASK) ^ value)


class Document(NamedTuple):
    key: int
    source: int
    position: int
    row: int
    hold_out: int
    ids: list[int]


def sources_of(files: dict[str, Path], manifest: Any) -> list[tuple[Path, str, int]]:
    """Path, fingerprint and number among equals; `files` by name."""
    known = [(str(one["fingerprint"]), str(one["name"])) for one in manifest.sources]
    assert known == sorted(known)
    seen: dict[str, int] = {}
    found = []
    for fingerprint, name in known:
        twin = seen[fingerprint] = seen.get(fingerprint, -1) + 1
        found.append((files[name], fingerprint, twin))
    return found


def documents(
    files: dict[str, Path], manifest: Any, seed: int, eot: str = "append"
) -> list[Document]:
    """All documents in their order."""
    found = []
    for source, (path, fingerprint, twin) in enumerate(sources_of(files, manifest)):
        for row, (_, position, ids) in enumerate(reference.documents([path], "gpt2", eot)):
            place = fingerprint, twin, position
            found.append(
                Document(
                    key(seed, ORDER, *place), source, position, row,
                    key(seed, HOLD_OUT, *place), ids,
                )
            )  # fmt: skip
    return sorted(found)


def origins(directory: Path, split: str) -> list[tuple[str, int]]:
    view = tokenmill.open_dataset(directory)[split].documents
    return [view.source(index) for index in range(len(view))]
