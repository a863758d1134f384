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

from tokenmill.inputs.segments import UnitId
from tokenmill.inputs.source import Source
from tokenmill.settings import PlanSettings, Val
from tokenmill.texts import I64
from tokenmill.tokens.splits import GOLDEN_RATIO, U64, held_out, mix, unmix

# What a hash is for: the same document has another hash in another domain.
ORDER, HOLD_OUT, EXPORT = 1, 2, 3

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


# Numbers behind those of the inputs: ranges of keys, merged runs, documents that are taken. Behind
# these are the inputs again, once for each further pass over them.
STEPS = 3


def pass_source(number: int, source: int, sources: int) -> int:
    """The number of a source in a further pass (1, 2 ...); `sources`: how many a plan has."""
    return source if number == 0 else number * sources + STEPS + source


def origin_of(number: int, sources: int) -> int:
    """The input that a number stands for, in whatever pass; -1: a step of the second half."""
    if number < sources:
        return number
    is_further = sources and number >= sources + STEPS
    return (number - sources - STEPS) % sources if is_further else -1


def run_name(unit: UnitId) -> str:
    """The file of a unit's documents, sorted by key."""
    return f"sorted-{unit}"


def source_key(fingerprint: str, twin: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{fingerprint} {twin}".encode())


def _lane_key(seed: int, domain: int, source: int) -> U64:
    key = np.array([seed % 2**64], np.uint64)
    for lane in (domain, source):
        key = mix(key + GOLDEN_RATIO) ^ mix(np.array([lane], np.uint64) + GOLDEN_RATIO)
    return mix(key + GOLDEN_RATIO)


def position_hash(seed: int, domain: int, source: int, positions: I64) -> U64:
    """A 64-bit hash of (seed, domain, source key, position) for each position."""
    key = _lane_key(seed, domain, source)
    return mix(mix(positions.astype(np.uint64) * GOLDEN_RATIO + key) ^ key)


def export_keys(seed: int, checksum: str, stream: int, numbers: I64) -> U64:
    """The keys of `export --shuffle`: of documents by their number in a stream of the dataset with
    that checksum. Different numbers have different keys."""
    return position_hash(seed, EXPORT, source_key(checksum, stream), numbers)


def export_numbers(seed: int, checksum: str, stream: int, keys: U64) -> I64:
    """The numbers that have these keys: every step of the hash can be undone."""
    (last,) = _lane_key(seed, EXPORT, source_key(checksum, stream))
    undone: np.uint64 = np.uint64(pow(int(GOLDEN_RATIO), -1, 1 << 64))
    numbers: I64 = ((unmix(unmix(keys) ^ last) - last) * undone).astype(np.int64)
    return numbers


def place_keys(places: I64, documents: int) -> U64:
    """Keys that keep documents in their order, spread as evenly as hashes are."""
    return places.astype(np.uint64) * np.uint64((1 << 64) // max(2, documents))


def document_keys(seed: int, source: Source, positions: I64) -> U64:
    return position_hash(seed, ORDER, source_key(source.fingerprint, source.twin), positions)


def held_out_of(settings: PlanSettings, source: Source, positions: I64) -> npt.NDArray[np.bool_]:
    """Which documents are in the second stream; where documents have keys, whatever their order."""
    val: Val = settings.val
    if not settings.by_key or val.kind != "fraction":
        return held_out(val, settings.seed, source, positions)
    key = source_key(source.fingerprint, source.twin)
    return position_hash(settings.seed, HOLD_OUT, key, positions) < np.uint64(val.threshold)


def range_count(token_bytes: int, documents: int, range_bytes: int) -> int:
    """How many ranges of keys a job is cut into; keys are spread evenly."""
    return max(1, -(-(token_bytes + ENTRY_BYTES * documents) // range_bytes))


def range_bounds(number: int, count: int) -> tuple[int, int]:
    """The keys [low, high) of a range; of the last one, `high` is no 64-bit number."""
    return (number << 64) // count, ((number + 1) << 64) // count


def range_of(number: int, counts: Sequence[int]) -> tuple[int, int, int]:
    """The group of a range, and its keys [low, high). The groups follow one another, and each is
    cut into as many ranges as `counts` says."""
    for group, count in enumerate(counts):
        if number < count:
            return group, *range_bounds(number, count)
        number -= count
    raise ValueError(f"range {number} is behind the last one")


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
