"""Where each piece of a unit goes.

A stream is cut into files by counting tokens, so the place of a unit is a prefix sum of the units
before it. `CutRule.lay_out` is that arithmetic, for the coordinator, the worker, commit, export
and verify.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tokenmill.errors import TokenmillError
from tokenmill.settings import Layout, PlanSettings, Val
from tokenmill.texts import I64
from tokenmill.tokens.packing import PackedStream
from tokenmill.tokens.splits import streams_of


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
    def of(cls, packed: PackedStream) -> StreamCounts:
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
    splits_known: bool = False  # of a tail: where it begins

    @classmethod
    def all_of(cls, settings: PlanSettings, layout: Layout) -> list[CutRule]:
        by_document = layout.cut == "document"
        return [
            cls(splits, layout.shard_tokens, by_document, settings.val)
            for splits in streams_of(settings.val)
        ]

    def knowing(self, tokens: int) -> CutRule:
        """The rule for a stream whose length is known: only then is it known where a tail begins.
        Until then, in a run, all tokens are train."""
        if self.val.kind != "tail":
            return self
        val = msgspec.structs.replace(self.val, amount=self.val.tail_start(tokens))
        return msgspec.structs.replace(self, val=val, splits_known=True)

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
            file_ends = None
            if self.shard_tokens:
                at = split_start + (file + 1) * self.shard_tokens
                file_ends = self._cut_at(at, self.by_document, state, end, starts)
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
        """The token before which the validation split ends, if that is in this unit; else None."""
        if split == len(self.splits) - 1 or (self.val.kind == "tail" and not self.splits_known):
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
        at, by_document = self.val.amount, self.by_document
        if self.val.kind == "shard":
            at = at or self.shard_tokens
        return self._cut_at(at, by_document or self.val.kind == "tokens", state, end, starts)

    def _cut_at(
        self, at: int, by_document: bool, state: StreamState, end: int, starts: I64 | None
    ) -> int | None:
        """Token `at`, or the first document that starts there or later, if it is in this unit."""
        if at >= end:
            return None
        if not by_document:
            return at
        if at <= state.tokens and not state.open:
            return state.tokens
        if starts is None:
            raise NeedStarts
        index = int(np.searchsorted(starts, at - state.tokens))
        if index == len(starts):
            return None  # the next unit's first document: found when that unit is laid out
        found = state.tokens + int(starts[index])
        return found if found < end else None
