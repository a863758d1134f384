"""What the sources of a mixture have to train on, where that is known before anything is encoded.

Prepared datasets know the length of every document. Parquet files with the column `token_count` say
it for every row. So what is in the validation split, and what is dropped, is known, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tokenmill.errors import UsageError
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.source import Source
from tokenmill.output.prepared.reader import document_lengths
from tokenmill.planning.counted import counts_of_rows, speaks_of
from tokenmill.planning.make import Proposal
from tokenmill.planning.mixture.bounds import MORE, VISIT_BYTES, VISITS
from tokenmill.planning.mixture.budgets import budgets
from tokenmill.planning.mixture.mix_file import Mixture
from tokenmill.planning.mixture.table import KnownAmount
from tokenmill.planning.plan import Plan
from tokenmill.planning.sample import take_sample, with_text
from tokenmill.settings import PlanSettings
from tokenmill.texts import I64
from tokenmill.tokens.order import held_out_of
from tokenmill.tokens.packing import frame_of
from tokenmill.tokens.splits import streams_of


def known_amounts(plan: Plan) -> dict[str, KnownAmount]:
    """The sources of the mixture all of whose inputs say how many tokens they have."""
    found: dict[str, KnownAmount] = {}
    if plan.settings.mixture is None:
        return found
    for name in plan.settings.mixture.names:
        mine = [_amount(plan.settings, one) for one in plan.sources if one.mix == name]
        known = [one for one in mine if one is not None]
        if len(known) == len(mine):
            found[name] = KnownAmount(*map(sum, zip(*known, strict=True)))
    return found


def refuse_surely_unmet(prepared: Proposal) -> None:
    """Raise if inputs say themselves that a mixture cannot be met, and this is true of a sample."""
    plan = prepared.plan
    if plan.settings.mixture is None:
        return
    known, mixture = known_amounts(plan), Mixture.of(plan.settings.mixture)
    if not known:
        return
    there = [
        known[one.name].of(mixture.unit) if one.name in known else MORE for one in mixture.sources
    ]
    try:
        budgets(mixture, there)
    except UsageError:
        texts = with_text(plan)
        counted = tuple(one for one in texts.sources if one.mix in known)
        if counted and _counts_are_wrong(prepared, counted):
            return  # the run counts, and says so
        raise


def _counts_are_wrong(prepared: Proposal, sources: Sequence[Source]) -> bool:
    plan = msgspec.structs.replace(prepared.plan, sources=tuple(sources))
    run = prepared.run
    sample = take_sample(plan, prepared.encoding, run.encoder, math.inf, VISITS, VISIT_BYTES)
    return bool(sample.counted_differ)


def _amount(settings: PlanSettings, source: Source) -> KnownAmount | None:
    """Of one input file; None where it does not say."""
    if source.remote is not None:
        return None
    if kind_named(source.kind).holds_ids:
        blocks: Iterator[I64] | None = document_lengths(source)
    else:
        blocks = counts_of_rows(source) if speaks_of(settings, source) else None
    if blocks is None:
        return None
    frame = sum(map(len, frame_of(settings, settings.first)))
    tokens = documents = row = 0
    try:
        for lengths in blocks:
            rows = np.arange(row, row + len(lengths), dtype=np.int64)
            keep = lengths >= max(settings.min_tokens, int(settings.drop_empty))
            if settings.max_tokens:
                keep &= lengths <= settings.max_tokens
            if len(streams_of(settings.val)) > 1:
                keep &= ~held_out_of(settings, source, rows)
            documents += int(keep.sum())
            tokens += int(lengths[keep].sum())
            row += len(lengths)
    except ValueError:  # the column cannot be used after all
        return None
    return KnownAmount(tokens + frame * documents, documents)
