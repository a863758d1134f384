"""Ids to the tokens of a unit: separators, dtype, splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import EncoderError
from tokenmill.inputs.batch import Fragment
from tokenmill.inputs.source import Source
from tokenmill.settings import Layout, PlanSettings
from tokenmill.texts import I64
from tokenmill.tokenizer.encoders.fast import U32
from tokenmill.tokens.order import document_keys, held_out_of
from tokenmill.tokens.splits import U64, streams_of

Tokens = npt.NDArray[np.unsignedinteger]
NOTHING: U64 = np.zeros(0, np.uint64)
# Why a document of a mixture is dropped. It is there without tokens, so that its key is known.
EMPTY, SHORT, LONG = 4, 8, 16
DROPPED = EMPTY | SHORT | LONG


class PackedStream(NamedTuple):
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
    # Of a shuffled job: the key of each document; in a range of keys, its place in the range.
    order: U64 = NOTHING
    sources: U64 = NOTHING  # in a range of keys: the source of each document, whose row it is
    flags: U64 = NOTHING  # of a mixture that drops documents: why each is dropped, or 0

    @property
    def arrays(self) -> tuple[Tokens, I64, I64, U64, U64, U64]:
        return self.tokens, self.lengths, self.rows, self.order, self.sources, self.flags

    @property
    def documents(self) -> int:
        """How many end here."""
        return len(self.lengths) - self.open - int(np.count_nonzero(self.flags))

    def ends(self) -> I64:
        return np.cumsum(self.lengths)[: self.documents]

    def starts(self) -> I64:
        return (np.cumsum(self.lengths) - self.lengths)[int(self.continued) :]

    def run_starts(self) -> I64:
        """Documents at which the row is not the one after its neighbour's."""
        if len(self.sources):  # in a range of keys every document is one
            return np.arange(self.documents)
        steps = np.diff(self.rows[: self.documents], prepend=-2)  # the first one begins a run
        return np.flatnonzero(steps != 1)


class _Stream:
    """One stream's part of a unit under construction."""

    def __init__(self, flagged: bool = False) -> None:
        """`flagged`: documents that are dropped are there, too."""
        self.flagged = flagged
        self.tokens: list[Tokens] = []
        self.lengths: list[I64] = []
        self.rows: list[I64] = []
        self.order: list[U64] = []
        self.flags: list[U64] = []
        self.continued = False
        self.open = False

    def add(self, packed: PackedStream) -> None:
        if len(packed.lengths):
            self.tokens.append(packed.tokens)
            self.lengths.append(packed.lengths)
            self.rows.append(packed.rows)
            self.order.append(packed.order)
            if self.flagged:
                none = np.zeros(len(packed.lengths), np.uint64)
                self.flags.append(packed.flags if len(packed.flags) else none)

    def add_fragment(self, tokens: Tokens, fragment: Fragment, row: int, order: U64) -> None:
        if self.lengths and not fragment.first:  # more of the document that is here already
            self.tokens.append(tokens)
            self.lengths[-1] = self.lengths[-1].copy()
            self.lengths[-1][-1] += len(tokens)
        else:
            self.continued = self.continued or not fragment.first
            length, rows = np.array([len(tokens)], np.int64), np.array([row], np.int64)
            self.add(PackedStream(tokens, length, rows, order=order))
        self.open = not fragment.last

    def finish(self, dtype: np.dtype[np.unsignedinteger]) -> PackedStream:
        return PackedStream(
            _join(self.tokens, dtype),
            _join(self.lengths, np.dtype(np.int64)),
            _join(self.rows, np.dtype(np.int64)),
            self.continued,
            self.open,
            _join(self.order, np.dtype(np.uint64)),
            flags=_join(self.flags, np.dtype(np.uint64)),
        )


