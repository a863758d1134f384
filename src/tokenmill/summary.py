"""What `prepare` says before and after the work, for people and as JSON."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from tokenmill.config import PlanSettings
from tokenmill.errors import printable
from tokenmill.formats import get_format
from tokenmill.manifest import Manifest
from tokenmill.pipeline import Fetched, Prepared, Result
from tokenmill.progress import duration


def echo_json(value: dict[str, Any]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def plan_line(prepared: Prepared) -> str:
    settings, sources = prepared.plan.settings, prepared.plan.sources
    rows = sum(source.rows for source in sources if source.rows >= 0)
    counted = f", {rows:,} rows" if all(s.rows >= 0 for s in sources) else ""
    skipped = f", {len(prepared.found.skipped)} skipped" if prepared.found.skipped else ""
    workers = prepared.run.workers
    formats = ", ".join(layout.format for layout in settings.layouts)
    return (
        f"plan: {len(sources)} file{'s' * (len(sources) != 1)}, "
        f"{prepared.plan.input_bytes / 1e6:.1f} MB{counted}{skipped} -> {formats} in "
        f"{printable(prepared.output)} ({printable(settings.tokenizer)}, {settings.dtype}, "
        f"eot {settings.eot}, val {settings.val}), {workers or 'no'} worker{'s' * (workers != 1)}, "
        f"{prepared.run.memory / 1e9:.1f} GB"
    )


def plan_lines_before(prepared: Prepared) -> list[str]:
    """The plan in a line, and where inputs are elsewhere what is fetched and needed."""
    revisions = [f"  {root} is commit {c}" for root, c in prepared.plan.revisions.items()]
    needs = prepared.needs.lines() if prepared.needs is not None else []
    return [plan_line(prepared), *revisions, *(f"  {line}" for line in needs)]


def echo_fetched(fetched: Fetched) -> None:
    here = fetched.files - fetched.fetched_files
    already = f" ({here} were here already)" if here else ""
    click.echo(
        f"fetched {fetched.fetched_files} files, {fetched.fetched_bytes / 1e6:.1f} MB, in "
        f"{duration(fetched.seconds)}{already}: the same command without --download-only goes on, "
        "also offline"
    )


def result_dict(result: Result) -> dict[str, Any]:
    return {
        "output": result.output,
        "already_done": result.already_done,
        "seconds": round(result.seconds, 3),
        "counts": result.manifest.counts,
        "splits": msgspec.to_builtins(result.manifest.splits),
        "files": [
            {"path": f.path, "tokens": f.tokens, "size": f.size}
            for f in result.manifest.files
            if f.kind == "tokens"
        ],
        "warnings": result.warnings,
        "run": result.run,
    }


def _left_out(settings: PlanSettings, counts: dict[str, int]) -> list[str]:
    """Documents that are not there because the plan says so."""
    lines = []
    if counts["too_short"]:
        lines.append(f"  dropped: {counts['too_short']:,} documents under --min-tokens")
    if counts["too_long"]:
        lines.append(f"  dropped: {counts['too_long']:,} documents over --max-tokens")
    limits = []
    if settings.limit_docs:
        limits.append(f"the first {settings.limit_docs:,} documents")
    if settings.limit_tokens:
        limits.append(f"documents that begin before token {settings.limit_tokens:,}")
    if limits:
        lines.append(f"  trial: limited to {' and '.join(limits)}")
    return lines


def echo_files(manifest: Manifest) -> None:
    """The token files, the first and the last of many."""
    files = [file for file in manifest.files if file.kind == "tokens"]
    shown = files if len(files) <= 6 else [*files[:3], *files[-2:]]
    width = max([32, *(len(printable(file.path)) for file in shown)])
    for file in shown:
        name = printable(file.path)
        click.echo(f"  {name:{width}} {file.tokens:>15,} tokens {file.size:>15,} bytes")
        if len(files) > 6 and file is files[2]:
            click.echo(f"  ... {len(files) - 5} more")


def echo_warnings(result: Result) -> None:
    for warning in result.warnings:
        click.echo(f"  {click.style('warning', fg='yellow')}: {printable(warning)}")


def echo_summary(result: Result) -> None:
    manifest, counts = result.manifest, result.manifest.counts
    settings = msgspec.convert(manifest.plan["settings"], PlanSettings)
    if result.already_done:
        click.echo(f"{printable(result.output)}: already complete, nothing to do")
    echo_files(manifest)
    for split in (split for split in manifest.splits if split.format == settings.format):
        click.echo(f"  {split.name + ':':6} {split.documents:,} documents, {split.tokens:,} tokens")
    click.echo(
        f"  rows:  {counts['rows']:,} read = {counts['documents']:,} written + "
        f"{counts['dropped']:,} dropped + {counts['quarantined']:,} quarantined"
        + (f" ({counts['empty']:,} empty)" if counts["empty"] else "")
    )
    for line in _left_out(settings, counts):
        click.echo(line)
    if settings.vocab_size > 1 << 16:
        click.echo(
            f"  dtype: {settings.dtype}, since {printable(settings.tokenizer)} does not fit uint16"
        )
    encoder = result.run.get("encoder", {})
    if encoder.get("checked_documents"):
        click.echo(
            f"  check: {encoder['checked_documents']:,} documents encoded again by the reference, "
            "all equal"
        )
    for key, what in (
        ("reference_documents", "documents went to the reference encoder (newer Unicode)"),
        ("reference_failures", "documents that the reference cannot encode: the fast one did"),
    ):
        if encoder.get(key):
            click.echo(f"  note:  {encoder[key]:,} {what}")
    echo_warnings(result)
    if counts["quarantined"]:
        click.echo(f"  set aside: {printable(result.output)}/quarantine.jsonl")
    if not result.already_done:
        resumed = result.run.get("units_resumed", 0)
        again = f", {resumed} units were durable already" if resumed else ""
        speed = counts["text_bytes"] / max(result.seconds, 1e-3) / 1e6
        rate = f" ({speed:.0f} MB/s of text)" if not resumed else ""
        click.echo(f"  done in {duration(result.seconds)}{rate}{again}")
    echo_load_lines(result)


def echo_load_lines(result: Result) -> None:
    """The lines of code that read each format, to paste."""
    settings = msgspec.convert(result.manifest.plan["settings"], PlanSettings)
    files = [file for file in result.manifest.files if file.kind == "tokens"]
    if not files:
        return
    click.echo("\nload it:")
    for layout in settings.layouts:
        mine = [file for file in files if file.format == layout.format]
        shown = next((file for file in mine if file.split == "train"), mine[0])
        folder = os.path.join(result.output, settings.folder_of(layout.format)).rstrip("/")
        name = shown.path.removeprefix(settings.folder_of(layout.format))
        for line in get_format(layout.format).load_lines(layout, folder, name):
            click.echo(f"  {printable(line)}" if line else "")
