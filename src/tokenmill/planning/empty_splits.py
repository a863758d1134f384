"""A split without a token is refused: before encoding where the plan can tell, else before the
commit. A split that is too short for a trainer, or that is not there at all, is a warning.

A trainer that finds no val file fails after the GPUs were booked; a glob of train shards that
matches nothing is worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tokenmill.amounts import counted
from tokenmill.errors import RefusedError, TokenmillError, warning
from tokenmill.formats import get_format
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.source import Source
from tokenmill.planning.plan import Plan
from tokenmill.settings import PlanSettings
from tokenmill.tokens.order import held_out_of

# For one byte of text: normalizing makes up to 11 of it (U+FDFA), and a separator of one byte is a
# document with its special ids. JSON takes more bytes for a document than that.
MOST_TOKENS = 16
FEW_DOCUMENTS = 3  # of the validation split: as few as none
ENOUGH_DOCUMENTS = 100  # for a fraction to hold out some of them
USUAL_BLOCK = 1024  # tokens that a model sees at once, by default in nanoGPT and llm.c
HASHED_ROWS = 1_000_000  # hashing the places of so many rows takes 30 ms


class SplitSize(Protocol):
    """A split as the manifest has it."""

    @property
    def name(self) -> str: ...
    @property
    def tokens(self) -> int: ...


def refuse_surely_empty(plan: Plan) -> None:
    """Before anything is encoded."""
    settings = plan.settings
    split = surely_empty(plan)
    if split and not settings.limited:
        raise RefusedError(
            f"the {split} split would be empty: --val {settings.val} leaves it nothing",
            hint=_advice(settings, _known(most_documents(plan)), again=False),
        )


def warning_of_empty(plan: Plan, documents: int) -> str:
    """For `plan`: a fraction that leaves the validation split nothing, or hardly a document.
    `documents`: as estimated, -1 where nobody knows."""
    settings = plan.settings
    if settings.val.kind != "fraction" or documents < 0:
        return ""
    few = documents * float(settings.val.fraction)
    sure = surely_empty(plan)
    if not sure and few >= FEW_DOCUMENTS:
        return ""
    split, how = sure or "val", "will be" if sure else "may be"
    then = "write no file for it" if settings.limited else "refuse that"
    return warning(
        f"the {split} split {how} empty: --val {settings.val} takes about {few:.2g} of "
        f"{documents:,} documents, and `prepare` will {then}; "
        + _advice(settings, documents, again=False).partition(";")[0]
    )


def warning_of_short(
    settings: PlanSettings, split: str, tokens: int, splits_total: int, verb: str = "holds"
) -> str:
    """A trainer takes blocks of tokens, and the token after each of them: none fits here.

    `splits_total`: tokens of all splits; where they are few, no other split helps."""
    if not 0 < tokens <= USUAL_BLOCK:
        return ""
    advice = ""
    if splits_total > 2 * USUAL_BLOCK and settings.val.kind not in ("none", "given", "split"):
        advice = f"; a {'larger' if split == 'val' else 'smaller'} --val gives it more"
    return warning(
        f"the {split} split {verb} {counted(tokens, 'token')}, and a trainer that takes blocks of "
        f"{USUAL_BLOCK:,} tokens (a usual default) cannot use it{advice}"
    )


def warnings_of_missing_val(settings: PlanSettings) -> list[str]:
    """For each format whose trainer always opens the validation split, where there is none."""
    lines = []
    for layout in settings.layouts:
        fmt = get_format(layout.format)
        if fmt.needs_val:
            name = settings.folder_of(layout) + fmt.file_name(layout, "val", 0, 1)
            lines.append(
                warning(
                    f"there is no validation split, and {fmt.trainer} stops without {name}; "
                    "`prepare` writes one with --val 0.01"
                )
            )
    return lines


def _known(documents: int | None) -> int:
    return 2 if documents is None else documents


def refuse_empty(settings: PlanSettings, splits: Sequence[SplitSize], documents: int) -> None:
    """Before the commit. What was encoded stays, and a run may go on from there."""
    empty = [split.name for split in splits if not split.tokens]
    if empty:
        raise TokenmillError(
            f"the {' and the '.join(empty)} split is empty: --val {settings.val} leaves it nothing "
            f"of {documents:,} document{'s' * (documents != 1)}. Nothing was committed",
            hint=_advice(settings, documents, again=True),
        )


def _advice(settings: PlanSettings, documents: int, *, again: bool) -> str:
    exact = all(layout.cut == "exact" for layout in settings.layouts)
    rule = "tail:0.1"
    if settings.val.kind == "fraction" and documents >= ENOUGH_DOCUMENTS:
        rule = "0.01" if documents >= 10 * ENOUGH_DOCUMENTS else "0.1"
    elif not exact:  # no document is cut in two
        rule = f"docs:{max(1, documents // 10)}" if documents > 1 else "none"
    if settings.val.kind == "split" or documents == 0:
        return "look at the inputs; the same command with --allow-empty-split takes it as it is"
    start = "start again with --overwrite" if again else "use"
    return f"{start} --val {rule}; the same command with --allow-empty-split takes it as it is"


def surely_empty(plan: Plan) -> str:
    """The split that cannot have a token, by what is known of the inputs; '' where none is."""
    val, layout = plan.settings.val, plan.settings.first
    documents, tokens = most_documents(plan), most_tokens(plan)
    few = documents is not None and documents < 2
    by_document = layout.cut == "document"
    if val.kind == "fraction" and few:
        return "train or the val"
    if val.kind == "fraction" and documents is not None and documents <= HASHED_ROWS:
        return _empty_by_hash(plan)
    if val.kind == "tail" and few and by_document:
        return "val"
    if val.kind == "docs" and documents is not None and documents <= val.amount:
        return "train"
    if val.kind in ("tokens", "shard"):
        if few and (by_document or val.kind == "tokens"):
            return "train"
        if tokens is not None and tokens <= (val.amount or layout.shard_tokens):
            return "train"
    return ""


def _empty_by_hash(plan: Plan) -> str:
    """The split that the hash of every row's place leaves empty, where rows are numbered."""
    settings, held, rows = plan.settings, 0, 0
    for source in plan.sources:
        if source.rows < 0:  # places are bytes
            return ""
        places = np.arange(source.rows)
        held += int(held_out_of(settings, source, places).sum())
        rows += source.rows
    return "val" if not held else "train" if held == rows else ""


def most_documents(plan: Plan) -> int | None:
    """No more documents than this; None where only reading tells."""
    counts = [_documents(plan.settings, source) for source in plan.sources]
    return None if None in counts else sum(count for count in counts if count is not None)


def _documents(settings: PlanSettings, source: Source) -> int | None:
    if source.rows >= 0:
        return source.rows
    if kind_named(source.kind).has_separators and settings.text_separator is None:
        return 1
    return None


def most_tokens(plan: Plan) -> int | None:
    """No more tokens than this: a token is a byte of text at least. None for packed files."""
    plain = all(s.rows < 0 and not s.compression and s.remote is None for s in plan.sources)
    return MOST_TOKENS * (plan.input_bytes + len(plan.sources)) if plain else None