def _join(parts: list[Any], dtype: np.dtype[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def rows_within(
    packed: list[PackedStream], documents_before: int, tokens_before: int, settings: PlanSettings
) -> int | None:
    """How many rows of a unit `--limit-docs` and `--limit-tokens` leave; None: all of them.

    A document is kept if fewer than `limit_docs` are before it and if it begins before token
    `limit_tokens`, or if it began in an earlier unit.
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

    def __init__(self, settings: PlanSettings, source: Source) -> None:
        self.settings = settings
        self.source = source
        self.layout = settings.first
        self.dtype = np.dtype(self.layout.dtype)
        self.flagged = settings.mixture is not None and settings.drops
        self.streams = [_Stream(self.flagged) for _ in streams_of(settings.val)]
        self.empty = self.dropped = self.too_short = self.too_long = 0

    def add(self, ids: U32, offsets: I64, positions: I64, rows: I64) -> None:
        """Whole documents."""
        self._refuse_foreign(ids)
        lengths = np.diff(offsets)
        self.empty += int(np.count_nonzero(lengths == 0))
        keep = self._kept(lengths)
        if keep is not None:
            if self.flagged:
                self._add_dropped(lengths, positions, rows, keep)
            ids = ids[np.repeat(keep, lengths)]
            lengths, positions, rows = lengths[keep], positions[keep], rows[keep]
            offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        if len(lengths) == 0:
            return
        tokens, lengths = add_separators(ids, offsets, lengths, self.settings, self.layout)
        packed = PackedStream(tokens, lengths, rows, order=self._keys(positions))
        sides = partition(packed, self._is_val(positions)) if len(self.streams) > 1 else (packed,)
        for stream, side in zip(self.streams, sides, strict=False):
            stream.add(side)

    def _add_dropped(
        self, lengths: I64, positions: I64, rows: I64, keep: npt.NDArray[np.bool_]
    ) -> None:
        """Documents that are dropped and would be trained on: keys without tokens."""
        which = ~keep
        if len(self.streams) > 1:
            which &= ~self._is_val(positions)
        lengths, nothing = lengths[which], np.zeros(int(which.sum()), np.int64)
        flags = np.where(lengths < max(self.settings.min_tokens, 1), SHORT, LONG)
        flags[lengths == 0] = EMPTY if self.settings.drop_empty else SHORT | EMPTY
        keys = self._keys(positions[which])
        none = np.zeros(0, self.dtype)
        packed = PackedStream(none, nothing, rows[which], order=keys, flags=flags.astype(np.uint64))
        self.streams[0].add(packed)

    def add_fragment(self, ids: U32, fragment: Fragment, position: int, row: int) -> None:
        """A piece of a document that is cut for encoding; its pieces come one after the other."""
        self._refuse_foreign(ids)
        before, after = frame_of(self.settings, self.layout)
        tokens = np.concatenate(
            (
                np.array(before if fragment.first else [], self.dtype),
                ids.astype(self.dtype),
                np.array(after if fragment.last else [], self.dtype),
            )
        )
        place = np.array([position], np.int64)
        is_val = len(self.streams) > 1 and self._is_val(place)[0]
        self.streams[int(is_val)].add_fragment(tokens, fragment, row, self._keys(place))

    def _refuse_foreign(self, ids: U32) -> None:
        if len(ids) and int(ids.max()) >= self.settings.vocab_size:
            raise EncoderError(f"id {int(ids.max())} is outside the vocabulary")

    def _kept(self, lengths: I64) -> npt.NDArray[np.bool_] | None:
        """Which documents are written; None: all. The others are counted by their reason."""
        settings = self.settings
        short = lengths < max(settings.min_tokens, int(settings.drop_empty))
        long = lengths > settings.max_tokens if settings.max_tokens else np.zeros_like(short)
        keep: npt.NDArray[np.bool_] = ~(short | long)
        if keep.all():
            return None
        self.dropped += int(np.count_nonzero(~keep))
        if settings.drop_empty:  # then a document that is empty is dropped for that reason
            short &= lengths > 0
        self.too_short += int(np.count_nonzero(short))
        self.too_long += int(np.count_nonzero(long))
        return keep

    def _is_val(self, positions: I64) -> npt.NDArray[np.bool_]:
        return held_out_of(self.settings, self.source, positions)

    def _keys(self, positions: I64) -> U64:
        """What orders the documents of a shuffled job or a mixture."""
        if not self.settings.by_key:
            return NOTHING
        return document_keys(self.settings.seed, self.source, positions)

    @property
    def documents(self) -> int:
        """How many are here, one that goes on included."""
        return sum(len(lengths) for stream in self.streams for lengths in stream.lengths)

    @property
    def tokens(self) -> int:
        return sum(len(tokens) for stream in self.streams for tokens in stream.tokens)

    @property
    def is_open(self) -> bool:
        return any(stream.open for stream in self.streams)

    def finish(self) -> list[PackedStream]:
        return [stream.finish(self.dtype) for stream in self.streams]


def add_separators(
    ids: U32, offsets: I64, lengths: I64, settings: PlanSettings, layout: Layout
) -> tuple[Tokens, I64]:
    """Put the separator before or after each document, and narrow to the output's dtype."""
    before, after = frame_of(settings, layout)
    dtype = np.dtype(layout.dtype)
    each = len(before) + len(after)
    if each == 0:
        return ids.astype(dtype), lengths
    ends = offsets + each * np.arange(len(offsets))
    tokens = np.empty(int(ends[-1]), dtype)
    is_text = np.ones(len(tokens), bool)
    for at, token in frames(ends, before, after):
        tokens[at], is_text[at] = token, False
    tokens[is_text] = ids
    return tokens, lengths + each


def frames(ends: I64, before: list[int], after: list[int]) -> Iterator[tuple[I64, int]]:
    """Places of each special id around documents; `ends` begins with the first one's start."""
    for place, token in enumerate(before):
        yield ends[:-1] + place, token
    for place, token in enumerate(after):
        yield ends[1:] - len(after) + place, token


def frame_of(settings: PlanSettings, layout: Layout) -> tuple[list[int], list[int]]:
    """The special ids before and behind each document's text."""
    before = [settings.eot_id] if layout.eot == "prepend" else []
    if settings.bos_id >= 0:
        before.append(settings.bos_id)
    return before, [settings.eot_id] if layout.eot == "append" else []


def partition(
    packed: PackedStream, is_val: npt.NDArray[np.bool_]
) -> tuple[PackedStream, PackedStream]:
    """Documents of the train split and of the validation split, each in order.

    By slices between the changes: few documents are for validation, so few slices are copied.
    """
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(packed.lengths)))
    changes = np.flatnonzero(is_val[1:] != is_val[:-1]) + 1
    bounds = [0, *changes.tolist(), len(is_val)]
    chunks: tuple[list[Tokens], list[Tokens]] = ([], [])
    for start, stop in itertools.pairwise(bounds):
        chunks[int(is_val[start])].append(packed.tokens[ends[start] : ends[stop]])
    sides = []
    for side, mask in zip(chunks, (~is_val, is_val), strict=True):
        tokens = _join(side, packed.tokens.dtype)
        order = packed.order[mask] if len(packed.order) else packed.order
        sides.append(PackedStream(tokens, packed.lengths[mask], packed.rows[mask], order=order))
    return sides[0], sides[1]
