"""The command line: thin commands over the library. Output on stdout, progress on stderr."""

from __future__ import annotations

import io
import os
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from tokenmill import __version__
from tokenmill.cli_convert import export_command, import_command
from tokenmill.cli_options import plan_options, takes_value
from tokenmill.errors import (
    EXIT_OK,
    EXIT_QUARANTINED,
    Interrupted,
    TokenmillError,
    printable,
    safe,
    without_secrets,
)
from tokenmill.interrupts import Interrupts, end_in_time, take_over

if TYPE_CHECKING:
    from tokenmill.config import PlanSettings
    from tokenmill.pipeline import Prepared, Result

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def main() -> None:
    """Entry point: our errors become a message and an exit code, never a traceback."""
    sys.stdout = sys.stdout or io.StringIO()  # closed by the caller: print to nowhere
    sys.stderr = sys.stderr or io.StringIO()
    interrupts, told = Interrupts(), Event()
    try:
        end_in_time(lambda number: _report(Interrupts.stopped_by(number)), told)
        take_over(interrupts)
        status = _run(interrupts)
    except KeyboardInterrupt:
        status = _report(interrupts.error()) if interrupts.received else 130
    interrupts.enough()
    told.set()
    try:
        sys.stdout.flush()
    except OSError as error:
        click.echo(f"error: the output cannot be written: {error.strerror or error}", err=True)
        sys.stdout = io.StringIO()
        status = status or 1
    sys.exit(status)


def _run(interrupts: Interrupts) -> int:
    """The exit code, after what there is to say has been said."""
    try:
        status = cli.main(standalone_mode=False)
    except TokenmillError as error:
        return _report(error)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        click.echo(without_secrets(printable(told.getvalue(), keep="\n")), err=True, nl=False)
        return error.exit_code
    except click.Abort:
        return _report(interrupts.error()) if interrupts.received else 130
    except SystemExit as stop:  # click's answer to a reader that has gone (| head): that is fine
        gone = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")
        status = EXIT_OK if gone else stop.code
    except OSError as error:
        click.echo(f"error: the output cannot be written: {error.strerror or error}", err=True)
        return 1
    return status if isinstance(status, int) else EXIT_OK


def _report(error: TokenmillError) -> int:
    if os.environ.get("TOKENMILL_DEBUG"):
        import traceback

        traceback.print_exception(error)
    word = "interrupted" if isinstance(error, Interrupted) else "error"
    click.echo(f"{click.style(word, fg='red', bold=True)}: {error.message}", err=True)
    if isinstance(error, Interrupted):
        if sys.argv[1:2] in (["prepare"], ["export"], ["import"]):
            click.echo(f"resume with: {safe(_same_command())}", err=True)
    elif error.hint:
        click.echo(f"{click.style('hint', fg='cyan')}: {error.hint}", err=True)
    return error.exit_code


_begun = False  # a job of this process is open: what --overwrite removes is removed


def _same_command() -> str:
    """What was typed, but what it has removed is not to be removed again."""
    import shlex

    command = ["tokenmill", *sys.argv[1:]]
    if os.path.basename(sys.argv[0]) == "__main__.py":
        command[:1] = [sys.orig_argv[0], "-m", "tokenmill"]
    if _begun:
        # It may also be the value of another option, or a file's name.
        values = {name for option in prepare.params for name in option.opts if takes_value(option)}
        end = command.index("--") if "--" in command else len(command)
        command = [
            word
            for i, word in enumerate(command)
            if word != "--overwrite" or i > end or command[i - 1] in values
        ]
    return shlex.join(command)


@click.group(
    context_settings=CONTEXT,
    epilog=_examples(
        "tokenmill prepare data/*.parquet -o out",
        "tokenmill prepare data/ -o shards --format llmc --tokenizer gpt2",
        "tokenmill plan data/ -o out",
        "tokenmill verify out",
        "tokenmill inspect out",
    ),
)
@click.version_option(__version__, prog_name="tokenmill")
def cli() -> None:
    """Text in, training tokens out: exact, crash-safe, resumable."""


