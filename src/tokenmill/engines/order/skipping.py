"""Documents of a mixture that are not encoded, since they will hardly be taken.

A mixture takes the documents with the smallest choice keys (`tokens/epochs.py`). Where only a part
of a source is taken, documents above an estimated bound are skipped. If the bound proves too
low, the inputs are read once more, and the documents between it and a higher one are encoded.
Documents of the validation split are always encoded, in the first pass.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tokenmill.inputs.batch import Batch
from tokenmill.inputs.source import Source
from tokenmill.planning.plan import Plan
from tokenmill.settings import PlanSettings
from tokenmill.tokens.epochs import EVERYTHING, choice_keys
from tokenmill.tokens.order import document_keys, held_out_of
from tokenmill.tokens.splits import streams_of


class Skipping(msgspec.Struct, frozen=True):
    """For each input file the choice keys (above, up to) of documents that are encoded; `above`
    -1: from the first on. `further`: in a pass that is not the first."""

    bounds: tuple[tuple[int, int], ...]
    further: bool = False

    def wanted(self, settings: PlanSettings, source: Source, batch: Batch) -> Batch:
        """The documents of a batch that are encoded."""
        above, up_to = self.bounds[source.number]
        if not self.further and up_to == EVERYTHING:
            return batch
        keys = choice_keys(document_keys(settings.seed, source, batch.positions))
        inside = keys <= np.uint64(up_to)
        if above >= 0:
            inside &= keys > np.uint64(above)
        if len(streams_of(settings.val)) > 1:
            held = held_out_of(settings, source, batch.positions)
            inside = inside & ~held if self.further else inside | held
        if inside.all():
            return batch
        return batch._replace(
            texts=batch.texts.only(inside),
            rows=batch.rows[inside],
            positions=batch.positions[inside],
        )


def first_pass(plan: Plan, bounds: dict[str, int]) -> Skipping | None:
    """What is encoded in the first pass; None: everything."""
    if not bounds:
        return None
    return Skipping(tuple((-1, bounds.get(source.mix, EVERYTHING)) for source in plan.sources))


def only_fatal(batch: Batch) -> Batch:
    """Without the bad rows that the first pass found, too."""
    return batch._replace(bad=[bad for bad in batch.bad if bad.fatal])
