"""Up to which choice key documents of a mixture's source are encoded, if only a part is taken.

Choice keys are spread evenly over 64 bits, so a tenth of a source is about what is below a tenth of
2**64. A bound is an estimate with a margin. What a dataset holds does not depend on it: if the
bound is too low, more is encoded in a further pass.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from tokenmill.errors import UsageError
from tokenmill.inputs.source import Source
from tokenmill.planning.make import Proposal
from tokenmill.planning.mixture.budgets import asked_amounts
from tokenmill.planning.mixture.mix_file import MixSource, Mixture
from tokenmill.planning.needs import typical_of
from tokenmill.planning.plan import Plan
from tokenmill.planning.sample import Sample, note_prepared, take_sample, with_text
from tokenmill.tokens.epochs import EVERYTHING

MORE = 1 << 62  # of a source that is not encoded whole: more than any mixture takes
PART_BYTES = 64_000_000  # of input: a smaller source is encoded whole, which takes a second
WORTH = 0.5  # of a source, by what is typical: if more is taken, the source is encoded whole
MOST = 0.9  # a bound that leaves out less than a tenth is not worth a second pass
MARGIN = 0.1  # of the estimate
VISITS, VISIT_BYTES = 16, 256_000  # places in the inputs that are looked at, and text of each
TYPICAL_TOKENS = 1000  # of a document
MOST_PASSES = 3  # then all of a source is encoded


def needed_of(source: MixSource, amount: int) -> int:
    """What must be there, so that a source can give an amount in less than one epoch or in one."""
    return math.ceil(amount / min(source.max_epochs, Fraction(1)))


def next_bound(bound: int, encoded: int, needed: int, passes: int) -> int:
    """The bound of another pass, where documents up to `bound` amount to `encoded` only."""
    if not encoded or passes >= MOST_PASSES:
        return EVERYTHING
    share = (bound + 1) / 2**64 * needed / encoded
    return max(bound + 1, bound_of(share))


def bound_of(share: float, documents: float = math.inf) -> int:
    """The bound for a share of a source; of few documents, with a larger margin."""
    wide = share * (1 + MARGIN + 3 / math.sqrt(max(1.0, documents * share)))
    return EVERYTHING if wide >= MOST else int(wide * 2**64)


def sources_in_part(plan: Plan) -> list[str]:
    """Sources of a mixture of which a small part is taken. This depends on the plan alone, since
    what a manifest counts depends on it."""
    if plan.settings.mixture is None:
        return []
    mixture = Mixture.of(plan.settings.mixture)
    typical = [sum(typical_of(one)[1] for one in _inputs(plan, s)) for s in mixture.sources]
    documents = [tokens / TYPICAL_TOKENS for tokens in typical]
    return [
        source.name
        for source, share in zip(mixture.sources, _shares(plan, typical, documents), strict=True)
        if share < WORTH
        and sum(one.size for one in _inputs(plan, source)) >= knob("PART_BYTES", PART_BYTES)
    ]


def first_bounds(prepared: Proposal) -> dict[str, int]:
    """The bounds of the first pass, for sources of which a small part is taken, from a fixed
    sample of the inputs."""
    plan = prepared.plan
    partial = sources_in_part(plan)
    if not partial or plan.settings.mixture is None:
        return {}
    mixture = Mixture.of(plan.settings.mixture)
    tokens, documents = _measured(prepared, mixture)
    shares = _shares(plan, tokens, documents)
    factor = knob("BOUND_PERCENT", 100) / 100
    return {
        source.name: bound_of(share * factor, count)
        for source, share, count in zip(mixture.sources, shares, documents, strict=True)
        if source.name in partial
    }


def knob(name: str, usual: int) -> int:
    """Tests make sources small, and bounds wrong."""
    value = os.environ.get(f"TOKENMILL_{name}", "")
    return int(value) if value.isdigit() else usual


def _inputs(plan: Plan, source: MixSource) -> list[Source]:
    return [one for one in plan.sources if one.mix == source.name]


def _shares(plan: Plan, tokens: Sequence[float], documents: Sequence[float]) -> list[float]:
    """The part of each source that is needed; 1 where that is not known."""
    assert plan.settings.mixture is not None
    mixture = Mixture.of(plan.settings.mixture)
    held = 1 - float(plan.settings.val.fraction or 0)
    counts = tokens if mixture.unit == "tokens" else documents
    there = [max(1, int(count * held)) for count in counts]
    try:
        amounts = asked_amounts(mixture, there)
    except UsageError:
        return [1.0] * len(there)  # the run will say so
    return [
        needed_of(source, amount) / has
        for source, amount, has in zip(mixture.sources, amounts, there, strict=True)
    ]


def _measured(prepared: Proposal, mixture: Mixture) -> tuple[list[float], list[float]]:
    """Tokens and documents of each source, from a sample of what is on this machine."""
    plan = prepared.plan
    here = tuple(one for one in plan.sources if one.remote is None)
    texts, sample = with_text(msgspec.structs.replace(plan, sources=here)), Sample()
    if texts.sources:
        run = prepared.run
        sample = take_sample(texts, prepared.encoding, run.encoder, math.inf, VISITS, VISIT_BYTES)
    note_prepared(plan, sample)
    each = int(plan.settings.first.eot != "none") + int(plan.settings.bos_id >= 0)
    tokens, documents = [], []
    for source in mixture.sources:
        ids = count = 0.0
        for one in _inputs(plan, source):
            seen = sample.of(one)
            if one.remote is None and seen.input_bytes and (seen.tokens or seen.documents):
                share = one.size / seen.input_bytes
                mine = one.rows if one.rows >= 0 else seen.documents * share
                ids, count = ids + seen.tokens * share + each * mine, count + mine
            else:
                ids += typical_of(one)[1]
                count += typical_of(one)[1] / TYPICAL_TOKENS
        tokens.append(ids)
        documents.append(count)
    return tokens, documents
