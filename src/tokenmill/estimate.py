"""What a plan will cost: tokens, files, disk, time. Arithmetic over a plan and a probe.

Tokens are exact where every source counts them itself (FineWeb's `token_count`, which is GPT-2
without separators); else they are estimated, and so is whatever follows from them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from tokenmill.config import PlanSettings, available_cores
from tokenmill.errors import InputError
from tokenmill.fetch import at_hand_already, fault_of
from tokenmill.formats import copies_of, get_format
from tokenmill.needs import free_bytes, typical_of
from tokenmill.parquet_footer import text_chunks
from tokenmill.pipeline import Prepared
from tokenmill.plan import UNIT_BYTES, Plan
from tokenmill.probe import (
    COUNT_COLUMN,
    PROBE_SECONDS,
    Measured,
    Probe,
    has_counts,
    kind_of,
    run_probe,
)
from tokenmill.sources import Source, at_hand, open_parquet

COUNTED_TOKENIZERS = ("gpt2", "r50k_base")  # of which token_count speaks
COUNTED_ERROR = 0.01  # of the tokens that were tried: beyond, the column is about something else
TYPICAL_DOCUMENT = 4700  # bytes of text: FineWeb-Edu's mean
SIDECAR_BYTES = 20  # for a document: Megatron's index, the largest
START_SECONDS = 0.6  # until the first worker encodes (docs/log.md)


class SplitFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The token files of one split. `last_tokens`: what the last of them holds."""

    split: str
    tokens: int
    files: int
    first: str
    last: str
    last_tokens: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """-1 where nothing is known (`--no-probe`)."""

    rows: int
    rows_exact: bool
    documents: int
    text_bytes: int
    tokens: int
    tokens_exact: bool
    tokens_from: str  # token_count, probe, typical (of such files), '' where nothing is known
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


def make_estimate(
    prepared: Prepared,
    *,
    probe: bool = True,
    probe_seconds: float = PROBE_SECONDS,
    min_shard_tokens: int | None = None,
) -> Estimate:
    """Look at the inputs once more, for about `probe_seconds`. Writes nothing."""
    plan = prepared.plan
    here = _at_hand(plan)
    measured = None
    if probe and here.sources:
        measured = run_probe(here, prepared.encoding, prepared.run.encoder, probe_seconds)
    elif not here.sources:
        measured = typical_probe(plan)
    counted = counted_tokens(here) if len(here.sources) == len(plan.sources) else None
    warnings: list[str] = []
    exact = counted is not None
    if counted is not None and measured is not None and measured.counted_differ:
        exact = False
        wrong = abs(measured.counted_said - measured.counted_found)
        used = wrong <= COUNTED_ERROR * measured.counted_found
        warnings.append(
            f"{COUNT_COLUMN} is not what {plan.settings.tokenizer} gives in "
            f"{measured.counted_differ} of {measured.counted_documents} rows that were tried: "
            + ("not exact" if used else "not used")
        )
        counted = counted if used else None
    whole = scale(plan, measured, counted)
    totals = within_limits(plan.settings, whole)
    if totals != whole:
        exact = False
    if plan.settings.min_tokens or plan.settings.max_tokens:
        exact = False
        warnings.append("what --min-tokens and --max-tokens drop is not estimated")
    files: list[SplitFiles] = []
    for settings in plan.settings.layouts:
        mine = split_files(settings, totals.tokens, totals.documents)
        warnings += shard_warnings(settings, mine, totals.tokens, exact, min_shard_tokens)
        folder = plan.settings.folder_of(settings.format)
        files += [in_folder(split, folder) for split in mine]
    disk = disk_bytes(plan, totals, files)
    free = free_bytes(prepared.output)
    if 0 <= free < disk:
        warnings.append(
            f"{disk / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free: it does not fit"
        )
    cores = min(max(1, prepared.run.workers), available_cores())
    speed = measured.speed if measured else 0.0
    seconds, note = run_seconds(plan, measured, cores, totals.text_bytes)
    if note:
        warnings.append(note)
    return Estimate(
        rows=totals.rows,
        rows_exact=totals.rows_exact,
        documents=totals.documents,
        text_bytes=totals.text_bytes,
        tokens=totals.tokens,
        tokens_exact=exact,
        tokens_from=totals.tokens_from,
        bytes_per_token=round(totals.text_bytes / totals.tokens, 3)
        if totals.tokens > 0 and totals.text_bytes > 0
        else -1.0,
        files=files,
        disk_bytes=disk,
        disk_free=free,
        seconds=round(seconds, 1),
        cores=cores,
        speed=round(speed),
        probe_seconds=round(measured.seconds, 2) if measured else 0.0,
        probe_bytes=measured.all.text_bytes if measured else 0,
        warnings=warnings,
    )


