"""The command line: thin commands over the library. Output on stdout, progress on stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokenmill._version import __version__
from tokenmill.cli.convert import export_command, finish, import_command, mix
from tokenmill.cli.doctor import doctor
from tokenmill.cli.help import WHOLE_NUMBER, OrderedGroup, asks_for_json, choices
from tokenmill.cli.options import CONTEXT, JSON, command, echo_json, examples
from tokenmill.cli.prepare import fineweb, plan, prepare, same_command
from tokenmill.errors import EXIT_OK, Interrupted, TokenmillError, printable, safe, without_secrets
from tokenmill.system.interrupts import Interrupts, end_in_time, take_over

if TYPE_CHECKING:
    from tokenmill.dataset.deep.comparison import DeepReport
    from tokenmill.dataset.verification import Report

QUARANTINED_SHOWN = 20
RESUMABLE = ("prepare", "fineweb", "finish", "export", "import")


def main() -> None:
    """Entry point: our errors become a message and an exit code, never a traceback."""
    sys.stdout = sys.stdout or io.StringIO()  # closed by the caller: print to nowhere
    sys.stderr = sys.stderr or io.StringIO()
    interrupts, told = Interrupts(), Event()
    try:
        end_in_time(lambda number: _report(Interrupts.stopped_by(number)), told)
        take_over(interrupts)
        status = _run()
    except (KeyboardInterrupt, click.Abort) as stop:
        known = stop.__cause__ if isinstance(stop, click.Abort) else stop  # click wraps it
        error = known if isinstance(known, Interrupted) else None
        status = _report(error or interrupts.error()) if error or interrupts.received else 130
    interrupts.enough()
    told.set()
    try:
        sys.stdout.flush()
    except OSError as error:
        click.echo(f"error: the output cannot be written: {error.strerror or error}", err=True)
        sys.stdout = io.StringIO()
        status = status or 1
    sys.exit(status)


def _run() -> int:
    """The exit code, after what there is to say has been said."""
    try:
        status = cli.main(standalone_mode=False)
    except TokenmillError as error:
        return _report(error)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        click.echo(without_secrets(printable(told.getvalue(), keep="\n")), err=True, nl=False)
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context is not None else "tokenmill --help"
        message = without_secrets(printable(error.format_message()))
        _report_json("UsageError", message, hint, error.exit_code)
        return error.exit_code
    except SystemExit as stop:  # click's answer to a reader that has gone (| head): that is fine
        gone = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")
        status = EXIT_OK if gone else stop.code
    except OSError as error:
        click.echo(f"error: the output cannot be written: {error.strerror or error}", err=True)
        return 1
    return status if isinstance(status, int) else EXIT_OK


def _report(error: TokenmillError | Interrupted) -> int:
    if os.environ.get("TOKENMILL_DEBUG"):
        import traceback

        traceback.print_exception(error)
    word = "interrupted" if isinstance(error, Interrupted) else "error"
    click.echo(f"{click.style(word, fg='red', bold=True)}: {error.message}", err=True)
    if isinstance(error, Interrupted):
        if sys.argv[1:2] and sys.argv[1] in RESUMABLE:
            again = "resume with" if "resume" in error.hint else "run it again with"
            click.echo(f"{again}: {safe(same_command())}", err=True)
    elif error.hint:
        click.echo(f"{click.style('hint', fg='cyan')}: {error.hint}", err=True)
    _report_json(type(error).__name__, error.message, error.hint, error.exit_code)
    return error.exit_code


def _report_json(kind: str, message: str, hint: str, exit_code: int) -> None:
    """With --json a program reads stdout: it is told there too, in place of the result."""
    if not asks_for_json(cli, sys.argv[1:]):
        return
    error = {"type": kind, "message": message, "hint": hint, "exit_code": exit_code}
    with contextlib.suppress(OSError):  # nobody reads it
        echo_json({"error": error})


@click.group(
    cls=OrderedGroup,
    context_settings=CONTEXT,
    epilog=examples(
        "tokenmill prepare data/*.parquet -o out",
        "tokenmill prepare data/ -o shards --format llmc --tokenizer gpt2",
        "tokenmill fineweb --version 10B",
        "tokenmill plan data/ -o out",
        "tokenmill status out",
        "tokenmill verify out",
        "tokenmill inspect out",
        "tokenmill doctor",
    ),
)
@click.version_option(__version__, prog_name="tokenmill")
def cli() -> None:
    """Text in, training tokens out: exact, crash-safe, resumable."""


@command(
    "tokenmill status out",
    "tokenmill status out --json",
    short_help="Say how far a folder is, and how to go on.",
)
@click.argument("directory", type=click.Path())
@JSON
def status(directory: str, as_json: bool) -> None:
    """Say how far an unfinished folder is, what it is bound to, and how to go on.

    Changes nothing, and may be asked while a run is at work in the folder.
    """
    from tokenmill.cli.status_report import status_lines
    from tokenmill.dataset.status import status as look

    found = look(directory)
    echo_json(found) if as_json else click.echo("\n".join(status_lines(found, os.getcwd())))


@command(
    "tokenmill inspect out",
    "tokenmill inspect out --document 17",
    "tokenmill inspect out --split val --document 0 --full",
    "tokenmill inspect out --token 1000000 --json",
    "tokenmill inspect out --source part-3.parquet --row 17",
    "tokenmill inspect out --quarantine",
    short_help="Show what is in a dataset, and where it came from.",
)
@click.argument("directory", type=click.Path())
@click.option(
    "--document", type=WHOLE_NUMBER, metavar="N", help="Show this document, counted from 0."
)
@click.option(
    "--token", type=WHOLE_NUMBER, metavar="N", help="Show the document that holds this token."
)
@click.option(
    "--source",
    metavar="FILE",
    help="With --row: the input file, as the manifest names it, the end of that name, or its path.",
)
@click.option(
    "--row",
    type=WHOLE_NUMBER,
    metavar="N",
    help="Say where this row of --source went, counted from 0.",
)
@click.option(
    "--split", default="train", **choices("train", "val"), help="Split to show, train or val."
)
@click.option("--quarantine", is_flag=True, help="Show the rows that were quarantined, and why.")
@click.option(
    "--full", is_flag=True, help="Show long documents to their end, and all quarantined rows."
)
@click.option(
    "--tokenizer", metavar="FILE", type=click.Path(), help="Where the tokenizer's file is now."
)
@JSON
def inspect(directory: str, full: bool, quarantine: bool, as_json: bool, **place: Any) -> None:
    """Show what is in a dataset: settings, splits, document lengths, sources; or one document; or
    where a row of a source went; or the quarantined rows."""
    from tokenmill.cli.documents import document_lines, quarantine_lines, row_lines
    from tokenmill.cli.reports import summary_lines
    from tokenmill.dataset.inspection import inspect as summarize
    from tokenmill.dataset.inspection import inspect_document, inspect_quarantine
    from tokenmill.dataset.provenance import inspect_row

    source, row = place.pop("source"), place.pop("row")
    if (source is None) != (row is None):
        raise click.UsageError("--source FILE and --row N: give both of them")
    asked = sum(place[option] is not None for option in ("document", "token"))
    if asked + (row is not None) + quarantine > 1:
        raise click.UsageError("--document, --token, --row and --quarantine: give one of them")
    how = click.get_current_context().get_parameter_source("split")
    if not asked and how is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            f"--split {place['split']} is for --document N or --token N; without them both splits "
            "are shown"
        )
    found: object
    if quarantine:
        limit = None if full or as_json else QUARANTINED_SHOWN
        found = report = inspect_quarantine(directory, limit=limit)
        lines = quarantine_lines(report, full=full)
    elif asked:
        found = view = inspect_document(directory, **place)
        lines = document_lines(view, full=full, color=sys.stdout.isatty())
    elif row is not None:
        found = there = inspect_row(directory, source=source, row=row)
        lines = row_lines(there, directory)
    else:
        found = summary = summarize(directory)
        lines = summary_lines(summary)
    if as_json:
        echo_json(found)
        return
    if isinstance(sys.stdout, io.TextIOWrapper):  # any text may be shown, on any terminal
        sys.stdout.reconfigure(errors="backslashreplace")
    click.echo("\n".join(lines))


@command(
    "tokenmill verify out",
    "tokenmill verify out --json",
    "tokenmill verify out --deep",
    "tokenmill verify out --deep --sample all --source-root /new/place/of/inputs",
    short_help="Compare a dataset with its manifest, or its sources.",
)
@click.argument("directory", type=click.Path())
@click.option("--deep", is_flag=True, help="Also read the sources and encode documents again.")
@click.option(
    "--sample",
    metavar="N|all",
    help="With --deep: so many documents, or all.  [default: what a minute allows]",
)
@click.option(
    "--source-root",
    metavar="DIR",
    type=click.Path(),
    help="With --deep: where the inputs are now.",
)
@click.option(
    "--tokenizer",
    metavar="FILE",
    type=click.Path(),
    help="With --deep: where the tokenizer's file is now.",
)
@JSON
def verify(directory: str, deep: bool, as_json: bool, **options: Any) -> int:
    """Compare every byte of a dataset with its manifest: exit 0, or 3 and what is wrong.

    With --deep also with its sources: documents are read again, encoded by the reference encoder,
    and must be where they belong, token by token.
    """
    if not deep and any(value is not None for value in options.values()):
        raise click.UsageError("--sample, --source-root and --tokenizer are for --deep")
    import msgspec

    from tokenmill.cli.progress import deep_progress
    from tokenmill.cli.reports import deep_lines, verify_lines
    from tokenmill.dataset.deep.verification import verify_deep
    from tokenmill.dataset.verification import verify as check

    report: Report | DeepReport
    if deep:
        report = verify_deep(directory, on_progress=deep_progress(), **options)
        lines = deep_lines(report)
    else:
        report = check(directory)
        lines = verify_lines(report)
    if as_json:
        echo_json({"ok": report.ok, **msgspec.structs.asdict(report)})
    else:
        click.echo("\n".join(lines))
    return 0 if report.ok else 3


for _one in (
    plan,
    prepare,
    fineweb,
    status,
    verify,
    inspect,
    finish,
    export_command,
    import_command,
    mix,
    doctor,
):
    cli.add_command(_one)
