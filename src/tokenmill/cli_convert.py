"""The commands `export` and `import`: from one trainer's files to another's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli_options import CONTEXT, TOKENIZER, examples, layout_options
from tokenmill.errors import EXIT_OK, printable

if TYPE_CHECKING:
    from tokenmill.pipeline import Result


@click.command(
    "export",
    short_help="Convert a finished dataset to another format.",
    context_settings=CONTEXT,
    epilog=examples(
        "tokenmill export out -o out-megatron --format megatron",
        "tokenmill export out -o both --format mds,litdata --shard-tokens 10M",
        "tokenmill export fineweb10B -o packed --format parquet",
    ),
)
@click.argument("directory")
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder to write.")
@click.option(
    "--format", required=True, metavar="NAME[,NAME...]", help="As for `prepare`, one or several."
)
@layout_options
@click.option("--overwrite", is_flag=True, help="Remove what tokenmill made in DIR before.")
@click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout.")
def export_command(directory: str, output: str, as_json: bool, **options: Any) -> int:
    """Convert a finished dataset to another format, without encoding again.

    The dataset is verified first. Documents, and which of them are held out, stay as they are; the
    files are those that `prepare` would have written. The same command resumes.
    """
    from tokenmill.exporting import export

    given = {name: value for name, value in options.items() if value is not None}
    result = export(directory, output, note=_note if not as_json else lambda text: None, **given)
    _echo(result, as_json)
    return EXIT_OK


@click.command(
    "import",
    short_help="Adopt token files that others made.",
    context_settings=CONTEXT,
    epilog=examples(
        "tokenmill import nanoGPT/data/openwebtext --format nanogpt",
        "tokenmill import fineweb10B --format llmc",
        "tokenmill import megatron_data --format megatron --tokenizer models/qwen2_5",
    ),
)
@click.argument("directory")
@click.option(
    "--format", required=True, metavar="NAME", help="nanogpt, llmc, megatron or datatrove."
)
@click.option(
    "--eot", metavar="WHERE", help="Separator: append, prepend or none.  [default: the trainer's]"
)
@click.option("--dtype", help="uint16 or uint32, where no header says.  [default: by the ids]")
@click.option("--overwrite", is_flag=True, help="Anew: an earlier manifest and index go.")
@click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout.")
def import_command(directory: str, as_json: bool, **options: Any) -> int:
    """Adopt existing token files: write a manifest and an index beside them.

    Documents are found by their separator, or by the index that the format has; checksums are
    taken. Then verify, inspect, export and the loader work. The files themselves stay untouched.
    """
    from tokenmill.adoption import adopt

    _echo(adopt(directory, **options), as_json)
    return EXIT_OK


for _option in TOKENIZER:
    if _option not in (TOKENIZER[-1],):  # tokens that are there are not begun anew: no --bos-token
        import_command = _option(import_command)


def _note(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{text} ...", err=True)


def _echo(result: Result, as_json: bool) -> None:
    from tokenmill.summary import (
        echo_files,
        echo_json,
        echo_load_lines,
        echo_warnings,
        result_dict,
    )

    if as_json:
        echo_json(result_dict(result))
        return
    manifest = result.manifest
    if result.already_done:
        click.echo(f"{printable(result.output)}: already complete, nothing to do")
    echo_files(manifest)
    for split in manifest.splits:
        click.echo(
            f"  {split.format} {split.name}: {split.documents:,} documents, {split.tokens:,} tokens"
        )
    echo_warnings(result)
    if not result.already_done:
        written = sum(file.size for file in manifest.files)
        speed = written / max(result.seconds, 1e-3) / 1e6
        click.echo(f"  done in {result.seconds:.1f} s ({written / 1e6:.1f} MB, {speed:.0f} MB/s)")
    echo_load_lines(result)
