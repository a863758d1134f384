"""What `prepare` says before and after the work, for people and as JSON."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
import msgspec

from tokenmill.amounts import counted, show_bytes, show_duration, show_speed
from tokenmill.errors import printable
from tokenmill.formats import get_format
from tokenmill.output.manifest import Manifest
from tokenmill.output.result import Result
from tokenmill.pipeline import DownloadReport
from tokenmill.planning.make import Proposal
from tokenmill.planning.mixture.table import manifest_rows, table_lines
from tokenmill.settings import PlanSettings, Val
from tokenmill.system.buckets.address import is_bucket


def plan_line(prepared: Proposal) -> str:
    settings, sources = prepared.plan.settings, prepared.plan.sources
    rows = sum(source.rows for source in sources if source.rows >= 0)
    known = f", {counted(rows, 'row')}" if all(s.rows >= 0 for s in sources) else ""
    skipped = f", {len(prepared.found.skipped)} skipped" if prepared.found.skipped else ""
    workers = prepared.run.workers
    formats, frames = _formats_and_frames(settings)
    order = f", shuffled with seed {settings.seed}" if settings.shuffle else ""
    return (
        f"plan: {len(sources)} file{'s' * (len(sources) != 1)}, "
        f"{show_bytes(prepared.plan.input_bytes)}{known}{skipped} -> {formats} in "
        f"{printable(prepared.output)} ({printable(settings.tokenizer)}, {frames}, "
        f"val {settings.val}{order}), {workers or 'no'} worker{'s' * (workers != 1)}, "
        f"{show_bytes(prepared.run.memory)}"
    )


def _formats_and_frames(settings: PlanSettings) -> tuple[str, str]:
    """Names, and dtype and separator: once, or for each format where they differ."""
    told = {
        layout.format: f"{get_format(layout.format).shown_dtype(layout)}, eot {layout.eot}"
        for layout in settings.layouts
    }
    frames = next(iter(told.values()))
    if len(set(told.values())) > 1:
        frames = "; ".join(f"{name} {frame}" for name, frame in told.items())
    if settings.bos_id >= 0:
        frames += f", bos {settings.bos_id}"
    return ", ".join(told), frames


def plan_lines_before(prepared: Proposal) -> list[str]:
    """The plan in a line; if inputs are remote, what is downloaded and how much space it needs."""
    revisions = [f"  {root} is commit {c}" for root, c in prepared.plan.revisions.items()]
    needs = prepared.needs.lines() if prepared.needs is not None else []
    needs += [printable(line) for line in prepared.reuse.lines()] if prepared.reuse else []
    decision = prepared.decision
    slow = [] if decision.encoder == "gigatoken" else [f"encoder: {decision.line()}"]
    return [plan_line(prepared), *revisions, *(f"  {line}" for line in (*slow, *needs))]


def echo_download(report: DownloadReport) -> None:
    here = report.files - report.fetched_files
    already = f" ({here} were here already)" if here else ""
    click.echo(
        f"downloaded {counted(report.fetched_files, 'file')}, "
        f"{show_bytes(report.fetched_bytes)}, in {show_duration(report.seconds)}"
        f"{already}: the same command without --download-only goes on, also offline"
    )


def _quarantine_path(result: Result) -> str:
    """'' where no row was quarantined."""
    names = [file.path for file in result.manifest.files if file.kind == "quarantine"]
    return os.path.join(result.output, names[0]) if names else ""


def _prefixes(result: Result) -> dict[str, dict[str, list[str]]]:
    """For each format whose trainer is given a path without its end: by split."""
    names = {file.path for file in result.manifest.files}
    found: dict[str, dict[str, list[str]]] = {}
    for file in result.manifest.files:
        stem = os.path.splitext(file.path)[0]
        if file.kind == "tokens" and f"{stem}.idx" in names:
            splits = found.setdefault(file.format, {})
            splits.setdefault(file.split, []).append(os.path.join(result.output, stem))
    return found


def result_dict(result: Result) -> dict[str, Any]:
    return {
        "output": result.output,
        "already_done": result.already_done,
        "seconds": round(result.seconds, 3),
        "counts": result.manifest.counts,
        "splits": result.manifest.splits,
        "files": [
            {"path": f.path, "tokens": f.tokens, "size": f.size}
            for f in result.manifest.files
            if f.kind == "tokens"
        ],
        "prefixes": _prefixes(result),
        "quarantine": _quarantine_path(result),
        "warnings": result.warnings,
        **_mixture_dict(result.manifest),
        "run": result.run,
    }


def _mixture_dict(manifest: Manifest) -> dict[str, Any]:
    rows = manifest_rows(manifest.plan["settings"], manifest.sources)
    return {"mixture": rows} if rows else {}


def mixture_lines(manifest: Manifest) -> list[str]:
    """The table of a mixture, and how its rows add up."""
    rows = manifest_rows(manifest.plan["settings"], manifest.sources)
    return [f"  {printable(line)}" for line in table_lines(rows)]


def empty_note(dropped: bool, counts: dict[str, int]) -> str:
    """How many documents are empty, and whether they are among the written or the dropped."""
    if not counts["empty"]:
        return ""
    among = "dropped" if dropped else "written" if not counts["dropped"] else "read"
    return f" ({counts['empty']:,} of those {among} are empty)"


def not_chosen_note(counts: dict[str, int]) -> str:
    """The rest of the sum of rows, in a mixture or where a limit cuts a shuffled job."""
    chosen = f" + {counts['not_chosen']:,} not chosen" if counts.get("not_chosen") else ""
    copies = counts.get("copies", 0)
    word = "copy" if copies == 1 else "copies"
    return chosen + (f"; {copies:,} further {word}" if copies else "")


def _left_out(settings: PlanSettings, counts: dict[str, int]) -> list[str]:
    """Documents that are not there because the plan says so."""
    lines = []
    if counts.get("filtered"):
        verb = "does" if counts["filtered"] == 1 else "do"
        rows = counted(counts["filtered"], "row")
        lines.append(f"  dropped: {rows} that {verb} not meet --where")
    if counts["too_short"]:
        lines.append(f"  dropped: {counted(counts['too_short'], 'document')} under --min-tokens")
    if counts["too_long"]:
        lines.append(f"  dropped: {counted(counts['too_long'], 'document')} over --max-tokens")
    limits = []
    if settings.limit_docs:
        limits.append(f"the first {counted(settings.limit_docs, 'document')}")
    if settings.limit_tokens:
        limits.append(f"documents that begin before token {settings.limit_tokens:,}")
    if limits:
        lines.append(f"  trial: limited to {' and '.join(limits)}")
    return lines


def echo_files(result: Result) -> None:
    """The token files, the first and the last of many."""
    if result.already_done:
        click.echo(f"{printable(result.output)}: already complete, nothing to do")
    files = [file for file in result.manifest.files if file.kind == "tokens"]
    shown = files if len(files) <= 6 else [*files[:3], *files[-2:]]
    width = max([32, *(len(printable(file.path)) for file in shown)])
    for file in shown:
        name = printable(file.path)
        click.echo(f"  {name:{width}} {file.tokens:>15,} tokens {file.size:>15,} bytes")
        if len(files) > 6 and file is files[2]:
            click.echo(f"  ... {len(files) - 5} more")


def warning_lines(warnings: list[str]) -> list[str]:
    return [f"  {click.style('warning', fg='yellow')}: {printable(text)}" for text in warnings]


CHECKED_KINDS = {
    "checked_white_space": "begin or end in white space",
    "checked_marks": "with combining marks",
    "checked_added": "with added tokens",
    "checked_digits": "with digits or signs after spaces",
    "checked_script": "of a new script",
    "checked_other": "others",
}
SPECIAL_CASES = {
    "reference_documents": "went to the reference encoder (newer Unicode, or added tokens)",
    "reference_failures": "that the reference cannot encode: the fast one did",
}


def check_line(result: Result) -> str:
    """How many documents were encoded twice, and what kind of documents they were."""
    run, encoder = result.run, result.run["encoder"]
    checked = encoder["checked_documents"]
    if run["encoder_check"] == "all":
        # A unit that was done twice, and a document in pieces, count more than once.
        checked = min(checked, result.manifest.counts["rows"])
        every, who = "all ", " that this run encoded were" if run["units_resumed"] else ""
        alone = encoder["reference_documents"]
        more = f" ({alone:,} more were encoded by the reference alone)" if alone else ""
    elif checked > result.manifest.counts["documents"]:
        # Also documents that a limit or a length left out, and those of a unit done twice.
        checked, every, who, more = result.manifest.counts["documents"], "", "", ""
    else:
        every = who = ""
        kinds = [f"{encoder[key]:,} {what}" for key, what in CHECKED_KINDS.items() if encoder[key]]
        more = f" ({', '.join(kinds)})" if kinds else ""
    what = f"{every}{counted(checked, 'document')}{who}"
    return f"{what} encoded again by the reference, all equal{more}"


def echo_part(result: Result) -> None:
    """Of one part of a job: what is recorded of it, and how to go on."""
    counts = result.manifest.counts
    done = "was done already" if result.already_done else "is done"
    output = shlex.quote(result.output)
    if "files" in result.run:
        files, made = result.run["files"], result.run["files_made"]
        here = f" ({files - made:,} were there)" if 0 < made < files else ""
        click.echo(
            f"part {result.part} of finish {done}: {counted(files, 'file')} of "
            f"{result.run['files_in_all']:,}{here}"
        )
        click.echo(f"then, once: tokenmill finish {output}")
        return
    click.echo(
        f"part {result.part} {done}: {counted(counts['documents'], 'document')}, "
        f"{counted(counts['tokens'], 'token')}, {counted(counts['quarantined'], 'row')} quarantined"
    )
    click.echo(f"when all parts are done: tokenmill finish {output}")


def echo_summary(result: Result) -> None:
    if result.part:
        echo_part(result)
        return
    manifest, counts = result.manifest, result.manifest.counts
    settings = manifest.settings
    echo_files(result)
    for split in (split for split in manifest.splits if split.format == settings.first.format):
        documents, tokens = counted(split.documents, "document"), counted(split.tokens, "token")
        click.echo(f"  {split.name + ':':6} {documents}, {tokens}")
    click.echo(
        f"  rows:  {counts['rows']:,} read = {counts['documents']:,} written + "
        f"{counts['dropped']:,} dropped + {counts['quarantined']:,} quarantined"
        + not_chosen_note(counts)
        + empty_note(settings.drop_empty, counts)
    )
    for line in (*_left_out(settings, counts), *mixture_lines(manifest)):
        click.echo(line)
    if settings.vocab_size > 1 << 16:
        shown = {get_format(one.format).shown_dtype(one): None for one in settings.layouts}
        ids = f"{settings.vocab_size:,} ids do not fit uint16"
        click.echo(f"  dtype: {' and '.join(shown)}, since {ids}")
    encoder = result.run.get("encoder", {})
    if encoder.get("name", "gigatoken") != "gigatoken":
        click.echo(f"  encoder: {encoder['name']}, not gigatoken: {printable(encoder['why'])}")
    if reused := result.run.get("reused"):
        documents = counted(reused["documents"], "document")
        told = f"{documents} of {printable(reused['from'])}, encoded {reused['encoded']:,}"
        click.echo(f"  reused {told}")
    if encoder.get("checked_documents"):
        click.echo(f"  check: {check_line(result)}")
    for key, what in SPECIAL_CASES.items():
        if encoder.get(key):
            click.echo(f"  note:  {counted(encoder[key], 'document')} {what}")
    for line in warning_lines(result.warnings):
        click.echo(line)
    if counts["quarantined"]:
        click.echo(
            f"  quarantined: {printable(_quarantine_path(result))} (tokenmill inspect "
            f"{shlex.quote(printable(result.output))} --quarantine shows the rows)"
        )
    if not result.already_done:
        resumed = result.run.get("units_resumed", 0)
        again = f", {counted(resumed, 'unit')} done before" if resumed else ""
        speed = show_speed(counts["text_bytes"] / max(result.seconds, 1e-3))
        rate = f" ({speed} of text)" if not resumed else ""
        click.echo(f"  done in {show_duration(result.seconds)}{rate}{again}")
    echo_load_lines(result)


def echo_load_lines(result: Result) -> None:
    """The lines of code that read each format, to paste."""
    settings = result.manifest.settings
    files = [file for file in result.manifest.files if file.kind == "tokens"]
    if not files:
        return
    click.echo("\nload it:")
    if is_bucket(result.output):
        click.echo("  import tokenmill")
        click.echo(f"  tokens = tokenmill.open_dataset({result.output!r})['train'].tokens")
        return
    for layout in settings.layouts:
        mine = [file for file in files if file.format == layout.format]
        shown = next((file for file in mine if file.split == "train"), mine[0])
        folder = os.path.join(result.output, settings.folder_of(layout)).rstrip("/")
        name = shown.path.removeprefix(settings.folder_of(layout))
        there = settings
        if not any(file.split == "val" for file in mine):  # name no file that is not there
            there = msgspec.structs.replace(settings, val=Val(kind="none"))
        for line in get_format(layout.format).load_lines(there, layout, folder, name):
            click.echo(f"  {printable(line)}" if line else "")
