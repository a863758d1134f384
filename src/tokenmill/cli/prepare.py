"""The commands that make a dataset, or say what making it would take: prepare, fineweb, plan."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokenmill.cli.config import refuse_existing, save_config
from tokenmill.cli.help import flag_places
from tokenmill.cli.options import (
    command,
    echo_json,
    fineweb_options,
    no_probe,
    plan_options,
    run_options,
)
from tokenmill.errors import EXIT_OK, EXIT_QUARANTINED, printable, safe

if TYPE_CHECKING:
    from tokenmill.planning.make import Proposal

_begun = False  # a job of this process is open: --overwrite has removed what it removes


def same_command() -> str:
    """The command as typed, but without an --overwrite that has done its work."""
    words = ["tokenmill", *sys.argv[1:]]
    if os.path.basename(sys.argv[0]) == "__main__.py":
        words[:1] = [sys.orig_argv[0], "-m", "tokenmill"]
    if _begun:
        gone = flag_places("--overwrite", words, (*prepare.params, *fineweb.params))
        words = [word for i, word in enumerate(words) if i not in gone]
    return shlex.join(words)


@command(
    "tokenmill prepare data/*.parquet -o out",
    "tokenmill prepare a.jsonl.zst b.jsonl -o out --text-column data.text",
    "tokenmill prepare saved_by_datasets/ -o out",
    "tokenmill prepare data/ -o edu --format llmc --shard-tokens 100M --val shard",
    "tokenmill prepare data/ -o out --tokenizer o200k_base --val docs:1000",
    "tokenmill prepare data/ -o try --tokenizer models/qwen2_5 --limit-docs 1000",
    "tokenmill prepare novels.txt -o out --text-separator '\\n\\n'",
    "tokenmill prepare 'hf://datasets/ORG/NAME@main/data/*.parquet' -o out",
    "tokenmill prepare s3://bucket/corpus/ https://host/more.jsonl.gz -o out",
    "tokenmill prepare --mix mix.toml --shuffle -o out",
    "tokenmill prepare --config tokenmill.toml",
)
@plan_options
@run_options
def prepare(inputs: tuple[str, ...], output: str, **options: Any) -> int:
    """Turn parquet, Arrow, JSON, CSV and text into token files.

    INPUTS are files, directories, globs, URLs (hf://, https://, s3://, gs://) or - (standard input,
    with --as). The same command resumes after any interruption.
    """
    refuse_no_inputs(inputs, options)
    return run_prepare(list(inputs), output, **options)


def refuse_no_inputs(inputs: tuple[str, ...], options: dict[str, Any]) -> None:
    if not inputs and not options["mix"]:
        raise click.MissingParameter(param_hint="'INPUTS...'", param_type="argument")


@command(
    "tokenmill fineweb --version 10B",
    "tokenmill fineweb --version 10B --type classic -o fineweb10B",
    "tokenmill fineweb --version 100B --no-keep-downloads",
    "tokenmill fineweb --version CC-MAIN-2024-10 --format nanogpt -o data/fineweb",
    "tokenmill fineweb --version 10B --limit-docs 10000 -o try",
    "tokenmill fineweb --version 10B --download-only",
    short_help="Download and tokenize FineWeb or FineWeb-Edu.",
)
@fineweb_options
@run_options
def fineweb(
    version: str, kind: str | None, revision: str, output: str | None, **options: Any
) -> int:
    """Download and tokenize FineWeb or FineWeb-Edu, straight from the Hub's parquet files.

    Takes every option of `prepare`. Files are named as llm.c names them.
    """
    from tokenmill.fineweb_parts import find_fineweb

    part = find_fineweb(version, kind or "edu", revision)
    if not options["quiet"] and options["progress"] != "json":
        said = "" if kind else " (edu is the default, --type classic the other)"
        click.echo(f"FineWeb {version}, type {kind or 'edu'}{said}: {part.input}", err=True)
    options["name"] = options["name"] or part.name(options["format"])
    return run_prepare([part.input], output or part.output, **options)


def run_prepare(
    inputs: list[str],
    output: str,
    *,
    as_json: bool,
    quiet: bool,
    progress: str,
    download_only: bool,
    **options: Any,
) -> int:
    if not download_only:  # first of all: the encoder opens on one core, we import on the other
        from tokenmill.engines.local.forkserver import start_fork_server
        from tokenmill.engines.local.small_jobs import is_small

        if _may_choose(options) and is_small((*inputs, *options["val_inputs"])):
            options |= {"workers": 1, "start_method": "fork"}
        start_fork_server(**options)
    from tokenmill import pipeline
    from tokenmill.cli import summary
    from tokenmill.cli.progress import shown_progress
    from tokenmill.output.objects.opening import open_workspace

    def on_plan(prepared: Proposal) -> None:
        global _begun
        _begun = not download_only
        if not download_only:
            open_workspace(output, shared=bool(options["part"])).put_command(safe(same_command()))
        if not quiet and progress != "json":
            click.echo("\n".join(summary.plan_lines_before(prepared)), err=True)

    with shown_progress(quiet, progress) as observer:
        options |= {"observer": observer, "on_plan": on_plan}
        if download_only:
            report = pipeline.download(inputs, output, **options)
        else:
            result = pipeline.prepare(inputs, output, **options)
    if download_only:
        echo_json(report) if as_json else summary.echo_download(report)
        return EXIT_OK
    echo_json(summary.result_dict(result)) if as_json else summary.echo_summary(result)
    return EXIT_QUARANTINED if result.manifest.counts["quarantined"] else EXIT_OK


def _may_choose(options: dict[str, Any]) -> bool:
    """Whether how many workers there are, and how they are started, is left to us.

    Two workers are worth their start where the reference encodes everything.
    """
    asked = click.get_current_context().get_parameter_source("start_method")
    slow = options["encoder"] == "reference" or options["encoder_check"] == "all"
    return options["workers"] is None and asked is ParameterSource.DEFAULT and not slow


@command(
    "tokenmill plan data/ -o out --format llmc",
    "tokenmill plan data/*.jsonl.gz -o out --json",
    "tokenmill plan data/ -o out --format llmc --min-shard-tokens 1M --no-probe",
    "tokenmill plan data/ -o out --format llmc --save tokenmill.toml",
    short_help="Say what `prepare` would read, write, need and take.",
)
@plan_options
@no_probe
def plan(
    inputs: tuple[str, ...],
    output: str,
    as_json: bool,
    no_probe: bool,
    save: str | None,
    **options: Any,
) -> None:
    """Show what `prepare` with the same arguments would read, write, need and take.

    Writes nothing but the file of --save. Tokens are exact where all sources have FineWeb's
    column token_count and the tokenizer is gpt2; else they, and the time, are estimated from a
    probe of two seconds.
    """
    from tokenmill.tokenizer.encoders.awkward_stand_in import use_stand_in

    use_stand_in()  # this process is ours alone: the probe encodes as workers do
    from tokenmill.cli.reports import plan_dict, plan_lines
    from tokenmill.cli.summary import plan_lines_before
    from tokenmill.pipeline import forecast

    refuse_no_inputs(inputs, options)
    if save is not None:
        refuse_existing(save)
    prepared, estimate = forecast(list(inputs), output, options, probe=not no_probe)
    if save is not None:
        save_config(save, click.get_current_context())
    if as_json:
        echo_json(plan_dict(prepared, estimate))
        return
    click.echo("\n".join([*plan_lines_before(prepared), *plan_lines(prepared, estimate)]))
    if save is not None:
        click.echo(f"saved: tokenmill prepare --config {shlex.quote(printable(save))}")
