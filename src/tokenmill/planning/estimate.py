"""What a plan will cost: tokens, files, disk, time. Arithmetic over a plan and a sample.

Tokens are exact where every source counts them itself (FineWeb's `token_count`, which is GPT-2
without separators); else they are estimated, and so is whatever follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tokenmill.amounts import show_bytes
from tokenmill.errors import InputError, warning
from tokenmill.formats import copies_of, get_format
from tokenmill.formats.base import itemsize
from tokenmill.inputs.download import at_hand_already, copy_fault
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.opening.identify import at_hand
from tokenmill.inputs.segments import UNIT_BYTES
from tokenmill.planning.counted import CountedTokens, counted_tokens
from tokenmill.planning.empty_splits import (
    warning_of_empty,
    warning_of_short,
    warnings_of_missing_val,
)
from tokenmill.planning.make import Proposal
from tokenmill.planning.mixture.table import KnownAmount, MixRow, estimated_rows
from tokenmill.planning.needs import FinishedWork, typical_of
from tokenmill.planning.options import WHOLE_TEXT_VAL
from tokenmill.planning.plan import Plan, same_content
from tokenmill.planning.sample import (
    COUNT_COLUMN,
    PROBE_SECONDS,
    KindTotals,
    Sample,
    note_prepared,
    take_sample,
    with_text,
)
from tokenmill.planning.sorted_inputs import sorted_warnings
from tokenmill.settings import Layout, PlanSettings, Val
from tokenmill.system.disk import free_bytes
from tokenmill.system.limits import available_cores

COUNTED_ERROR = 0.01  # of the tokens that were tried: beyond, the column is about something else
TYPICAL_DOCUMENT = 4700  # bytes of text: FineWeb-Edu's mean
SIDECAR_BYTES = 20  # for a document: Megatron's index, the largest
STARTUP_SECONDS = 0.6  # until the first worker encodes (docs/log.md)


class SplitFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The token files of one split. `last_tokens`: what the last of them holds."""

    split: str
    tokens: int
    files: int
    first: str
    last: str
    last_tokens: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """-1 where nothing is known (`--no-probe`)."""

    rows: int
    rows_exact: bool
    documents: int
    text_bytes: int
    tokens: int
    tokens_exact: bool
    tokens_from: str  # token_count, probe, typical (of such files), '' where nothing is known


class Estimate(Totals, frozen=True, kw_only=True):
    bytes_per_token: float
    files: list[SplitFiles]
    disk_bytes: int
    disk_free: int
    seconds: float
    cores: int
    speed: float  # bytes of text a second, one core
    probe_seconds: float
    probe_bytes: int
    warnings: list[str]
    done: FinishedWork = FinishedWork()  # disk space and time are of what is left
    mixture: list[MixRow] = []


def make_estimate(
    prepared: Proposal,
    *,
    probe: bool = True,
    probe_seconds: float = PROBE_SECONDS,
    min_shard_tokens: int | None = None,
    done: FinishedWork = FinishedWork(),  # noqa: B008
    known: Mapping[str, KnownAmount] = MappingProxyType({}),
) -> Estimate:
    """Look at the inputs once more, for about `probe_seconds`. Writes nothing. `known`: what
    sources of a mixture have to train on."""
    plan = prepared.plan
    here = _at_hand(plan)
    sample = _sample(prepared, here, probe_seconds if probe else 0.0)
    counted = counted_tokens(here) if len(here.sources) == len(plan.sources) else None
    totals, warnings = _totals(plan, sample, counted)
    known = {} if sample.counted_differ else known
    totals, rows, unmet = _mixed(plan, sample, totals, known)
    warnings += unmet + same_content([source.identity() for source in plan.sources])
    if empty := warning_of_empty(plan, totals.documents):
        warnings.append(empty)
    files: list[SplitFiles] = []
    for layout in plan.settings.layouts:
        held = sum(source.size for source in plan.sources if source.split == "val")
        share = held / max(1, plan.input_bytes)
        mine = split_files(plan.settings, layout, totals.tokens, totals.documents, share)
        warnings += shard_warnings(layout, plan.settings.val, mine, totals, min_shard_tokens) or (
            _short_splits(plan.settings, mine, totals) if layout is plan.settings.first else []
        )
        files += mine
    if plan.settings.val.kind == "none":
        warnings += warnings_of_missing_val(plan.settings)
    if not plan.settings.by_key:
        warnings += sorted_warnings(sample.parts)
    disk = max(disk_bytes(plan, totals, files) - done.written_bytes, min(0, totals.tokens))
    free = free_bytes(prepared.output)
    if 0 <= free < disk:
        needed = f"{show_bytes(disk)} are needed and {show_bytes(free)} are free"
        warnings.append(warning(f"{needed}: it does not fit"))
    cores = min(max(1, prepared.run.workers), available_cores())
    left = int(totals.text_bytes * (1 - done.input_share))
    seconds, notes = run_seconds(plan, sample, cores, left)
    # Of the same documents: tokens may be counted exactly where the text is only sampled.
    probed = scale(with_text(plan), sample, None)
    is_probed = probed.tokens > 0 and probed.text_bytes > 0
    return Estimate(
        **msgspec.structs.asdict(totals),
        bytes_per_token=round(probed.text_bytes / probed.tokens, 3) if is_probed else -1.0,
        files=files,
        disk_bytes=disk,
        disk_free=free,
        seconds=round(seconds, 1),
        cores=cores,
        speed=round(sample.speed),
        probe_seconds=round(sample.seconds, 2),
        probe_bytes=sample.all.text_bytes,
        warnings=warnings + notes,
        done=done,
        mixture=rows,
    )