def _at_hand(plan: Plan) -> Plan:
    """Of the sources those that can be looked into: local ones, and what has been fetched."""
    here = []
    for source in plan.sources:
        path = source.path
        if source.remote is not None:
            path = at_hand_already(source.remote, compare=False)
        if source.remote is None:
            here.append(source)
        elif path:
            try:
                here.append(at_hand(source, path, plan.settings.text_column))
            except InputError:
                if not fault_of(path, source.remote):
                    raise  # else it is damaged, and `prepare` will fetch it once more
    return msgspec.structs.replace(plan, sources=tuple(here))


def typical_probe(plan: Plan) -> Probe:
    """Of inputs none of which is here yet: what such files usually hold. No speed."""
    kinds: dict[str, Measured] = {}
    for source in plan.sources:
        text, tokens = typical_of(source)
        documents = max(1, round(text / TYPICAL_DOCUMENT))
        measured = Measured(
            input_bytes=source.size,
            text_bytes=round(text),
            rows=documents,
            documents=documents,
            tokens=round(tokens),
        )
        kinds.setdefault(kind_of(source), Measured()).add(measured)
    return Probe(kinds=kinds)


# --- tokens ----------------------------------------------------------------------------------


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    rows: int
    rows_exact: bool
    documents: int
    text_bytes: int
    tokens: int
    tokens_from: str


def within_limits(settings: PlanSettings, totals: Totals) -> Totals:
    """What --limit-docs and --limit-tokens leave, all documents taken for average ones."""
    share = 1.0
    if settings.limit_docs and totals.documents > 0:
        share = min(share, settings.limit_docs / totals.documents)
    if settings.limit_tokens and totals.tokens > 0:
        share = min(share, settings.limit_tokens / totals.tokens)
    if share >= 1:
        return totals

    def part(number: int) -> int:
        return number if number < 0 else max(1, round(number * share))

    return msgspec.structs.replace(
        totals,
        rows=part(totals.rows),
        rows_exact=False,
        documents=part(totals.documents),
        text_bytes=part(totals.text_bytes),
        tokens=part(totals.tokens),
    )


class Counted(msgspec.Struct):
    """Sums of the column token_count."""

    tokens: int = 0
    rows: int = 0
    empty: int = 0


def counted_tokens(plan: Plan) -> Counted | None:
    """What the sources say themselves, where all of them say it and it is of this tokenizer."""
    settings = plan.settings
    if settings.tokenizer not in COUNTED_TOKENIZERS or settings.text_column != "text":
        return None  # FineWeb's counts are of GPT-2 and of its column text
    if any(source.kind != "parquet" for source in plan.sources):
        return None
    total = Counted()
    with ThreadPoolExecutor(max_workers=4) as pool:
        for counted in pool.map(lambda s: _counted(s, settings.text_column), plan.sources):
            if counted is None:
                return None
            total.tokens += counted.tokens
            total.rows += counted.rows
            total.empty += counted.empty
    return total


def _counted(source: Source, text_column: str) -> Counted | None:
    """None where there is no such column, a count is missing, or a row is known to be no text.

    None too where the column is damaged: the run does not read it, so that is no error.
    """
    import pyarrow

    try:
        return _sum_of_counts(source, text_column)
    except (OSError, ValueError, pyarrow.ArrowException):
        return None


