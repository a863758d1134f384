"""Ids that are known before a batch is encoded: put together with those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.texts import I64, Flags, offsets_of
from tokenmill.tokenizer.encoders.fast import U32


class KnownIds(NamedTuple):
    """The ids of some documents of a batch."""

    documents: I64  # by number in the batch, in order
    ids: U32
    lengths: I64

    def mask(self, documents: int) -> Flags:
        """Which documents of a batch these are."""
        mine = np.zeros(documents, bool)
        mine[self.documents] = True
        return mine


def join_known(parts: Sequence[KnownIds], documents: int) -> tuple[U32, I64]:
    """All documents of a batch, each in one of the parts, in the order of the batch."""
    lengths, owner = np.zeros(documents, np.int64), np.zeros(documents, np.int8)
    for number, part in enumerate(parts):
        lengths[part.documents], owner[part.documents] = part.lengths, number
    offsets = offsets_of(lengths)
    if len(parts) == 1:
        return parts[0].ids, offsets
    ids, owners = np.empty(int(offsets[-1]), np.uint32), np.repeat(owner, lengths)
    for number, part in enumerate(parts):
        ids[owners == number] = part.ids
    return ids, offsets