def _sample(prepared: Proposal, here: Plan, seconds: float) -> Sample:
    """What is measured of the inputs that are here, or known of them. `seconds` 0: no probe."""
    sample, texts = Sample(), with_text(here)
    if not texts.sources:
        sample = typical_sample(with_text(prepared.plan))
    elif seconds:
        sample = take_sample(texts, prepared.encoding, prepared.run.encoder, seconds)
    note_prepared(prepared.plan, sample)
    return sample


def _at_hand(plan: Plan) -> Plan:
    """The sources that can be read now: local files, and files that were downloaded before."""
    here = []
    for source in plan.sources:
        if source.remote is None:
            here.append(source)
            continue
        path = at_hand_already(source.remote, compare=False)
        try:
            if path:
                here.append(at_hand(source, path, plan.settings.reading))
        except InputError:
            if not copy_fault(path, source.remote):
                raise  # else it is damaged, and `prepare` will download it once more
    return msgspec.structs.replace(plan, sources=tuple(here))


def typical_sample(plan: Plan) -> Sample:
    """Without any input at hand: what files of this kind usually hold. No speed."""
    sample = Sample()
    for source in plan.sources:
        text, tokens = typical_of(source)
        documents = max(1, round(text / TYPICAL_DOCUMENT))
        sample.add(
            source, KindTotals(source.size, round(text), documents, documents, round(tokens))
        )
    return sample


# --- tokens ----------------------------------------------------------------------------------


def _totals(plan: Plan, sample: Sample, counted: CountedTokens | None) -> tuple[Totals, list[str]]:
    """The totals of a plan, and warnings about them."""
    warnings: list[str] = []
    exact = True
    if counted is not None and sample.counted_differ:
        exact = False
        wrong = abs(sample.counted_said - sample.counted_found)
        used = wrong <= COUNTED_ERROR * sample.counted_found
        warnings.append(
            warning(
                f"{COUNT_COLUMN} is not what {plan.settings.tokenizer} gives in "
                f"{sample.counted_differ} of {sample.counted_documents} rows that were tried: "
                + ("not exact" if used else "not used")
            )
        )
        counted = counted if used else None
    if plan.settings.min_tokens or plan.settings.max_tokens:
        exact = False
        warnings.append(
            warning("documents that --min-tokens and --max-tokens drop are not estimated")
        )
    if plan.settings.by_key and plan.settings.limited:
        warnings.append(
            warning("the first documents of a shuffled dataset may be anywhere: all rows are read")
        )
    totals = within_limits(plan.settings, scale(plan, sample, counted))
    return msgspec.structs.replace(totals, tokens_exact=exact and totals.tokens_exact), warnings


def scale(plan: Plan, sample: Sample, counted: CountedTokens | None) -> Totals:
    """From what was measured to all sources, each by the bytes of its file."""
    rows_exact = all(source.rows >= 0 for source in plan.sources)
    rows = text = tokens = documents = -1.0
    tokens_from = ""
    # Tokens that each document gets besides its text.
    separators = int(plan.settings.first.eot != "none") + int(plan.settings.bos_id >= 0)
    if sample.all.input_bytes > 0:
        rows = text = tokens = documents = 0.0
        tokens_from = "probe" if sample.speed else "typical"
        for source in plan.sources:
            measured = sample.of(source)
            share = source.size / measured.input_bytes
            its_rows = source.rows if source.rows >= 0 else measured.rows * share
            its_documents = its_rows * measured.documents / max(1, measured.rows)
            rows += its_rows
            text += measured.text_bytes * share
            documents += its_documents
            tokens += measured.tokens * share + its_documents * separators
    if rows_exact:
        rows = sum(source.rows for source in plan.sources)
    if counted is not None:
        tokens_from = COUNT_COLUMN
        documents = counted.rows - (counted.empty if plan.settings.drop_empty else 0)
        tokens = counted.tokens + documents * separators
    return Totals(
        rows=round(rows),
        rows_exact=rows_exact,
        documents=round(documents),
        text_bytes=round(text),
        tokens=round(tokens),
        tokens_exact=counted is not None,
        tokens_from=tokens_from,
    )