@cli.command(
    context_settings=CONTEXT,
    epilog=_examples(
        "tokenmill prepare data/*.parquet -o out",
        "tokenmill prepare a.jsonl.zst b.jsonl -o out --text-column data.text",
        "tokenmill prepare saved_by_datasets/ -o out",
        "tokenmill prepare data/ -o edu --format llmc --shard-tokens 100M --val shard",
        "tokenmill prepare data/ -o out --tokenizer o200k_base --val docs:1000",
        "tokenmill prepare data/ -o try --tokenizer models/qwen2_5 --limit-docs 1000",
        "tokenmill prepare novels.txt -o out --text-separator '\\n\\n'",
    ),
)
@plan_options
@click.option("--quiet", is_flag=True, help="No plan and no progress.")
def prepare(
    inputs: tuple[str, ...], output: str, as_json: bool, quiet: bool, **options: Any
) -> int:
    """Turn parquet, Arrow, JSON lines and text into token files.

    INPUTS are files, directories or globs. The same command resumes after any interruption.
    """
    if options["workers"] != 0 and options["start_method"] == "forkserver":
        # Before anything heavy is imported: the encoder opens on one core, we load on the other.
        from tokenmill.engines.forkserver import start_fork_server

        start_fork_server(
            options["tokenizer"],
            options["encoder"],
            options["encoder_check"],
            options["pattern"],
            alone=True,
        )

    from tokenmill.engines.observer import Observer
    from tokenmill.pipeline import prepare as run
    from tokenmill.progress import LiveProgress, PlainProgress

    observer: Observer
    if quiet:
        observer = Observer()
    else:
        observer = LiveProgress() if sys.stderr.isatty() else PlainProgress()

    def on_plan(prepared: Prepared) -> None:
        global _begun
        _begun = True
        if not quiet:
            click.echo(_plan_line(prepared), err=True)

    try:
        result = run(list(inputs), output, observer=observer, on_plan=on_plan, **options)
    finally:
        if isinstance(observer, LiveProgress):
            observer.close()
    if as_json:
        _echo_json(_result_dict(result))
    else:
        _echo_summary(result)
    return EXIT_QUARANTINED if result.manifest.counts["quarantined"] else EXIT_OK


@cli.command(
    context_settings=CONTEXT,
    epilog=_examples(
        "tokenmill plan data/ -o out --format llmc",
        "tokenmill plan data/*.jsonl.gz -o out --json",
        "tokenmill plan data/ -o out --format llmc --min-shard-tokens 1M --no-probe",
    ),
)
@plan_options
@click.option("--no-probe", is_flag=True, help="Do not read and encode samples for two seconds.")
def plan(
    inputs: tuple[str, ...], output: str, as_json: bool, no_probe: bool, **options: Any
) -> int:
    """Show what `prepare` with the same arguments would read, write, need and take.

    Writes nothing. Tokens are exact where all sources have FineWeb's column token_count and the
    tokenizer is gpt2; else they, and the time, are estimated from a probe of two seconds.
    """
    from tokenmill.config import parse_count
    from tokenmill.encoders.arrays import use_stand_in

    use_stand_in()  # this process is ours alone: the probe encodes as workers do
    from tokenmill.estimate import make_estimate
    from tokenmill.job import refuse_output
    from tokenmill.options import make_options
    from tokenmill.pipeline import make_plan
    from tokenmill.reporting import plan_dict, plan_lines
    from tokenmill.storage import Workspace

    least = options["min_shard_tokens"]
    prepared = make_plan(list(inputs), output, make_options(options))
    if not prepared.run.overwrite:
        refuse_output(prepared.plan, Workspace(output))
    estimate = make_estimate(
        prepared,
        probe=not no_probe,
        min_shard_tokens=None if least is None else parse_count(least, what="--min-shard-tokens"),
    )
    if as_json:
        _echo_json(plan_dict(prepared, estimate))
        return EXIT_OK
    click.echo(_plan_line(prepared))
    for line in plan_lines(prepared, estimate):
        click.echo(line)
    return EXIT_OK


@cli.command(
    context_settings=CONTEXT,
    epilog=_examples(
        "tokenmill inspect out",
        "tokenmill inspect out --document 17",
        "tokenmill inspect out --split val --document 0 --full",
        "tokenmill inspect out --token 1000000 --json",
    ),
)
@click.argument("directory")
@click.option("--document", type=int, metavar="N", help="Show this document, counted from 0.")
@click.option("--token", type=int, metavar="N", help="Show the document that holds this token.")
@click.option("--split", default="train", show_default=True, help="train or val.")
@click.option("--full", is_flag=True, help="Show long documents to their end.")
@click.option("--tokenizer", metavar="FILE", help="Where the tokenizer's file is now.")
@click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout.")
def inspect(
    directory: str,
    document: int | None,
    token: int | None,
    split: str,
    full: bool,
    tokenizer: str | None,
    as_json: bool,
) -> int:
    """Show what is in a dataset: settings, splits, document lengths, sources; or one document."""
    import msgspec

    from tokenmill.inspection import inspect as summarize
    from tokenmill.inspection import inspect_document
    from tokenmill.reporting import document_lines, summary_lines

    if document is not None and token is not None:
        raise click.UsageError("--document and --token: give one of them")
    if document is None and token is None:
        summary = summarize(directory)
        lines, found = summary_lines(summary), msgspec.to_builtins(summary)
    else:
        view = inspect_document(
            directory, document=document, token=token, split=split, tokenizer=tokenizer
        )
        lines = document_lines(view, full=full, color=sys.stdout.isatty())
        found = msgspec.to_builtins(view)
    if as_json:
        _echo_json(found)
    else:
        if isinstance(sys.stdout, io.TextIOWrapper):  # any text may be shown, on any terminal
            sys.stdout.reconfigure(errors="backslashreplace")
        click.echo("\n".join(lines))
    return EXIT_OK


