"""Ids to the token stream: separators, dtype, splits; and where each piece goes. All pure.

There are one or two streams of tokens. With a hashed fraction held out, `train` and `val` are two
streams, each in document order. With every other rule there is one stream, and val is its
beginning. A stream is cut into files by counting tokens, so the place of a unit is a prefix sum
of the units before it, and `lay_out` is that arithmetic.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.batch import Fragment
from tokenmill.config import PlanSettings, Val
from tokenmill.encoders.fast import U32
from tokenmill.errors import EncoderError, TokenmillError
from tokenmill.texts import I64

MASK = (1 << 64) - 1
Tokens = npt.NDArray[np.unsignedinteger]

# --- splits ----------------------------------------------------------------------------------


def streams_of(val: Val) -> tuple[tuple[str, ...], ...]:
    """For each stream, the splits that follow each other in it."""
    if val.kind in ("fraction", "given"):
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
    """What a unit adds to one stream.

    A giant text is cut for encoding, so that the first document of a unit may have begun in an
    earlier one (`continued`) and the last one may go on in the next (`open`). A document counts
    where it ends.
    """

    tokens: Tokens
    lengths: I64  # tokens of each document here, separator included
    rows: I64  # the row of each document, counted from the unit's first row
    continued: bool = False
    open: bool = False

    @property
    def arrays(self) -> tuple[Tokens, I64, I64]:
        return self.tokens, self.lengths, self.rows

    @property
    def documents(self) -> int:
        """How many end here."""
        return len(self.lengths) - self.open

    def ends(self) -> I64:
        return np.cumsum(self.lengths)[: self.documents]

    def starts(self) -> I64:
        return (np.cumsum(self.lengths) - self.lengths)[int(self.continued) :]

    def run_starts(self) -> I64:
        """Documents at which the row is not the one after its neighbour's."""
        if self.documents == 0:
            return np.zeros(0, np.int64)
        breaks = np.flatnonzero(np.diff(self.rows[: self.documents]) != 1) + 1
        return np.concatenate((np.zeros(1, np.int64), breaks))


class _Stream:
    """One stream's part of a unit under construction."""

    def __init__(self) -> None:
        self.tokens: list[Tokens] = []
        self.lengths: list[I64] = []
        self.rows: list[I64] = []
        self.continued = False
        self.open = False

    def add(self, tokens: Tokens, lengths: I64, rows: I64) -> None:
        if len(lengths):
            self.tokens.append(tokens)
            self.lengths.append(lengths)
            self.rows.append(rows)

    def add_fragment(self, tokens: Tokens, fragment: Fragment, row: int) -> None:
        if self.lengths and not fragment.first:  # more of the document that is here already
            self.tokens.append(tokens)
            self.lengths[-1] = self.lengths[-1].copy()
            self.lengths[-1][-1] += len(tokens)
        else:
            self.continued = self.continued or not fragment.first
            self.add(tokens, np.array([len(tokens)], np.int64), np.array([row], np.int64))
        self.open = not fragment.last

    def finish(self, dtype: np.dtype[np.unsignedinteger]) -> Packed:
        nothing = np.zeros(0, np.int64)
        return Packed(
            _join(self.tokens, np.zeros(0, dtype)),
            _join(self.lengths, nothing),
            _join(self.rows, nothing),
            self.continued,
            self.open,
        )


def _join(parts: list[Any], nothing: Any) -> Any:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else nothing


def rows_within(
    packed: list[Packed], documents_before: int, tokens_before: int, settings: PlanSettings
) -> int | None:
    """How many rows of a unit `--limit-docs` and `--limit-tokens` leave; None: all of them.

    A document is in if fewer than `limit_docs` stand before it and if it begins before token
    `limit_tokens`; one that began in an earlier unit is.
    """
    rows = np.concatenate([p.rows for p in packed])
    lengths = np.concatenate([p.lengths for p in packed])
    order = np.argsort(rows, kind="stable")
    rows, lengths = rows[order], lengths[order]
    starts = tokens_before + np.cumsum(lengths) - lengths
    inside = np.ones(len(rows), bool)
    if settings.limit_docs:
        inside &= documents_before + np.arange(len(rows)) < settings.limit_docs
    if settings.limit_tokens:
        inside &= starts < settings.limit_tokens
    if any(p.continued for p in packed):
        inside[:1] = True
    count = int(np.count_nonzero(inside))
    if count == len(rows):
        enough = 0 < settings.limit_docs <= documents_before + count
        enough |= 0 < settings.limit_tokens <= tokens_before + int(lengths.sum())
        if not enough or any(p.open for p in packed):
            return None  # else rows behind the last document, bad ones say, are out too
    return int(rows[count - 1]) + 1 if count else 0