def _mixed(
    plan: Plan, sample: Sample, encoded: Totals, known: Mapping[str, KnownAmount]
) -> tuple[Totals, list[MixRow], list[str]]:
    """What a mixture takes of its sources: the totals of the dataset, the table, and a warning
    if the mixture cannot be met."""
    mixture, held = plan.settings.mixture, float(plan.settings.val.fraction or 0)
    if mixture is None or encoded.tokens <= 0:
        return encoded, [], []
    tokens, documents = [], []
    for name in mixture.names:
        if name in known:
            tokens.append(known[name].tokens)
            documents.append(known[name].documents)
            continue
        mine = tuple(source for source in plan.sources if source.mix == name)
        found = scale(msgspec.structs.replace(plan, sources=mine), sample, None)
        tokens.append(round(found.tokens * (1 - held)))
        documents.append(round(found.documents * (1 - held)))
    rows, warnings = estimated_rows(mixture, tokens, documents, known)
    if not rows:
        return encoded, [], warnings
    taken = sum(row.taken_tokens for row in rows) + round(encoded.tokens * held)
    copies = sum(row.taken_documents for row in rows) + round(encoded.documents * held)
    totals = msgspec.structs.replace(encoded, tokens=taken, documents=copies, tokens_exact=False)
    return totals, rows, warnings


def within_limits(settings: PlanSettings, totals: Totals) -> Totals:
    """What --limit-docs and --limit-tokens leave, all documents taken for average ones."""
    share = 1.0
    if settings.limit_docs and totals.documents > 0:
        share = min(share, settings.limit_docs / totals.documents)
    if settings.limit_tokens and totals.tokens > 0:
        share = min(share, settings.limit_tokens / totals.tokens)
    if share >= 1:
        return totals
    parts = {
        name: max(1, round(getattr(totals, name) * share))
        for name in ("rows", "documents", "text_bytes", "tokens")
        if getattr(totals, name) >= 0
        and (settings.reads_part or name in ("documents", "tokens"))  # else all is read
    }
    return msgspec.structs.replace(totals, rows_exact=False, tokens_exact=False, **parts)


# --- files -----------------------------------------------------------------------------------


