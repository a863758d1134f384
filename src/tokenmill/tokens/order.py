"""The order of a shuffled dataset: a key for every document, and where the keys are cut.

A document's key is a hash of the seed, its source and its position in it. The documents of a
dataset follow each other by their keys; those with the same key, by source and position. So the
order depends on the content of the inputs and on the seed, and on nothing else. docs/order.md
has the function and values to compare with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.inputs.source import Source
from tokenmill.settings import PlanSettings, Val
from tokenmill.texts import I64
from tokenmill.tokens.splits import GOLDEN_RATIO, U64, held_out, mix

# What a hash is for: the same document has another hash in another domain.
ORDER, HOLD_OUT = 1, 2

# Bump when the rule changes: pieces of files, and so their checksums, depend on it.
ORDER_RULE = 1
RANGE_BYTES = 64 << 20  # of tokens that are sorted at a time: 32M tokens of two bytes
MAX_RUNS = 8192  # sorted runs that a range is collected from: 8 KB of each
ENTRY_BYTES = 32  # added for each document: a billion empty ones are many ranges


def order_rule() -> list[int]:
    """Whatever decides how a shuffled job is cut: part of its plan. Tests make ranges small."""
    return [ORDER_RULE, _knob("RANGE_BYTES", RANGE_BYTES), _knob("MAX_RUNS", MAX_RUNS)]


def _knob(name: str, usual: int) -> int:
    value = os.environ.get(f"TOKENMILL_{name}", "")
    return int(value) if value.isdigit() and int(value) else usual


def in_plan_order(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Sources by fingerprint and name, numbered anew: the order of the inputs does not matter.
    Each knows its number among those of the same content."""
    numbered: list[Source] = []
    for source in sorted(sources, key=lambda one: (one.fingerprint, one.name)):
        twin = 0
        if numbered and numbered[-1].fingerprint == source.fingerprint:
            twin = numbered[-1].twin + 1
        numbered.append(msgspec.structs.replace(source, number=len(numbered), twin=twin))
    return tuple(numbered)


def source_key(fingerprint: str, twin: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{fingerprint} {twin}".encode())


def position_hash(seed: int, domain: int, source: int, positions: I64) -> U64:
    """A 64-bit hash of (seed, domain, source key, position) for each position."""
    key = np.array([seed % 2**64], np.uint64)
    for lane in (domain, source):
        key = mix(key + GOLDEN_RATIO) ^ mix(np.array([lane], np.uint64) + GOLDEN_RATIO)
    key = mix(key + GOLDEN_RATIO)
    return mix(mix(positions.astype(np.uint64) * GOLDEN_RATIO + key) ^ key)


def document_keys(seed: int, source: Source, positions: I64) -> U64:
    return position_hash(seed, ORDER, source_key(source.fingerprint, source.twin), positions)


def held_out_of(settings: PlanSettings, source: Source, positions: I64) -> npt.NDArray[np.bool_]:
    """Which documents are in the second stream; in a shuffled job, whatever the order."""
    val: Val = settings.val
    if not settings.shuffle or val.kind != "fraction":
        return held_out(val, settings.seed, source, positions)
    key = source_key(source.fingerprint, source.twin)
    return position_hash(settings.seed, HOLD_OUT, key, positions) < np.uint64(val.threshold)


def range_count(token_bytes: int, documents: int, range_bytes: int) -> int:
    """How many ranges of keys a job is cut into; keys are spread evenly."""
    return max(1, -(-(token_bytes + ENTRY_BYTES * documents) // range_bytes))


def range_bounds(number: int, count: int) -> tuple[int, int]:
    """The keys [low, high) of a range; of the last one, `high` is no 64-bit number."""
    return (number << 64) // count, ((number + 1) << 64) // count


def part_starts(sizes: I64, target: int) -> list[int]:
    """Where the parts of a range begin, of about `target` bytes each: one, unless the range is
    much longer. `sizes`: of its documents, in order."""
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    count = max(1, (total + target // 2) // target)
    parts = np.minimum(starts * count // max(1, total), count - 1)
    return [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist()]


def group_bounds(sizes: Sequence[int], most: int, memory: int) -> list[tuple[int, int]]:
    """Neighbouring runs [first, stop) to be merged, so that `most` are left; none longer than
    `memory`. A run that stays alone needs no merge."""
    together = -(-len(sizes) // most)
    groups: list[tuple[int, int]] = []
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and (index - first >= together or total + size > memory):
            groups.append((first, index))
            first, total = index, 0
        total += size
    return [*groups, (first, len(sizes))] if len(sizes) else []