class Packer:
    """Collects the batches of one unit."""

    def __init__(self, settings: PlanSettings, source: int) -> None:
        self.settings = settings
        self.source = source
        self.dtype = np.dtype(settings.dtype)
        self.threshold = settings.val.threshold
        self.streams = [_Stream() for _ in streams_of(settings.val)]
        self.empty = self.dropped = self.too_short = self.too_long = 0

    def add(self, ids: U32, offsets: I64, positions: I64, rows: I64) -> None:
        """Whole documents."""
        self._refuse_foreign(ids)
        lengths = np.diff(offsets)
        self.empty += int(np.count_nonzero(lengths == 0))
        keep = self._kept(lengths)
        if keep is not None:
            ids = ids[np.repeat(keep, lengths)]
            lengths, positions, rows = lengths[keep], positions[keep], rows[keep]
            offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        if len(lengths) == 0:
            return
        tokens, lengths = add_separators(ids, offsets, lengths, self.settings, self.dtype)
        if self.threshold:
            held_out = self._held_out(positions)
            if held_out.any():
                sides = partition(Packed(tokens, lengths, rows), held_out)
                for stream, side in zip(self.streams, sides, strict=True):
                    stream.add(side.tokens, side.lengths, side.rows)
                return
        self.streams[0].add(tokens, lengths, rows)

    def add_fragment(self, ids: U32, fragment: Fragment, position: int, row: int) -> None:
        """A piece of a document that is cut for encoding; its pieces come one after the other."""
        self._refuse_foreign(ids)
        before, after = frame_of(self.settings)
        tokens = np.concatenate(
            (
                np.array(before if fragment.first else [], self.dtype),
                ids.astype(self.dtype),
                np.array(after if fragment.last else [], self.dtype),
            )
        )
        held_out = bool(self.threshold) and self._held_out(np.array([position], np.int64))[0]
        self.streams[int(held_out)].add_fragment(tokens, fragment, row)

    def _refuse_foreign(self, ids: U32) -> None:
        if len(ids) and int(ids.max()) >= self.settings.vocab_size:
            raise EncoderError(f"id {int(ids.max())} is outside the vocabulary")

    def _kept(self, lengths: I64) -> npt.NDArray[np.bool_] | None:
        """Which documents are written; None: all. The others are counted by their reason."""
        settings = self.settings
        short = lengths < max(settings.min_tokens, int(settings.drop_empty))
        long = lengths > settings.max_tokens if settings.max_tokens else np.zeros_like(short)
        drop = short | long
        if not drop.any():
            return None
        self.dropped += int(np.count_nonzero(drop))
        if settings.min_tokens:
            below = lengths < settings.min_tokens
            if settings.drop_empty:  # then its being empty is the reason
                below &= lengths > 0
            self.too_short += int(np.count_nonzero(below))
        self.too_long += int(np.count_nonzero(long))
        keep: npt.NDArray[np.bool_] = ~drop
        return keep

    def _held_out(self, positions: I64) -> npt.NDArray[np.bool_]:
        hashes = document_hash(self.settings.seed, self.source, positions)
        return hashes < np.uint64(self.threshold)

    def finish(self) -> list[Packed]:
        return [stream.finish(self.dtype) for stream in self.streams]


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
    open: bool = False  # a document has begun and not ended


class StreamCounts(msgspec.Struct, frozen=True, array_like=True):
    """What the place of the next unit depends on: all that a coordinator learns of a unit."""

    tokens: int
    documents: int  # that end in the unit
    runs: int
    continued: bool = False  # its first document began in an earlier unit
    open: bool = False  # its last document goes on in the next

    @classmethod
    def of(cls, packed: Packed) -> StreamCounts:
        runs = len(packed.run_starts())
        return cls(len(packed.tokens), packed.documents, runs, packed.continued, packed.open)


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
        self, state: StreamState, counts: StreamCounts, starts: I64 | None
    ) -> tuple[list[Piece], StreamState]:
        """Where a unit's tokens go, and the state after it.

        `starts` are the first tokens of the documents that begin in it; None where they are not
        at hand, which raises NeedStarts if the answer depends on them.
        """
        if counts.tokens and counts.continued != state.open:
            raise TokenmillError("a unit does not go on where the one before it ends")
        pieces: list[Piece] = []
        position, end = state.tokens, state.tokens + counts.tokens
        split, split_start = state.split, state.split_start
        file, file_start = state.file, state.file_start
        while True:
            split_ends = self._split_end(split, state, end, counts, starts)
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
            documents=state.documents + counts.documents,
            runs=state.runs + counts.runs,
            split=split,
            split_start=split_start,
            file=file,
            file_start=file_start,
            open=counts.open if counts.tokens or counts.documents else state.open,
        )

    def _split_end(
        self, split: int, state: StreamState, end: int, counts: StreamCounts, starts: I64 | None
    ) -> int | None:
        """The token before which the val split ends, if that is in this unit; else None."""
        if split == len(self.splits) - 1:
            return None
        if self.val.kind == "docs":
            index = self.val.amount - state.documents - state.open  # among those that begin here
            if index >= counts.documents - state.open + counts.open:
                return None
            if index <= 0 and not state.open:
                return state.tokens
            if starts is None:
                raise NeedStarts
            at = state.tokens + int(starts[max(0, index)])
            return at if at < end else None
        if self.val.kind == "tokens":
            return self._first_start_from(self.val.amount, state, end, starts)
        return self._cut_at(self.val.amount or self.shard_tokens, state, end, starts)

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
        if at <= state.tokens and not state.open:
            return state.tokens
        if starts is None:
            raise NeedStarts
        index = int(np.searchsorted(starts, at - state.tokens))
        if index == len(starts):
            return None  # the next unit's first document: found when that unit is laid out
        found = state.tokens + int(starts[index])
        return found if found < end else None