def split_files(
    settings: PlanSettings, layout: Layout, tokens: int, documents: int, held_share: float = 0.0
) -> list[SplitFiles]:
    """The files that will be written, val first. Of unknown tokens: the first of each."""
    fmt, folder = get_format(layout.format), settings.folder_of(layout)
    result = []
    amounts = split_tokens(settings.val, layout.shard_tokens, tokens, documents, held_share)
    for split, amount in amounts:
        files = 1 if tokens < 0 else min(1, amount)
        if layout.shard_tokens and amount > 0:
            files = -(-amount // layout.shard_tokens)
        names = [fmt.file_name(layout, split, number, files) for number in (0, files - 1)]
        first, last = (folder + name if files else "" for name in names)
        result.append(
            SplitFiles(
                split=split,
                tokens=amount,
                files=files,
                first=first,
                last=last,
                last_tokens=amount - max(0, files - 1) * layout.shard_tokens,
            )
        )
    return result


def split_tokens(
    val: Val, shard_tokens: int, tokens: int, documents: int, held_share: float = 0.0
) -> list[tuple[str, int]]:
    """`held_share`: of the input, in files of the validation split."""
    if val.kind == "none":
        return [("train", tokens)]
    if tokens < 0:
        return [("val", -1), ("train", -1)]
    if val.kind == "fraction":
        held = round(tokens * float(val.fraction))
    elif val.kind == "tail":
        held = tokens - val.tail_start(tokens)
    elif val.kind == "split":
        held = round(tokens * held_share)
    elif val.kind == "docs":
        held = tokens * min(val.amount, documents) // max(1, documents)
    else:
        held = min(tokens, val.amount or shard_tokens)
    return [("val", held), ("train", tokens - held)]


def shard_warnings(
    layout: Layout, val: Val, files: list[SplitFiles], totals: Totals, minimum: int | None
) -> list[str]:
    """What the trainer will stumble over, or `prepare` refuse; of `minimum` None: the trainer's."""
    warnings = []
    about = "" if totals.tokens_exact else "probably "
    fmt = get_format(layout.format)
    minimum = fmt.min_shard_tokens if minimum is None else minimum
    then = {
        "keep": "a trainer may refuse it; choose another --shard-tokens, or --last-shard merge",
        "alone": "a trainer may refuse it, and there is no other shard to merge it with",
        "merge": "it will be merged into the one before it",
        "refuse": "`prepare` will refuse it; choose another --shard-tokens",
    }
    alone = "there is none before it to merge it with, so `prepare` will refuse it"
    for split in files:
        if split.tokens == 0:
            if split.split == "train" or val.kind != "fraction":
                warnings.append(
                    warning(
                        f"the {split.split} split will {about}be empty: --val {val} leaves "
                        f"nothing of {totals.tokens:,} tokens, and `prepare` will refuse that; try "
                        f"--val {WHOLE_TEXT_VAL}"
                    )
                )
        elif 0 < split.last_tokens < minimum:
            how = "alone" if layout.last_shard == "keep" and split.files == 1 else layout.last_shard
            warnings.append(
                warning(
                    f"{split.last} will {about}hold {split.last_tokens:,} tokens, fewer than "
                    f"--min-shard-tokens {minimum:,}: "
                    + (alone if layout.last_shard == "merge" and split.files == 1 else then[how])
                )
            )
        if split.split == "train" and 0 < split.files < fmt.min_train_shards:
            warnings.append(
                warning(
                    f"there will {about}be {split.files} train shard, and {fmt.trainer} needs "
                    f"{fmt.min_train_shards}: `prepare` will refuse it; choose a smaller "
                    "--shard-tokens"
                )
            )
    return warnings


def _short_splits(settings: PlanSettings, files: list[SplitFiles], totals: Totals) -> list[str]:
    verb = "will hold" if totals.tokens_exact else "will hold about"
    total = sum(split.tokens for split in files)
    few = (warning_of_short(settings, split.split, split.tokens, total, verb) for split in files)
    return [line for line in few if line]


# --- disk and time ---------------------------------------------------------------------------


def disk_bytes(plan: Plan, totals: Totals, files: list[SplitFiles]) -> int:
    """Token files with headers, index and manifest."""
    if totals.tokens < 0:
        return -1
    settings = plan.settings
    count = sum(split.files for split in files)
    units = len(plan.sources) + max(totals.text_bytes, totals.tokens) // UNIT_BYTES
    apart = totals.documents * float(settings.val.fraction or 0)  # in the validation split
    size = 8 * totals.documents + 24 * (units + 2 * apart) + 40 * units + 16 * 4 * units  # index
    size += 300 * (count + 8) + 400 * len(plan.sources)  # manifest
    for layout in copies_of(settings):
        fmt = get_format(layout.format)
        beside = SIDECAR_BYTES * totals.documents if fmt.keeps_documents else 0
        size += totals.tokens * itemsize(layout) + count * fmt.header_bytes(layout) + beside
    if settings.by_key:  # until the commit: the documents of all rows, sorted; and a larger index
        whole = (
            totals.rows / max(1, totals.documents) if settings.limited or settings.mixture else 1
        )
        whole = max(1.0, whole) + bool(settings.mixture)  # what it takes is written once more
        size += whole * (totals.tokens * itemsize(settings.first) + 32 * totals.documents)
        size += 32 * totals.documents
    return int(size)


def run_seconds(plan: Plan, sample: Sample, cores: int, text_bytes: int) -> tuple[float, list[str]]:
    """All text over all cores, or the longest chain on one; and a note where that decides."""
    if sample.speed <= 0 or text_bytes < 0:
        return -1.0, []
    spread = text_bytes / sample.speed / cores
    chains = [
        (sample.of(s).text_bytes * s.size / sample.of(s).input_bytes / sample.speed, s.name)
        for s in plan.sources
        if s.compression or kind_named(s.kind).sequential
    ]
    longest, name = max(chains, default=(0.0, ""))
    seconds = STARTUP_SECONDS + max(spread, longest)
    if longest <= max(spread, 10) or cores == 1:
        return seconds, []
    note = (
        f"{name} can only be read from its start, by one worker: it decides how long the run "
        f"takes (on {cores} cores the rest would be done in {spread:.0f} s)"
    )
    return seconds, [note]