@cli.command(
    context_settings=CONTEXT,
    epilog=_examples(
        "tokenmill verify out",
        "tokenmill verify out --json",
        "tokenmill verify out --deep",
        "tokenmill verify out --deep --sample all --source-root /new/place/of/inputs",
    ),
)
@click.argument("directory")
@click.option("--deep", is_flag=True, help="Also read the sources and encode documents again.")
@click.option(
    "--sample",
    metavar="N|all",
    help="With --deep: so many documents, or all.  [default: what a minute allows]",
)
@click.option("--source-root", metavar="DIR", help="With --deep: where the inputs lie now.")
@click.option("--tokenizer", metavar="FILE", help="With --deep: where the tokenizer's file is now.")
@click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout.")
def verify(directory: str, deep: bool, as_json: bool, **options: str | None) -> int:
    """Compare every byte of a dataset with its manifest: exit 0, or 3 and what is wrong.

    With --deep also with its sources: documents are read again, encoded by the reference encoder,
    and must be where they belong, token by token.
    """
    if deep:
        return _verify_deep(directory, as_json, options)
    if any(value is not None for value in options.values()):
        raise click.UsageError("--sample, --source-root and --tokenizer are for --deep")
    import msgspec

    from tokenmill.verification import verify as check

    report = check(directory)
    if as_json:
        _echo_json({**msgspec.to_builtins(report), "ok": report.ok})
    elif report.ok:
        speed = report.bytes / max(report.seconds, 1e-3) / 1e9
        click.echo(
            f"{click.style('ok', fg='green', bold=True)}: {report.files} files, "
            f"{report.bytes / 1e6:.1f} MB, {report.seconds:.2f} s ({speed:.1f} GB/s)"
        )
    else:
        for problem in report.problems:
            click.echo(f"{click.style('bad', fg='red', bold=True)}: {problem}")
    return 0 if report.ok else 3


def _verify_deep(directory: str, as_json: bool, options: dict[str, Any]) -> int:
    from tokenmill.deep import verify_deep
    from tokenmill.reporting import deep_dict, deep_lines, deep_progress

    report = verify_deep(directory, on_progress=deep_progress(), **options)
    if as_json:
        _echo_json(deep_dict(report))
    else:
        click.echo("\n".join(deep_lines(report)))
    return 0 if report.ok else 3


# --- what is printed -------------------------------------------------------------------------


def _echo_json(value: dict[str, Any]) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def _plan_line(prepared: Prepared) -> str:
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


def _result_dict(result: Result) -> dict[str, Any]:
    import msgspec

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


def _echo_summary(result: Result) -> None:
    import msgspec

    from tokenmill.config import PlanSettings
    from tokenmill.formats import get_format
    from tokenmill.progress import duration

    manifest, counts = result.manifest, result.manifest.counts
    settings = msgspec.convert(manifest.plan["settings"], PlanSettings)
    if result.already_done:
        click.echo(f"{printable(result.output)}: already complete, nothing to do")
    files = [f for f in manifest.files if f.kind == "tokens"]
    for file in files if len(files) <= 6 else [*files[:3], *files[-2:]]:
        click.echo(f"  {file.path:32} {file.tokens:>15,} tokens {file.size:>15,} bytes")
        if len(files) > 6 and file is files[2]:
            click.echo(f"  ... {len(files) - 5} more")
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
            f"  check: {encoder['checked_documents']} documents encoded again by the reference, "
            "all equal"
        )
    for key, what in (
        ("reference_documents", "documents went to the reference encoder (newer Unicode)"),
        ("reference_failures", "documents that the reference cannot encode: the fast one did"),
    ):
        if encoder.get(key):
            click.echo(f"  note:  {encoder[key]} {what}")
    for warning in result.warnings:
        click.echo(f"  {click.style('warning', fg='yellow')}: {warning}")
    if counts["quarantined"]:
        click.echo(f"  set aside: {printable(result.output)}/quarantine.jsonl")
    if not result.already_done:
        resumed = result.run.get("units_resumed", 0)
        again = f", {resumed} units were durable already" if resumed else ""
        speed = counts["text_bytes"] / max(result.seconds, 1e-3) / 1e6
        rate = f" ({speed:.0f} MB/s of text)" if not resumed else ""
        click.echo(f"  done in {duration(result.seconds)}{rate}{again}")
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


cli.add_command(export_command)
cli.add_command(import_command)
