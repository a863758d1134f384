"""Counts of rows, documents and tokens, which always add up."""

from __future__ import annotations

import msgspec

from tokenmill.inputs.segments import UnitId
from tokenmill.tokens.placement import StreamState


class Counts(msgspec.Struct, array_like=True):
    """rows = documents + dropped + quarantined + not chosen, in every unit, source and dataset."""

    rows: int = 0
    documents: int = 0
    dropped: int = 0
    quarantined: int = 0
    empty: int = 0
    tokens: int = 0
    text_bytes: int = 0
    special_strings: int = 0
    too_short: int = 0  # of the dropped: under --min-tokens
    too_long: int = 0
    filtered: int = 0  # of the dropped: rows that --where leaves out
    copies: int = 0  # of documents, beside the first: in a mixture with several epochs
    not_chosen: int = 0  # beyond a limit of a shuffled job, or not taken by a mixture

    def add(self, other: Counts) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    @property
    def written_or_lost(self) -> int:
        """Rows that were encoded, dropped or quarantined."""
        return self.documents + self.dropped + self.quarantined

    @property
    def balanced(self) -> bool:
        return self.rows == self.written_or_lost + self.not_chosen

    def to_dict(self) -> dict[str, int]:
        counts = {field: getattr(self, field) for field in self.__struct_fields__}
        for later in ("filtered", "copies", "not_chosen"):  # a dataset without them stays as it was
            if not counts[later]:
                del counts[later]
        return counts


class State(msgspec.Struct, frozen=True, array_like=True):
    """Where the next unit goes: all prefix sums over the units before it."""

    streams: tuple[StreamState, ...]
    source: int = 0
    rows: int = 0  # of that source, before the unit
    lines: int = 0
    quarantine_bytes: int = 0

    def entering(self, unit: UnitId) -> State:
        """The state as seen by a unit: rows are counted from 0 in each source."""
        if unit.source == self.source:
            return self
        return msgspec.structs.replace(self, source=unit.source, rows=0, lines=0)


class MixCounts(msgspec.Struct):
    """Documents of an input file that may be trained on, in a mixture: what there is in one epoch,
    and what is taken in all. `taken_documents` counts each document once."""

    there_documents: int = 0
    there_tokens: int = 0
    taken_documents: int = 0
    taken_tokens: int = 0
    copies: int = 0
    # Of a source that may be encoded in part: the largest choice key that is taken. Then what there
    # is was not counted, but estimated, and rows with larger keys count as not chosen.
    bound: int = 0

    @property
    def estimated(self) -> bool:
        return self.bound > 0

    def add(self, other: MixCounts) -> None:
        bound = max(self.bound, other.bound)
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.bound = bound
