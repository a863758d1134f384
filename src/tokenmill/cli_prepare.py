"""The commands that make a dataset, or say what making it would take: prepare, fineweb, plan."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli_options import (
    CONTEXT,
    examples,
    fineweb_options,
    plan_options,
    run_options,
    takes_value,
)
from tokenmill.errors import EXIT_OK, EXIT_QUARANTINED

if TYPE_CHECKING:
    from tokenmill.engines.observer import Observer
    from tokenmill.pipeline import Prepared

_begun = False  # a job of this process is open: what --overwrite removes is removed


def is_resumable(words: list[str]) -> bool:
    return words[:1] in (["prepare"], ["fineweb"], ["export"], ["import"])


def same_command() -> str:
    """What was typed, but what it has removed is not to be removed again."""
    command = ["tokenmill", *sys.argv[1:]]
    if os.path.basename(sys.argv[0]) == "__main__.py":
        command[:1] = [sys.orig_argv[0], "-m", "tokenmill"]
    if _begun:
        # It may also be the value of another option, or a file's name.
        params = (*prepare.params, *fineweb.params)
        values = {name for option in params for name in option.opts if takes_value(option)}
        end = command.index("--") if "--" in command else len(command)
        command = [
            word
            for i, word in enumerate(command)
            if word != "--overwrite" or i > end or command[i - 1] in values
        ]
    return shlex.join(command)


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "tokenmill prepare data/*.parquet -o out",
        "tokenmill prepare a.jsonl.zst b.jsonl -o out --text-column data.text",
        "tokenmill prepare saved_by_datasets/ -o out",
        "tokenmill prepare data/ -o edu --format llmc --shard-tokens 100M --val shard",
        "tokenmill prepare data/ -o out --tokenizer o200k_base --val docs:1000",
        "tokenmill prepare data/ -o try --tokenizer models/qwen2_5 --limit-docs 1000",
        "tokenmill prepare novels.txt -o out --text-separator '\\n\\n'",
        "tokenmill prepare 'hf://datasets/ORG/NAME@main/data/*.parquet' -o out",
        "tokenmill prepare s3://bucket/corpus/ https://host/more.jsonl.gz -o out",
    ),
)
@plan_options
@run_options
def prepare(inputs: tuple[str, ...], output: str, **options: Any) -> int:
    """Turn parquet, Arrow, JSON lines and text into token files.

    INPUTS are files, directories, globs or URLs (hf://, https://, s3://, gs://). The same command
    resumes after any interruption.
    """
    return run_prepare(list(inputs), output, **options)


@click.command(
    short_help="Fetch and tokenize FineWeb or FineWeb-Edu.",
    context_settings=CONTEXT,
    epilog=examples(
        "tokenmill fineweb --version 10B",
        "tokenmill fineweb --version 10B --type classic -o fineweb10B",
        "tokenmill fineweb --version 100B --no-keep-downloads",
        "tokenmill fineweb --version CC-MAIN-2024-10 --format nanogpt -o data/fineweb",
        "tokenmill fineweb --version 10B --limit-docs 10000 -o try",
        "tokenmill fineweb --version 10B --download-only",
    ),
)
@fineweb_options
@run_options
def fineweb(
    version: str, kind: str | None, revision: str, output: str | None, **options: Any
) -> int:
    """Fetch and tokenize FineWeb or FineWeb-Edu, straight from the Hub's parquet files.

    Takes every option of `prepare`. Files are named as llm.c names them.
    """
    start_encoder(options)
    from tokenmill.fineweb_parts import find_fineweb

    part = find_fineweb(version, kind or "edu", revision)
    if not options["quiet"]:
        said = "" if kind else " (edu is the default, --type classic the other)"
        click.echo(f"FineWeb {version}, type {kind or 'edu'}{said}: {part.input}", err=True)
    options["name"] = options["name"] or part.name(options["format"])
    return run_prepare([part.input], output or part.output, **options)


def start_encoder(options: dict[str, Any]) -> None:
    """Before anything heavy is imported: the encoder opens on one core, we load on the other."""
    if options["workers"] != 0 and options["start_method"] == "forkserver":
        from tokenmill.engines.forkserver import start_fork_server

        start_fork_server(
            options["tokenizer"],
            options["encoder"],
            options["encoder_check"],
            options["pattern"],
            alone=True,
        )


def run_prepare(
    inputs: list[str],
    output: str,
    *,
    as_json: bool,
    quiet: bool,
    download_only: bool,
    **options: Any,
) -> int:
    if not download_only:
        start_encoder(options)
    from tokenmill import pipeline
    from tokenmill.summary import (
        echo_fetched,
        echo_json,
        echo_summary,
        plan_lines_before,
        result_dict,
    )

    observer = _observer(quiet)

    def on_plan(prepared: Prepared) -> None:
        global _begun
        _begun = not download_only
        if not quiet:
            click.echo("\n".join(plan_lines_before(prepared)), err=True)

    with observer:
        if download_only:
            fetched = pipeline.download(
                inputs, output, observer=observer, on_plan=on_plan, **options
            )
        else:
            result = pipeline.prepare(inputs, output, observer=observer, on_plan=on_plan, **options)
    if download_only:
        import msgspec

        echo_json(msgspec.to_builtins(fetched)) if as_json else echo_fetched(fetched)
        return EXIT_OK
    echo_json(result_dict(result)) if as_json else echo_summary(result)
    return EXIT_QUARANTINED if result.manifest.counts["quarantined"] else EXIT_OK


def _observer(quiet: bool) -> Observer:
    from tokenmill.engines.observer import Observer
    from tokenmill.progress import LiveProgress, PlainProgress

    if quiet:
        return Observer()
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()


@click.command(
    short_help="Say what `prepare` would read, write, need and take.",
    context_settings=CONTEXT,
    epilog=examples(
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
    from tokenmill.pipeline import make_plan, with_needs
    from tokenmill.reporting import plan_dict, plan_lines
    from tokenmill.storage import Workspace
    from tokenmill.summary import echo_json, plan_lines_before

    least = options["min_shard_tokens"]
    prepared = make_plan(list(inputs), output, make_options(options))
    if not prepared.run.overwrite:
        refuse_output(prepared.plan, Workspace(output))
    prepared = with_needs(prepared)
    estimate = make_estimate(
        prepared,
        probe=not no_probe,
        min_shard_tokens=None if least is None else parse_count(least, what="--min-shard-tokens"),
    )
    if as_json:
        echo_json(plan_dict(prepared, estimate))
        return EXIT_OK
    click.echo("\n".join(plan_lines_before(prepared)))
    for line in plan_lines(prepared, estimate):
        click.echo(line)
    return EXIT_OK