def _sum_of_counts(source: Source, text_column: str) -> Counted | None:
    with open_parquet(source.path) as file:
        if not has_counts(file.schema_arrow) or _known_nulls(
            source.name, file.metadata, text_column
        ):
            return None
        total = Counted()
        for batch in file.iter_batches(1 << 20, columns=[COUNT_COLUMN], use_threads=False):
            column = batch.column(0)
            if column.null_count:
                return None
            counts = column.to_numpy()
            if len(counts) and int(counts.min()) < 0:
                return None
            total.tokens += int(counts.sum(dtype=np.int64))
            total.rows += len(counts)
            total.empty += int(np.count_nonzero(counts == 0))
    return total


def _known_nulls(name: str, metadata: Any, text_column: str) -> bool:
    """Whether the footer says that rows of the text column are null: they will be bad rows."""
    for chunk in text_chunks(name, metadata, text_column):
        statistics = chunk.statistics
        if statistics is not None and statistics.has_null_count and statistics.null_count:
            return True
    return False


def separators(settings: PlanSettings) -> int:
    """Tokens that each document gets besides its text."""
    return int(settings.eot != "none") + int(settings.bos_id >= 0)


def scale(plan: Plan, probe: Probe | None, counted: Counted | None) -> Totals:
    """From what was measured to all sources, each by the bytes of its file."""
    settings = plan.settings
    known = all(source.rows >= 0 for source in plan.sources)
    rows = float(sum(source.rows for source in plan.sources)) if known else 0.0
    text = tokens = documents = 0.0
    usable = probe is not None and probe.all.input_bytes > 0
    if probe is not None and usable:
        for source in plan.sources:
            measured = probe.of(source)
            share = source.size / measured.input_bytes
            text += measured.text_bytes * share
            its_rows = source.rows if source.rows >= 0 else measured.rows * share
            rows += 0 if known else its_rows
            its_documents = its_rows * measured.documents / max(1, measured.rows)
            documents += its_documents
            tokens += measured.tokens * share + its_documents * separators(settings)
    if counted is not None:
        documents = counted.rows - (counted.empty if settings.drop_empty else 0)
        tokens = counted.tokens + documents * separators(settings)
    nothing = not usable and counted is None
    return Totals(
        rows=round(rows) if known or usable else -1,
        rows_exact=known,
        documents=-1 if nothing else round(documents),
        text_bytes=round(text) if usable else -1,
        tokens=-1 if nothing else round(tokens),
        tokens_from=COUNT_COLUMN
        if counted is not None
        else ("probe" if probe is not None and probe.speed else "typical")
        if usable
        else "",
    )


# --- files -----------------------------------------------------------------------------------


