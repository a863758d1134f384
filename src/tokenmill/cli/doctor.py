"""The command `doctor`: the machine, a function that does not pickle, a command that dies."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenmill.cli.options import JSON, command, echo_json
from tokenmill.errors import EXIT_OK, UsageError, printable

if TYPE_CHECKING:
    from tokenmill.doctor.pickling import PickleReport

STDERR = 2  # its file descriptor


@command(
    "tokenmill doctor",
    "tokenmill doctor --directory /data/out",
    "tokenmill doctor train.py:tokenize",
    "tokenmill doctor train.py:tokenize --patch | patch -p0",
    "tokenmill doctor --why-died -- python train.py --num-proc 8",
    short_help="Diagnose the machine, a function, or a crashing command.",
)
@click.argument("words", nargs=-1, type=click.Path(), metavar="[SCRIPT:FUNCTION | -- COMMAND...]")
@click.option(
    "--patch",
    is_flag=True,
    help="Print a diff that repairs the script, which is imported for that and not changed.",
)
@click.option("--why-died", is_flag=True, help="Run COMMAND and say how a process of it died.")
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(),
    help="Also measure how fast this folder is written.",
)
@click.option("--offline", is_flag=True, help="Do not try to reach the Hub.")
@JSON
def doctor(
    words: tuple[str, ...],
    patch: bool,
    why_died: bool,
    directory: str | None,
    offline: bool,
    as_json: bool,
) -> int:
    """Diagnose the machine, a function that does not pickle, or a crashing command.

    Without arguments: the machine. With SCRIPT:FUNCTION: the very object in it that does not reach
    another process, under pickle, dill and cloudpickle. The script is imported for that: what it
    does outside of functions and of `if __name__ == "__main__":` is done.
    """
    if why_died:
        if not words:
            hint = "tokenmill doctor --why-died -- python train.py"
            raise UsageError("--why-died: no command", hint=hint)
        return _why_died(words, as_json)
    if len(words) > 1:
        hint = "a command to watch needs --why-died"
        raise UsageError(f"{words[1]}: one function at a time", hint=hint)
    if words:
        return _repair(words[0]) if patch else _explain(words[0], as_json)
    if patch:
        raise UsageError("--patch: of which script?", hint="tokenmill doctor --patch train.py:fn")
    return _machine(directory, offline, as_json)


def _machine(directory: str | None, offline: bool, as_json: bool) -> int:
    from tokenmill.doctor.machine import check_lines, examine

    checks = examine(directory, network=not offline)
    if as_json:
        echo_json([check._asdict() for check in checks])
    else:
        for line in check_lines(checks):
            click.echo(printable(line))
    return 1 if any(check.level == "bad" for check in checks) else EXIT_OK


def _report_on(text: str, path: Path, name: str) -> PickleReport:
    from tokenmill.doctor.pickling import explain_pickle
    from tokenmill.doctor.scripts import as_main, function_in

    with as_main(text, path) as module:
        return explain_pickle(function_in(module, text, path, name))


def _explain(target: str, as_json: bool) -> int:
    from tokenmill.doctor.patching import patch_script
    from tokenmill.doctor.scripts import read_script, split_target

    path, name = split_target(target)
    text, _ = read_script(path)
    report = _report_on(text, path, name)
    if as_json:
        verdicts = [{**verdict._asdict(), "ok": verdict.ok} for verdict in report.verdicts]
        echo_json({**report._asdict(), "verdicts": verdicts, "ok": report.ok})
    else:
        click.echo(str(report))
        if not report.ok and patch_script(text).text != text:
            click.echo(f"\na diff that repairs it: tokenmill doctor --patch {printable(target)}")
    return EXIT_OK if report.ok else 1


def _repair(target: str) -> int:
    """The diff on stdout, all else on stderr: `| patch -p0` works."""
    from tokenmill.doctor.patching import name_in_diff, patch_script, unified_diff
    from tokenmill.doctor.scripts import read_script, split_target

    path, name = split_target(target)
    text, encoding = read_script(path)
    try:
        patched = patch_script(text)
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}") from None
    for note in patched.notes:
        click.echo(f"note: {printable(note)}", err=True)
    if patched.text == text:
        return _left_alone(text, path, name, patched.ours)
    click.echo(unified_diff(text, patched.text, path, encoding), nl=False)
    sys.stdout.flush()
    if name_in_diff(path).startswith(("/", "../")):  # `patch` takes such names for dangerous
        click.echo(f"note: to apply it: patch {shlex.quote(str(path))}", err=True)
    try:
        report = _report_on(patched.text, path, name)
    except UsageError as error:
        click.echo(f"after the patch: not tried, {error.message}", err=True)
        return EXIT_OK
    click.echo(f"after the patch: {report}", err=True)
    return EXIT_OK if report.ok else 1


def _left_alone(text: str, path: Path, name: str, ours: bool) -> int:
    """No diff: where the function reaches a worker already, that is no failure."""
    try:
        report = _report_on(text, path, name)
    except UsageError as error:
        done = "nothing to repair: its tokenizers are tokenmill's already" if ours else "no repair"
        click.echo(f"{printable(str(path))}: {done}; not tried: {error.message}", err=True)
        return EXIT_OK if ours else 1
    what = "nothing that --patch knows how to repair"
    if report.ok:
        is_ours = "its tokenizers are tokenmill's already" if ours else "it needs none"
        what = f"nothing to repair: {is_ours}"
    click.echo(f"{printable(str(path))}: {what}\n{report}", err=True)
    return EXIT_OK if report.ok else 1


def _why_died(words: tuple[str, ...], as_json: bool) -> int:
    from tokenmill.doctor.postmortem import Postmortem, as_dict, report_lines
    from tokenmill.doctor.watching import watch

    def tell(found: Postmortem) -> None:
        if not as_json:
            lines = ["", "tokenmill doctor:", *report_lines(found)]
            click.echo("\n".join(lines), err=True)  # the command's own output stays as it is
        elif found.state != "running":  # one object, when all is over
            echo_json(as_dict(found))

    # With --json stdout is for the report alone: what the command prints goes to stderr.
    found = watch(words, tell, stdout=STDERR if as_json else None)
    tell(found)
    return found.exit_code
