"""What `plan`, `inspect` and `verify` print, for people; `--json` has the same facts.

Functions return lines and print nothing. Numbers that are estimates say so.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from tokenmill.amounts import counted, show_bytes, show_duration, show_speed
from tokenmill.cli.summary import empty_note, not_chosen_note, warning_lines
from tokenmill.dataset.deep.comparison import DeepReport
from tokenmill.dataset.inspection import Bin, Summary
from tokenmill.dataset.verification import Report
from tokenmill.errors import printable
from tokenmill.formats import get_format
from tokenmill.planning.estimate import Estimate
from tokenmill.planning.make import Proposal
from tokenmill.planning.mixture.table import table_lines
from tokenmill.settings import PlanSettings, Val

SOURCES_SHOWN = 12
BAR_WIDTH = 40
OK, BAD = click.style("ok", fg="green", bold=True), click.style("bad", fg="red", bold=True)


def rounded(number: int) -> str:
    """Three digits that count: an estimate must not look exact."""
    step = 10 ** max(0, len(str(number)) - 3)
    return f"{round(number / step) * step:,}"


# --- plan ------------------------------------------------------------------------------------


def plan_dict(prepared: Proposal, estimate: Estimate) -> dict[str, Any]:
    """Stable keys: more may come, none goes or changes its meaning."""
    sources = [
        {
            "name": source.name,
            "kind": source.kind,
            "compression": source.compression,
            "size": source.size,
            "rows": source.rows,
            "chain": bool(source.compression),
        }
        for source in prepared.plan.sources
    ]
    return {
        "plan": prepared.plan.to_dict(),
        "fingerprint": prepared.plan.fingerprint,
        "output": prepared.output,
        "input_bytes": prepared.plan.input_bytes,
        "rows": [source.rows for source in prepared.plan.sources],
        "sources": sources,
        "skipped": prepared.found.skipped,
        "estimate": estimate,
        "needs": prepared.needs,
        "reuse": prepared.reuse,
        "warnings": estimate.warnings,
        "run": prepared.run,
        "encoder": prepared.decision,
    }


def plan_lines(prepared: Proposal, estimate: Estimate) -> list[str]:
    """Everything after the one line that `prepare` prints too."""
    lines = []
    sources = prepared.plan.sources
    shown = sources if len(sources) <= SOURCES_SHOWN else sources[: SOURCES_SHOWN - 2]
    for source in shown:
        rows = counted(source.rows, "row") if source.rows >= 0 else "rows known when read"
        chain = ", one chain (compressed: one worker at a time)" if source.compression else ""
        lines.append(f"  {printable(source.name)}: {show_bytes(source.size)}, {rows}{chain}")
    if len(shown) < len(sources):
        lines.append(f"  ... {len(sources) - len(shown)} more (--json lists all)")
        chains = sum(bool(s.compression) for s in sources)
        if chains:
            lines.append(f"  {chains} of them compressed: one chain each, one worker at a time")
    skipped = prepared.found.skipped
    lines += [f"  skipped {printable(s.path)}: {s.reason}" for s in skipped[:SOURCES_SHOWN]]
    if len(skipped) > SOURCES_SHOWN:
        lines.append(f"  skipped {len(skipped) - SOURCES_SHOWN} more")
    lines += [_tokens_line(estimate), *_file_lines(prepared, estimate)]
    estimated = any(row.estimated for row in estimate.mixture)
    table = table_lines(estimate.mixture, estimated=estimated)
    lines += [f"  {printable(line)}" for line in table]
    if prepared.needs is None and estimate.disk_bytes >= 0:  # else `plan_lines_before` says it
        free = f", {show_bytes(estimate.disk_free)} free" if estimate.disk_free >= 0 else ""
        about = "" if estimate.tokens_exact else "about "
        lines.append(f"  disk    {about}{show_bytes(estimate.disk_bytes)} needed{free}")
    if prepared.decision.encoder == "gigatoken":  # else `plan_lines_before` says it
        lines.append(f"  encoder: {prepared.decision.line()}")
    lines += [_time_line(estimate), *_done_lines(estimate)]
    return lines + warning_lines(estimate.warnings)


def _tokens_line(e: Estimate) -> str:
    if e.tokens < 0:
        return "  tokens  unknown (--no-probe, and no token_count)"
    each = f", {e.bytes_per_token:.2f} bytes of text each" if e.bytes_per_token > 0 else ""
    if e.tokens_exact:
        return f"  tokens  {e.tokens:,} from token_count and separators{each}"
    if e.tokens_from == "token_count":
        return f"  tokens  about {rounded(e.tokens)} from token_count and separators{each}"
    if e.tokens_from == "typical":
        return f"  tokens  about {rounded(e.tokens)} (typical of such files: none is here yet)"
    rows = "" if e.rows_exact else f" in about {rounded(e.rows)} row{'s' * (e.rows != 1)}"
    return (
        f"  tokens  about {rounded(e.tokens)}{rows}{each} "
        f"(estimated from a probe of {show_bytes(e.probe_bytes)})"
    )


def _file_lines(prepared: Proposal, e: Estimate) -> list[str]:
    settings = prepared.plan.settings
    exact_cut = all(layout.cut == "exact" for layout in settings.layouts)
    shard_tokens = settings.first.shard_tokens
    each = f", a new one every {shard_tokens:,} tokens" if shard_tokens else ""
    if e.tokens < 0:
        names = ", ".join(split.first for split in e.files)
        return [f"  writes  {names}{each}; {_beside(settings)}"]
    exact = e.tokens_exact and settings.val.kind in ("shard", "none", "tail") and exact_cut
    about = "" if exact else "about "
    lines: list[str] = []
    for split in (split for split in e.files if split.files):
        names = split.first
        if split.files > 1:
            names = f"{split.first} to {split.last} ({about}{split.files:,} files)"
        tokens = f"{split.tokens:,}" if exact else rounded(split.tokens)
        word = "      " if lines else "writes"
        lines.append(
            f"  {word}  {names}: {about}{tokens} token{'s' * (tokens != '1')} of {split.split}"
        )
    return [*lines, f"          {_beside(settings)}"]


def _beside(settings: PlanSettings) -> str:
    """What is written beside the token files."""
    told = [
        f"{layout.format}: {beside}" if len(settings.layouts) > 1 else beside
        for layout in settings.layouts
        if (beside := get_format(layout.format).beside)
    ]
    return "; ".join([*told, "manifest.json, run.json, index/"])


def _done_lines(e: Estimate) -> list[str]:
    """Where the output folder holds work of a run before."""
    if e.done.committed:
        return ["  done    all of it: the dataset is finished, and `prepare` would do nothing"]
    if not e.done.documents:
        return []
    if e.done.input_share >= 1:
        return ["  done    all documents are encoded; `prepare` makes the files and commits"]
    return [
        f"  done    {counted(e.done.documents, 'document')}, {counted(e.done.tokens, 'token')} "
        f"({100 * e.done.input_share:.0f} % of the input) by a run that was stopped: `prepare` "
        "goes on from there, and time and disk above are of the rest"
    ]


def _time_line(e: Estimate) -> str:
    if e.seconds < 0:
        why = "none of the inputs is here yet" if e.tokens_from == "typical" else "--no-probe"
        return f"  time    unknown ({why})"
    return (
        f"  time    about {show_duration(e.seconds)} (an estimate: {show_speed(e.speed)} of text "
        f"per core in a probe of {e.probe_seconds:.1f} s, {e.cores} core{'s' * (e.cores != 1)})"
    )


# --- inspect ---------------------------------------------------------------------------------


def _order_words(settings: dict[str, Any]) -> str:
    """How the documents were brought into their order, and which of them are here."""
    only = f", only {settings['only']}" if "only" in settings else ""
    if "reshuffle" in settings:
        return f"{only}, shuffled by export with seed {settings['reshuffle']['seed']}"
    return only + (f", shuffled with seed {settings['seed']}" if settings.get("shuffle") else "")


def summary_lines(summary: Summary) -> list[str]:
    s, counts = summary.settings, summary.counts
    val = msgspec.convert(s["val"], Val)
    first = PlanSettings.from_dict(s).first
    dtype = get_format(first.format).shown_dtype(first)
    shards = f", {s['shard_tokens']:,} tokens per shard ({s['cut']})" if s["shard_tokens"] else ""
    bos = f", bos {s['bos_id']}" if s.get("bos_id", -1) >= 0 else ""
    order = _order_words(s)
    lines = [
        f"{summary.directory}: {counted(counts['tokens'], 'token')}, "
        f"{counted(counts['documents'], 'document')}, "
        f"{show_bytes(summary.bytes)}",
        f"  format     {s['format']}, {dtype}, eot {s['eot']}{shards}, val {val}{order}",
        f"  tokenizer  {s['tokenizer']} ({s['vocab_size']:,} ids, separator {s['eot_id']}{bos})",
    ]
    if s["more"]:
        others = ", ".join(layout["format"] for layout in s["more"])
        lines.append(f"  also       {others}, the same documents")
    if summary.made:
        lines.append(f"  made       {summary.made.get('finished', '?')}")
    if summary.made.get("encoder"):
        lines.append(f"  encoder    {_encoder_of(summary.made['encoder'])}")
    for split in summary.splits:
        files = [f for f in summary.files if f["split"] == split["name"]]
        names = files[0]["path"] if files else "no file"
        if len(files) > 1:
            names = f"{len(files):,} files, {files[0]['path']} to {files[-1]['path']}"
        lines.append(
            f"  {split['name']:9}  {counted(split['documents'], 'document')}, "
            f"{counted(split['tokens'], 'token')}: {names}"
        )
    known = counts["text_bytes"] > 0 or counts["empty"] == counts["documents"]
    lines += [
        f"  rows       {counts['rows']:,} read = {counts['documents']:,} written + "
        f"{counts['dropped']:,} dropped + {counts['quarantined']:,} "
        f"quarantined{not_chosen_note(counts)}{empty_note(s['drop_empty'], counts)}",
        f"  text       {show_bytes(counts['text_bytes'])}, "
        f"{summary.bytes_per_token:.2f} bytes per token"
        if known
        else "  text       not known: the token files were imported",
    ]
    lines += ["", *map(printable, table_lines(summary.mixture))] if summary.mixture else []
    lengths = summary.lengths
    lines += [
        "",
        f"document lengths in tokens: min {lengths.minimum:,}, median {lengths.median:,}, "
        f"mean {lengths.mean:,.1f}, max {lengths.maximum:,}",
        *_histogram(lengths.histogram),
        "",
        f"largest of {summary.sources:,} sources:",
    ]
    width = max((len(source["name"]) for source in summary.largest_sources), default=0)
    for source in summary.largest_sources:
        lines.append(
            f"  {source['name']:{min(width, 60)}}  {source['tokens']:>15,} tokens  "
            f"{source['documents']:>11,} document{'s' * (source['documents'] != 1)}"
            + (f"  {show_bytes(source['text_bytes']):>9} of text" if known else "")
        )
    return [printable(line) for line in lines]


def _encoder_of(encoder: dict[str, Any]) -> str:
    if "name" not in encoder:
        return "not recorded: an earlier version made this dataset"
    told = f"{encoder['name']}, {encoder.get('why', '')}"
    some = encoder.get("reference_documents")
    return f"{told}; {counted(some, 'document')} by the reference" if some else told


def _histogram(bins: list[Bin]) -> list[str]:
    most = max((b.documents for b in bins), default=1)
    total = sum(b.tokens for b in bins) or 1
    ranges = [f"{b.low:,}" if b.low == b.high else f"{b.low:,} to {b.high:,}" for b in bins]
    width = max(map(len, ranges), default=0)
    return [
        f"  {label:>{width}}  {b.documents:>13,}  {_bar(b.documents / most):{BAR_WIDTH}} "
        f"{100 * b.tokens / total:5.1f}% of tokens"
        for label, b in zip(ranges, bins, strict=True)
    ]


def _bar(share: float) -> str:
    eighths = round(share * BAR_WIDTH * 8)
    if share > 0:
        eighths = max(1, eighths)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


# --- verify ----------------------------------------------------------------------------------


def verify_lines(report: Report) -> list[str]:
    lines = [f"{BAD}: {problem}" for problem in report.problems]
    if report.ok:
        speed = show_speed(report.bytes / max(report.seconds, 1e-3))
        size = show_bytes(report.bytes)
        lines.append(
            f"{OK}: {counted(report.files, 'file')}, {size}, {report.seconds:.2f} s ({speed})"
        )
    return lines + warning_lines(report.warnings)


def deep_lines(report: DeepReport) -> list[str]:
    lines = [f"{BAD}: {printable(problem.message)}" for problem in report.problems]
    if report.files.ok:
        share = 100 * report.text_bytes / max(1, report.text_bytes_total)
        word = "" if report.problems else f"{OK}: "
        how = "every document" if report.complete else "documents"
        lines.append(
            f"{word}{how} encoded again by the reference: {report.documents:,} of "
            f"{counted(report.documents_total, 'document')}, {show_bytes(report.text_bytes)} of "
            f"text ({share:.3g} %), {counted(report.tokens, 'token')}, {report.seconds:.1f} s"
        )
        lines.append(
            f"  rows read again and found in their place: {report.rows:,} of "
            f"{report.rows_total:,}, in {report.segments:,} of {report.segments_total:,} segments"
            + ("; none missing, none extra" if report.complete else "")
        )
    if report.reference_failures:
        lines.append(
            f"  note: compared with the fast encoder, since the reference cannot encode them: "
            f"{counted(report.reference_failures, 'document')}"
        )
    if report.stopped:
        more = " (--sample all compares every document)" if report.mode == "time" else ""
        lines.append(f"  {report.stopped}{more if report.ok else ''}")
    return lines
