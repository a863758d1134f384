"""The commands `export`, `import` and `mix`: from one tool's files to another's."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokenmill.amounts import counted, show_bytes, show_speed
from tokenmill.cli.help import WHOLE_NUMBER, choices, complete_format
from tokenmill.cli.options import (
    ALLOW_EMPTY,
    JSON,
    LAYOUT,
    ON_RAY,
    RUN,
    RUN_ONLY,
    SCRATCH,
    TOKENIZER,
    command,
    echo_json,
    with_options,
)
from tokenmill.errors import EXIT_OK, EXIT_QUARANTINED

if TYPE_CHECKING:
    from tokenmill.output.result import Result


@command(
    "tokenmill export out -o out-megatron --format megatron",
    "tokenmill export out -o both --format mds,litdata --shard-tokens 10M",
    "tokenmill export fineweb10B -o packed --format parquet",
    "tokenmill export out -o epoch2 --format llmc --shuffle --seed 2",
    "tokenmill export mixed -o blend --format megatron --by-source",
    name="export",
    short_help="Convert a finished dataset to another format.",
)
@click.argument("directory", type=click.Path())
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=click.Path(), help="Folder to write."
)
@click.option(
    "--format",
    required=True,
    metavar="NAME[,NAME...]",
    shell_complete=complete_format,
    help="As for `prepare`, one or several.",
)
@with_options(*LAYOUT)
@click.option("--shuffle", is_flag=True, help="Put the documents of each split in a new order.")
@click.option("--seed", type=WHOLE_NUMBER, help="Another order for --shuffle.  [default: 0]")
@click.option(
    "--only",
    default="",
    metavar="SOURCE",
    help="Only documents of this source of a mixture, or of this input file.",
)
@click.option(
    "--by-source",
    is_flag=True,
    help="Write a dataset for each source of a mixture, or each input file, into a folder of its "
    "own; for Megatron, also print --data-path with weights.",
)
@with_options(*RUN[:2], *ON_RAY)
@click.option("--overwrite", is_flag=True, help="Remove what tokenmill made in DIR before.")
@with_options(*RUN_ONLY[1:])
@JSON
def export_command(
    directory: str,
    output: str,
    as_json: bool,
    quiet: bool,
    progress: str,
    by_source: bool,
    **options: Any,
) -> None:
    """Convert a finished dataset to another format, without encoding again.

    The dataset is verified first. Documents and the validation split stay as they are; the files
    are those that `prepare` would have written. With --shuffle, the documents of each split get a
    new order. The same command resumes.
    """
    from tokenmill.cli.progress import shown_progress
    from tokenmill.pipeline import export, export_by_source

    quiet = quiet or as_json
    note = _note if not quiet and progress != "json" else lambda text: None
    with shown_progress(quiet, progress) as observer:
        options |= {"observer": observer, "note": note}
        if not by_source:
            result = export(directory, output, **options)
        elif options.pop("only"):
            raise click.UsageError("--by-source writes all sources: leave out --only")
        else:
            results = export_by_source(directory, output, **options)
    if not by_source:
        _echo(result, as_json)
    else:
        _echo_sources(results, as_json)


@command(
    "tokenmill finish out",
    "tokenmill finish out --workers 32 --memory 64GB",
    "tokenmill finish out --part 0/3",
    short_help="Make a dataset of what `prepare --part` has done.",
)
@click.argument("directory", type=click.Path())
@with_options(*RUN[:2])
@click.option(
    "--part",
    default="",
    show_default="all that is left",
    metavar="I/N",
    help="Make only the files of part I of N (from 0; auto/N: as Slurm or Kubernetes say), on one "
    "of several machines; then `finish` without --part.",
)
@with_options(SCRATCH, ALLOW_EMPTY)
@with_options(*RUN_ONLY[1:])
@JSON
def finish(directory: str, as_json: bool, quiet: bool, progress: str, **options: Any) -> int:
    """Make a dataset of what all parts of a job have recorded (`prepare --part`).

    Refuses, and names the parts, if some are missing. The same command resumes. With --part,
    several machines make the files; `finish` without --part makes what is missing, and commits.
    """
    from tokenmill import finishing
    from tokenmill.cli import summary
    from tokenmill.cli.progress import shown_progress

    with shown_progress(quiet or as_json, progress) as observer:
        result = finishing.finish(directory, observer=observer, **options)
    echo_json(summary.result_dict(result)) if as_json else summary.echo_summary(result)
    return EXIT_QUARANTINED if result.manifest.counts["quarantined"] else EXIT_OK


@command(
    "tokenmill import nanoGPT/data/openwebtext --format nanogpt",
    "tokenmill import fineweb10B --format llmc",
    "tokenmill import megatron_data --format megatron --tokenizer models/qwen2_5",
    name="import",
    short_help="Adopt token files that others made.",
)
@click.argument("directory", type=click.Path())
@click.option(
    "--format",
    required=True,
    **choices("nanogpt", "llmc", "megatron", "datatrove"),
    help="Format of the token files.",
)
@click.option(
    "--eot",
    **choices("append", "prepend", "none"),
    help="Where the separator is: after each document, before it, or nowhere.  [default: the "
    "trainer's]",
)
@with_options(*TOKENIZER)
@click.option(
    "--dtype",
    **choices("uint16", "uint32"),
    help="Type of a token in the files, where no header says it.  [default: what the ids need]",
)
@click.option(
    "--overwrite", is_flag=True, help="Start over: replace an existing manifest and index."
)
@JSON
def import_command(directory: str, as_json: bool, **options: Any) -> None:
    """Adopt existing token files: write a manifest and an index beside them.

    Documents are found by their separator, or by the index that the format has, and checksums are
    taken. Then verify, inspect, export and the loader work. The files themselves stay untouched.
    """
    from tokenmill.dataset.adopt import adopt

    _echo(adopt(directory, **options), as_json)


@command(
    "tokenmill mix import 0.3 web_text_document 0.7 code_text_document -o mix.toml",
    "tokenmill mix import data_args.txt -o mix.toml",
    "tokenmill mix import olmo_mixture.yaml -o mix.toml",
    "tokenmill mix import levanter.yaml",
    short_help="Turn the mixture of another tool into a mix.toml.",
)
@click.argument("action", type=click.Choice(["import"]))
@click.argument("mixture", nargs=-1, required=True)
@click.option(
    "--data-path", is_flag=True, help="Ignored: Megatron's own option may be pasted as it is."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="The mix.toml to write; a file that is there is not replaced.  [default: print it]",
)
def mix(action: str, mixture: tuple[str, ...], data_path: bool, output: str | None) -> None:
    """Turn the mixture of another tool into a mix.toml.

    MIXTURE is the list behind Megatron's --data-path (weights and prefixes), the path of such a
    list in a file, OLMo-core's source mixture (YAML), or levanter's configuration with
    train_weights (YAML).
    """
    from tokenmill.planning.mixture.foreign import mix_toml, read_foreign
    from tokenmill.system.disk import create_exclusively

    found = read_foreign(mixture)
    if output is None:
        click.echo(mix_toml(found), nl=False)
    else:
        create_exclusively(Path(output), mix_toml(found, os.path.dirname(output)).encode())
    if missing := found.without_text:
        click.echo(
            f"{counted(len(missing), 'source')} without text files ({', '.join(missing[:5])}"
            f"{' ...' if len(missing) > 5 else ''}): name them in inputs",
            err=True,
        )


def _note(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{text} ...", err=True)


def data_path_options(results: dict[str, Result]) -> dict[str, str]:
    """What to tell Megatron: prefixes, each with its share of the tokens of its split."""
    found: dict[str, list[tuple[int, str]]] = {}
    for result in results.values():
        for file in result.manifest.files:
            if (file.kind, file.format) == ("tokens", "megatron"):
                prefix = os.path.join(result.output, file.path.removesuffix(".bin"))
                found.setdefault(file.split, []).append((file.tokens, prefix))
    names = {"train": "--train-data-path", "val": "--valid-data-path"}
    if "val" not in found:
        names["train"] = "--data-path"
    lines = {}
    for split in (name for name in names if name in found):
        total = sum(tokens for tokens, _ in found[split])
        pairs = (f"{tokens / total:.6f} {shlex.quote(prefix)}" for tokens, prefix in found[split])
        lines[names[split]] = " ".join(pairs)
    return lines


def _echo_sources(results: dict[str, Result], as_json: bool) -> None:
    from tokenmill.cli import summary

    lines = data_path_options(results)
    if as_json:
        told = {name: summary.result_dict(result) for name, result in results.items()}
        echo_json({"sources": told, "megatron": lines})
        return
    for name, result in results.items():
        splits = ", ".join(
            f"{split.format} {split.name} {counted(split.tokens, 'token')}"
            for split in result.manifest.splits
        )
        click.echo(f"{name}: {result.output} ({splits})")
        for line in summary.warning_lines(result.warnings):
            click.echo(line)
    for option, value in lines.items():
        click.echo(f"{option} {value}")


def _echo(result: Result, as_json: bool) -> None:
    from tokenmill.cli import summary

    if as_json:
        echo_json(summary.result_dict(result))
        return
    manifest = result.manifest
    summary.echo_files(result)
    for split in manifest.splits:
        click.echo(
            f"  {split.format} {split.name}: {counted(split.documents, 'document')}, "
            f"{counted(split.tokens, 'token')}"
        )
    for line in summary.warning_lines(result.warnings):
        click.echo(line)
    if not result.already_done:
        written = sum(file.size for file in manifest.files)
        speed = show_speed(written / max(result.seconds, 1e-3))
        click.echo(f"  done in {result.seconds:.1f} s ({show_bytes(written)}, {speed})")
    summary.echo_load_lines(result)
