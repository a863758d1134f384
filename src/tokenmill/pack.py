"""Ids to the token stream: separators, dtype, splits; and where each piece goes. All pure.

There are one or two streams of tokens. With a hashed fraction held out, `train` and `val` are two
streams, each in document order. With every other rule there is one stream, and val is its
beginning. A stream is cut into files by counting tokens, so the place of a unit is a prefix sum
of the units before it, and `lay_out` is that arithmetic.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.config import PlanSettings, Val
from tokenmill.encoders.fast import U32
from tokenmill.errors import EncoderError
from tokenmill.texts import I64

MASK = (1 << 64) - 1
Tokens = npt.NDArray[np.unsignedinteger]

# --- splits ----------------------------------------------------------------------------------


def streams_of(val: Val) -> tuple[tuple[str, ...], ...]:
    """For each stream, the splits that follow each other in it."""
    if val.kind == "fraction":
        return (("train",), ("val",))
    if val.kind == "none":
        return (("train",),)
    return (("val", "train"),)


def _mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def document_hash(seed: int, source: int, positions: I64) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each document's position: what decides its split, now and for ever."""
    key = _mix((_mix((seed + 0x9E3779B97F4A7C15) & MASK) + source * 0x9E3779B97F4A7C15) & MASK)
    with np.errstate(over="ignore"):
        value = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


# --- packing ---------------------------------------------------------------------------------


class Packed(NamedTuple):
    """What a unit adds to one stream."""

    tokens: Tokens
    lengths: I64  # tokens of each document, separator included
    rows: I64  # the row of each document, counted from the unit's first row

    def run_starts(self) -> I64:
        """Documents at which the row is not the one after its neighbour's."""
        if len(self.rows) == 0:
            return np.zeros(0, np.int64)
        breaks = np.flatnonzero(np.diff(self.rows) != 1) + 1
        return np.concatenate((np.zeros(1, np.int64), breaks))


class Packer:
    """Collects the batches of one unit."""

    def __init__(self, settings: PlanSettings, source: int) -> None:
        self.settings = settings
        self.source = source
        self.dtype = np.dtype(settings.dtype)
        self.threshold = settings.val.threshold
        self.parts: list[list[Packed]] = [[] for _ in streams_of(settings.val)]
        self.empty = 0
        self.dropped = 0

    def add(self, ids: U32, offsets: I64, positions: I64, rows: I64) -> None:
        lengths = np.diff(offsets)
        empty = int(np.count_nonzero(lengths == 0))
        self.empty += empty
        if empty and self.settings.drop_empty:
            keep = lengths > 0
            self.dropped += empty
            offsets = np.concatenate((offsets[:-1][keep], offsets[-1:]))
            lengths, positions, rows = lengths[keep], positions[keep], rows[keep]
        if len(ids) and int(ids.max()) >= self.settings.vocab_size:
            raise EncoderError(f"id {int(ids.max())} is outside the vocabulary")
        if len(lengths) == 0:
            return
        tokens, lengths = add_separators(ids, offsets, lengths, self.settings, self.dtype)
        whole = Packed(tokens, lengths, rows)
        if self.threshold:
            held_out = document_hash(self.settings.seed, self.source, positions) < np.uint64(
                self.threshold
            )
            if held_out.any():
                train, val = partition(whole, held_out)
                self._keep(0, train)
                self._keep(1, val)
                return
        self._keep(0, whole)

    def _keep(self, stream: int, packed: Packed) -> None:
        if len(packed.lengths):
            self.parts[stream].append(packed)

    def finish(self) -> list[Packed]:
        return [_concatenate(parts, self.dtype) for parts in self.parts]


def _concatenate(parts: list[Packed], dtype: np.dtype[np.unsignedinteger]) -> Packed:
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Packed(np.zeros(0, dtype), nothing, nothing)
    if len(parts) == 1:
        return parts[0]
    return Packed(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.rows for part in parts]),
    )


def add_separators(
    ids: U32,
    offsets: I64,
    lengths: I64,
    settings: PlanSettings,
    dtype: np.dtype[np.unsignedinteger],
) -> tuple[Tokens, I64]:
    """Put the separator before or after each document, and narrow to the output's dtype."""
    before, after = frame_of(settings)
    each = len(before) + len(after)
    if each == 0:
        return ids.astype(dtype), lengths
    documents = np.arange(len(lengths), dtype=np.int64)
    tokens = np.empty(len(ids) + each * len(lengths), dtype)
    text = np.ones(len(tokens), bool)
    for place, token in enumerate(before):
        at = offsets[:-1] + each * documents + place
        tokens[at], text[at] = token, False
    for place, token in enumerate(after):
        at = offsets[1:] + each * documents + len(before) + place
        tokens[at], text[at] = token, False
    tokens[text] = ids
    return tokens, lengths + each


def frame_of(settings: PlanSettings) -> tuple[list[int], list[int]]:
    """The special ids before and behind each document's text."""
    before = [settings.eot_id] if settings.eot == "prepend" else []
    if settings.bos_id >= 0:
        before.append(settings.bos_id)
    return before, [settings.eot_id] if settings.eot == "append" else []