def split_files(settings: PlanSettings, tokens: int, documents: int) -> list[SplitFiles]:
    """The files that will be written, val first. Of unknown tokens: the first of each."""
    fmt = get_format(settings.format)
    result = []
    for split, amount in split_tokens(settings, tokens, documents):
        files = 1 if tokens < 0 else min(1, amount)
        last = amount
        if settings.shard_tokens and amount > 0:
            files = -(-amount // settings.shard_tokens)
            last = amount - (files - 1) * settings.shard_tokens
        result.append(
            SplitFiles(
                split=split,
                tokens=amount,
                files=files,
                first=fmt.file_name(settings, split, 0, files) if files else "",
                last=fmt.file_name(settings, split, files - 1, files) if files else "",
                last_tokens=last,
            )
        )
    return result


def in_folder(split: SplitFiles, folder: str) -> SplitFiles:
    if not split.files:
        return split
    return msgspec.structs.replace(split, first=folder + split.first, last=folder + split.last)


def split_tokens(settings: PlanSettings, tokens: int, documents: int) -> list[tuple[str, int]]:
    val = settings.val
    if val.kind == "none":
        return [("train", tokens)]
    if tokens < 0:
        return [("val", -1), ("train", -1)]
    if val.kind == "fraction":
        held = round(tokens * float(val.fraction))
    elif val.kind == "docs":
        held = tokens * min(val.amount, documents) // max(1, documents)
    else:
        held = min(tokens, val.amount or settings.shard_tokens)
    return [("val", held), ("train", tokens - held)]


def shard_warnings(
    settings: PlanSettings,
    files: list[SplitFiles],
    tokens: int,
    exact: bool,
    minimum: int | None = None,
) -> list[str]:
    """What the trainer will stumble over, or `prepare` refuse; of `minimum` None: the trainer's."""
    warnings = []
    about = "" if exact else "probably "
    fmt = get_format(settings.format)
    minimum = fmt.min_shard_tokens if minimum is None else minimum
    then = {
        "keep": "a trainer may refuse it; choose another --shard-tokens, or --last-shard merge",
        "merge": "it will be merged into the one before it",
        "refuse": "`prepare` will refuse it; choose another --shard-tokens",
    }[settings.last_shard]
    alone = "there is none before it to merge it with, so `prepare` will refuse it"
    for split in files:
        if split.tokens == 0:
            if split.split == "train" or settings.val.kind != "fraction":
                warnings.append(
                    f"the {split.split} split will {about}be empty: --val {settings.val} leaves "
                    f"nothing of {tokens:,} tokens"
                )
        elif 0 < split.last_tokens < minimum:
            warnings.append(
                f"{split.last} will {about}hold {split.last_tokens:,} tokens, fewer than "
                f"--min-shard-tokens {minimum:,}: "
                + (alone if settings.last_shard == "merge" and split.files == 1 else then)
            )
        if split.split == "train" and 0 < split.files < fmt.min_train_shards:
            warnings.append(
                f"there will {about}be {split.files} train shard, and {fmt.trainer} needs "
                f"{fmt.min_train_shards}: `prepare` will refuse it; choose a smaller --shard-tokens"
            )
    return warnings


# --- disk and time ---------------------------------------------------------------------------


def disk_bytes(plan: Plan, totals: Totals, files: list[SplitFiles]) -> int:
    """Token files with headers, index and manifest."""
    if totals.tokens < 0:
        return -1
    settings = plan.settings
    count = sum(split.files for split in files)
    units = len(plan.sources) + max(totals.text_bytes, totals.tokens) // UNIT_BYTES
    held_out = 0.0
    if settings.val.kind == "fraction":
        held_out = totals.documents * float(settings.val.fraction)
    index = 8 * totals.documents + 24 * (units + 2 * held_out) + 40 * units + 16 * 4 * units
    listed = 300 * (count + 8) + 400 * len(plan.sources)
    size = index + listed
    for layout in copies_of(settings):
        fmt = get_format(layout.format)
        itemsize = np.dtype(layout.dtype).itemsize
        beside = SIDECAR_BYTES * totals.documents if fmt.keeps_documents else 0
        size += totals.tokens * itemsize + count * fmt.header_bytes(layout) + beside
    return int(size)


def run_seconds(plan: Plan, probe: Probe | None, cores: int, text_bytes: int) -> tuple[float, str]:
    """All text over all cores, or the longest chain on one; and a note where that decides."""
    if probe is None or probe.speed <= 0 or text_bytes < 0:
        return -1.0, ""
    spread = text_bytes / probe.speed / cores
    chains = [
        (probe.of(s).text_bytes * s.size / probe.of(s).input_bytes / probe.speed, s.name)
        for s in plan.sources
        if s.compression
    ]
    longest, name = max(chains, default=(0.0, ""))
    if longest <= spread or cores == 1:
        return START_SECONDS + max(spread, longest), ""
    note = (
        f"{name} is one compressed stream, which one worker reads: it decides how long the run "
        f"takes (on {cores} cores the rest would be done in {spread:.0f} s)"
    )
    return START_SECONDS + longest, note if longest > 10 else ""
