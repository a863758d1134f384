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
from tokenmill.cli_doctor import doctor
from tokenmill.cli_options import CONTEXT, examples
from tokenmill.cli_prepare import fineweb, is_resumable, plan, prepare, same_command
from tokenmill.errors import (
    EXIT_OK,
    Interrupted,
    TokenmillError,
    printable,
    safe,
    without_secrets,
)
from tokenmill.interrupts import Interrupts, end_in_time, take_over

if TYPE_CHECKING:
    pass


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
        if is_resumable(sys.argv[1:]):
            click.echo(f"resume with: {safe(same_command())}", err=True)
    elif error.hint:
        click.echo(f"{click.style('hint', fg='cyan')}: {error.hint}", err=True)
    return error.exit_code


@click.group(
    context_settings=CONTEXT,
    epilog=examples(
        "tokenmill prepare data/*.parquet -o out",
        "tokenmill prepare data/ -o shards --format llmc --tokenizer gpt2",
        "tokenmill fineweb --version 10B",
        "tokenmill plan data/ -o out",
        "tokenmill verify out",
        "tokenmill inspect out",
        "tokenmill doctor",
    ),
)
@click.version_option(__version__, prog_name="tokenmill")
def cli() -> None:
    """Text in, training tokens out: exact, crash-safe, resumable."""


cli.add_command(prepare)
cli.add_command(fineweb)
cli.add_command(plan)


@cli.command(
    short_help="Show what is in a dataset, and where it came from.",
    context_settings=CONTEXT,
    epilog=examples(
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
    from tokenmill.summary import echo_json

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
        echo_json(found)
    else:
        if isinstance(sys.stdout, io.TextIOWrapper):  # any text may be shown, on any terminal
            sys.stdout.reconfigure(errors="backslashreplace")
        click.echo("\n".join(lines))
    return EXIT_OK


@cli.command(
    short_help="Compare a dataset with its manifest, or its sources.",
    context_settings=CONTEXT,
    epilog=examples(
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

    from tokenmill.summary import echo_json
    from tokenmill.verification import verify as check

    report = check(directory)
    if as_json:
        echo_json({**msgspec.to_builtins(report), "ok": report.ok})
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
    from tokenmill.summary import echo_json

    report = verify_deep(directory, on_progress=deep_progress(), **options)
    if as_json:
        echo_json(deep_dict(report))
    else:
        click.echo("\n".join(deep_lines(report)))
    return 0 if report.ok else 3


cli.add_command(export_command)
cli.add_command(import_command)
cli.add_command(doctor)