def partition(packed: Packed, held_out: npt.NDArray[np.bool_]) -> tuple[Packed, Packed]:
    """Documents that stay and documents that are held out, each in order.

    By slices between the changes: few documents are held out, so few slices are copied.
    """
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(packed.lengths)))
    changes = np.flatnonzero(held_out[1:] != held_out[:-1]) + 1
    bounds = [0, *changes.tolist(), len(held_out)]
    chunks: tuple[list[Tokens], list[Tokens]] = ([], [])
    for start, stop in itertools.pairwise(bounds):
        chunks[int(held_out[start])].append(packed.tokens[ends[start] : ends[stop]])
    sides = []
    for side, mask in zip(chunks, (~held_out, held_out), strict=True):
        tokens = np.concatenate(side) if side else packed.tokens[:0]
        sides.append(Packed(tokens, packed.lengths[mask], packed.rows[mask]))
    return sides[0], sides[1]


# --- placing ---------------------------------------------------------------------------------


class StreamState(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream has come: everything that the place of the next unit depends on."""

    tokens: int = 0
    documents: int = 0
    runs: int = 0
    split: int = 0  # index into the stream's splits
    split_start: int = 0  # token at which that split begins
    file: int = 0  # number of the current file in its split, holes possible
    file_start: int = 0  # token at which that file begins


class Piece(NamedTuple):
    """Tokens [start, stop) of a unit go to `file` of `split`, at token `at` of that file."""

    split: str
    file: int
    at: int
    start: int
    stop: int


class NeedStarts(Exception):  # noqa: N818 - an answer, not a fault
    """A file ends at a document of this unit: only who holds its lengths can lay it out."""


class CutRule(msgspec.Struct, frozen=True):
    """How one stream is cut into splits and files."""

    splits: tuple[str, ...]
    shard_tokens: int  # 0: one file per split
    by_document: bool
    val: Val

    @classmethod
    def all_of(cls, settings: PlanSettings) -> list[CutRule]:
        by_document = settings.cut == "document"
        return [
            cls(splits, settings.shard_tokens, by_document, settings.val)
            for splits in streams_of(settings.val)
        ]

    def lay_out(
        self, state: StreamState, tokens: int, documents: int, runs: int, starts: I64 | None
    ) -> tuple[list[Piece], StreamState]:
        """Where a unit's tokens go, and the state after it.

        `starts` are the first tokens of its documents; None where they are not at hand, which
        raises NeedStarts if the answer depends on them. A unit holds whole documents.
        """
        pieces: list[Piece] = []
        position, end = state.tokens, state.tokens + tokens
        split, split_start = state.split, state.split_start
        file, file_start = state.file, state.file_start
        while True:
            split_ends = self._split_end(split, state, end, documents, starts)
            file_ends = self._file_end(split_start, file, state, end, starts)
            stop = min(x for x in (split_ends, file_ends, end) if x is not None)
            if stop > position:
                name = self.splits[split]
                at, unit = position - file_start, state.tokens
                pieces.append(Piece(name, file, at, position - unit, stop - unit))
                position = stop
            if split_ends == stop:
                split, split_start, file, file_start = split + 1, stop, 0, stop
            elif file_ends == stop:
                ahead = (stop - split_start) // self.shard_tokens
                file, file_start = max(file + 1, ahead), stop
            else:
                break
        return pieces, StreamState(
            tokens=end,
            documents=state.documents + documents,
            runs=state.runs + runs,
            split=split,
            split_start=split_start,
            file=file,
            file_start=file_start,
        )

    def _split_end(
        self, split: int, state: StreamState, end: int, documents: int, starts: I64 | None
    ) -> int | None:
        """The token before which the val split ends, if that is in this unit; else None."""
        if split == len(self.splits) - 1:
            return None
        if self.val.kind == "docs":
            index = self.val.amount - state.documents
            if index >= documents:
                return None
            if index <= 0:
                return state.tokens
            if starts is None:
                raise NeedStarts
            at = state.tokens + int(starts[index])
            return at if at < end else None
        if self.val.kind == "tokens":
            return self._first_start_from(self.val.amount, state, end, starts)
        return self._cut_at(self.shard_tokens, state, end, starts)

    def _file_end(
        self, split_start: int, file: int, state: StreamState, end: int, starts: I64 | None
    ) -> int | None:
        if not self.shard_tokens:
            return None
        return self._cut_at(split_start + (file + 1) * self.shard_tokens, state, end, starts)

    def _cut_at(self, at: int, state: StreamState, end: int, starts: I64 | None) -> int | None:
        if self.by_document:
            return self._first_start_from(at, state, end, starts)
        return at if at < end else None

    def _first_start_from(
        self, at: int, state: StreamState, end: int, starts: I64 | None
    ) -> int | None:
        """The first document that starts at token `at` or later, if it is in this unit."""
        if at >= end:
            return None
        if at <= state.tokens:
            return state.tokens
        if starts is None:
            raise NeedStarts
        index = int(np.searchsorted(starts, at - state.tokens))
        if index == len(starts):
            return None  # the next unit's first document: found when that unit is laid out
        found = state.tokens + int(starts[index])
        return found if found < end else None
