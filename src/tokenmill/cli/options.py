"""The options that several commands share, in the order of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from tokenmill.cli.config import CONFIG_HELP, use_config
from tokenmill.cli.help import (
    WHOLE_NUMBER,
    Command,
    FiledArgument,
    GroupedCommand,
    choices,
    complete_format,
    complete_tokenizer,
    grouped,
)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
NO_CHECK = "no_encoder_check"
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")


def echo_json(value: object, err: bool = False) -> None:
    import msgspec  # `tokenmill --help` must be quick

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode(), err=err)


def _encoder_check(context: click.Context, option: click.Parameter, value: str) -> str:
    if not context.meta.get(NO_CHECK):
        return value
    given = context.get_parameter_source("encoder_check") is ParameterSource.COMMANDLINE
    if given and value != "none":
        raise click.UsageError(f"--no-encoder-check contradicts --encoder-check {value}")
    return "none"


def examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def command(*lines: str, **attributes: Any) -> Callable[[Command], click.Command]:
    """A command with these examples in its help."""
    return click.command(
        cls=GroupedCommand, context_settings=CONTEXT, epilog=examples(*lines), **attributes
    )


CONFIG = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    is_eager=True,
    expose_value=False,
    callback=use_config,
    help=CONFIG_HELP,
)

INPUTS = [
    click.argument("inputs", nargs=-1, type=click.Path(), cls=FiledArgument),
    click.option(
        "-o",
        "--output",
        required=True,
        metavar="DIR",
        type=click.Path(),
        help="Folder to write.",
    ),
]

MIX = click.option(
    "--mix",
    default="",
    metavar="FILE",
    type=click.Path(),
    show_default=False,
    help="A mix.toml with sources, their inputs and weights, in place of INPUTS.",
)

FINEWEB = [
    click.option(
        "--version",
        default="10B",
        metavar="PART",
        help="Which part: a sample (10B, 100B, 350B), or a dump such as CC-MAIN-2024-10.",
    ),
    click.option(
        "--type",
        "kind",
        **choices("edu", "classic"),
        help="FineWeb-Edu, or FineWeb itself.  [default: edu]",
    ),
    click.option(
        "--revision", default="main", help="Branch, tag or commit of the repository on the Hub."
    ),
    click.option(
        "-o",
        "--output",
        metavar="DIR",
        type=click.Path(),
        help="Folder to write.  [default: llm.c's, edu_fineweb10B]",
    ),
]

READING = [
    click.option(
        "--text-column",
        multiple=True,
        metavar="NAME",
        help="Column or JSON field with the text; a.b is field b in a. 'GLOB=NAME' for some of "
        "the files; may be repeated.  [default: text]",
    ),
    click.option(
        "--text",
        default="",
        metavar="TEMPLATE",
        show_default=False,
        help=r"Text from several columns, such as '{title}\n\n{text}'.",
    ),
    click.option(
        "--where",
        default="",
        metavar="CONDITION",
        show_default=False,
        help="Only rows that meet a condition, such as \"language == 'de' and score > 0.8\".",
    ),
    click.option(
        "--as",
        "as_kind",
        multiple=True,
        metavar="KIND",
        help="Read the files as parquet, arrow, jsonl, json, csv, tsv or text, whatever their "
        "extension. 'GLOB=KIND' for some of them; may be repeated.",
    ),
    click.option(
        "--text-separator",
        metavar="STRING",
        help=r"What separates documents in a .txt file, such as '\n\n'.  [default: none, one "
        "document per file]",
    ),
]

TOKENIZER = [
    click.option(
        "--tokenizer",
        default="gpt2",
        metavar="NAME|FILE|ORG/NAME",
        shell_complete=complete_tokenizer,
        help="gpt2, r50k_base, p50k_base, cl100k_base, o200k_base; or a tokenizer.json, "
        "SentencePiece .model or .tiktoken file, a model's folder, or a model on the Hub.",
    ),
    click.option(
        "--pattern",
        default="",
        show_default=False,
        help="How a .tiktoken file splits words: gpt2, cl100k, o200k, llama3, qwen2, a regex.",
    ),
    click.option(
        "--eot-token",
        metavar="TOKEN|ID",
        help="Token that separates documents.  [default: the one that the tokenizer file names]",
    ),
]

BOS = click.option(
    "--bos-token",
    metavar="TOKEN|ID",
    help="Token that every document begins with; auto: the one that the tokenizer file names.",
)

FORMAT = click.option(
    "--format",
    default="nanogpt",
    metavar="NAME[,NAME...]",
    shell_complete=complete_format,
    help="Trainer: nanogpt, llmc, modded, build-nanogpt, megatron, datatrove, olmo, flat, "
    "mds, litdata, hf, parquet; several are written to DIR/NAME.",
)
FINEWEB_FORMAT = click.option(
    "--format",
    default="llmc",
    metavar="NAME[,NAME...]",
    shell_complete=complete_format,
    help="Trainer's format, as for `prepare`.",
)

# How tokens are laid out: what `export` takes too.
LAYOUT = [
    click.option(
        "--eot",
        **choices("append", "prepend", "none"),
        help="Where the separator goes: after each document, before it, or nowhere.  [default: "
        "the trainer's]",
    ),
    click.option(
        "--cut",
        **choices("exact", "document"),
        help="Where shards end: at a token, or at the end of a document.  [default: the trainer's]",
    ),
    click.option(
        "--shard-tokens",
        metavar="N",
        help="Tokens per shard.  [default: 100M; mds, litdata: 33.6M]",
    ),
    click.option(
        "--min-shard-tokens",
        metavar="N",
        help="Minimum tokens in the last shard (see --last-shard).  [default: llmc 524289]",
    ),
    click.option(
        "--last-shard",
        **choices("keep", "merge", "refuse"),
        help="What to do if the last shard is too short.  [default: keep]",
    ),
    click.option(
        "--compression",
        **choices("none", "zstd"),
        help="Compression of the shards; for mds only.  [default: none]",
    ),
    click.option(
        "--name",
        help="Start of shard names.  [default: the folder's name; of `export`: the source's]",
    ),
    click.option(
        "--dtype",
        **choices("uint16", "uint32"),
        help="Type of a token in the files.  [default: what the ids need]",
    ),
]

SCRATCH = click.option(
    "--scratch",
    type=click.Path(file_okay=False),
    default="",
    show_default="inside the output folder",
    metavar="DIR",
    help="A folder on a local disk for tokens that wait to be written.",
)

ALLOW_EMPTY = click.option(
    "--allow-empty-split", is_flag=True, help="Commit also if a split has no documents."
)

SPLITS = [
    click.option(
        "--split",
        default="",
        metavar="NAME",
        show_default=False,
        help="Take only this split (train, validation, test) of folders and globs.",
    ),
    click.option("--all-splits", is_flag=True, help="Mix the splits of a folder or glob."),
    click.option(
        "--val",
        metavar="RULE",
        help="Validation split: a fraction of the documents (0.0005), tail:0.1 (the last tenth of "
        "the tokens), docs:N, tokens:N, shard (the first shard), split (the files of the "
        "validation split) or none.  [default: the trainer's]",
    ),
    click.option(
        "--val-inputs",
        multiple=True,
        metavar="FILES",
        type=click.Path(),
        help="Files, a folder or a glob for the validation split; may be repeated.",
    ),
    ALLOW_EMPTY,
    click.option(
        "--shuffle",
        is_flag=True,
        help="Documents of all inputs in random order (docs/order.md).",
    ),
    click.option(
        "--seed",
        type=WHOLE_NUMBER,
        default=0,
        help="Which documents --val FRACTION takes, and the order of --shuffle: another seed, "
        "other documents, another order.",
    ),
    click.option("--drop-empty", is_flag=True, help="Drop empty documents (counted)."),
    click.option("--min-tokens", metavar="N", help="Drop documents with fewer tokens (counted)."),
    click.option("--max-tokens", metavar="N", help="Drop documents with more tokens (counted)."),
    click.option("--limit-docs", metavar="N", help="Only the first N documents: a trial run."),
    click.option("--limit-tokens", metavar="N", help="Only documents that begin before token N."),
]

ON_RAY = [
    click.option(
        "--engine",
        default="local",
        **choices("local", "ray"),
        help="Where the work is done: local (processes of this machine) or ray (a cluster).",
    ),
    click.option(
        "--ray-address",
        default="",
        show_default="start one on this machine",
        metavar="ADDRESS",
        help="With --engine ray: the address of a running cluster.",
    ),
]

RUN = [
    click.option(
        "--workers",
        type=WHOLE_NUMBER,
        metavar="N",
        help="Worker processes; 0: do everything in this process.  [default: usable cores; 1 for "
        "less than 2 MB]",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="Memory for all processes together.  [default: 0.5GB + 0.5GB per worker]",
    ),
    click.option(
        "--start-method",
        default="forkserver",
        **choices("forkserver", "spawn", "fork"),
        help="How worker processes are started.",
    ),
    click.option(
        "--encoder",
        default="auto",
        **choices("auto", "gigatoken", "reference"),
        help="Which encoder to use; auto: the fast one where it is proven equal to the reference.",
    ),
    click.option(
        "--encoder-check",
        type=click.Choice(["sample", "all", "none"]),
        is_flag=False,
        flag_value="sample",
        default="sample",
        callback=_encoder_check,
        help="Encode documents again with the reference: a sample (odd ones first), all, or none.",
    ),
    # A parameter of its own. With the name of the other one it would give the bare
    # `--encoder-check` its value: "none".
    click.option(
        "--no-encoder-check",
        NO_CHECK,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=True,
        callback=lambda context, option, value: context.meta.update({NO_CHECK: value}),
        help="The same as --encoder-check none.",
    ),
    click.option(
        "--on-bad-row",
        default="stop",
        **choices("stop", "quarantine"),
        help="What to do with a row that is not text: stop, or write it to quarantine.jsonl.",
    ),
    click.option(
        "--keep-downloads/--no-keep-downloads",
        default=True,
        help="Keep downloaded inputs in the cache, or remove each once its tokens are durable.",
    ),
    click.option(
        "--downloads", type=WHOLE_NUMBER, default=4, metavar="N", help="Parallel downloads."
    ),
    SCRATCH,
    click.option(
        "--reuse",
        type=click.Path(file_okay=False),
        default="",
        show_default="none",
        metavar="OLD",
        help="A finished dataset: documents of unchanged sources are taken from it, not encoded.",
    ),
    click.option(
        "--part",
        default="",
        show_default="the whole job",
        metavar="I/N",
        help="Do part I of N (from 0; auto/N: as Slurm or Kubernetes say) on one of several "
        "machines; then `finish`.",
    ),
    *ON_RAY,
    click.option("--overwrite", is_flag=True, help="Replace a dataset that tokenmill made in DIR."),
    JSON,
]

SAVE = click.option(
    "--save",
    metavar="FILE",
    type=click.Path(),
    help="Also write the options to a new TOML file, for --config.",
)

RUN_ONLY = [
    click.option(
        "--download-only",
        is_flag=True,
        help="Download the inputs and stop; prepare later, offline.",
    ),
    click.option("--quiet", is_flag=True, help="Print neither the plan nor progress."),
    click.option(
        "--progress",
        type=click.Choice(["auto", "json"]),
        default="auto",
        help="auto: a bar on a terminal, lines elsewhere; json: a line of JSON for every event.",
    ),
]


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that gives a command these options, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_TOKENIZER = grouped("Tokenizer", *TOKENIZER, BOS)
_MAKING = (*grouped("Splits and rows", *SPLITS), *grouped("Run", CONFIG, *RUN))
plan_options = with_options(
    *INPUTS[:1],
    *grouped("Input", MIX, *READING),
    *_TOKENIZER,
    *grouped("Output", *INPUTS[1:], FORMAT, *LAYOUT),
    *_MAKING,
)
fineweb_options = with_options(
    *grouped("Input", *FINEWEB[:3], *READING),
    *_TOKENIZER,
    *grouped("Output", *FINEWEB[3:], FINEWEB_FORMAT, *LAYOUT),
    *_MAKING,
)
run_options = with_options(*grouped("Run", *RUN_ONLY))
no_probe = with_options(
    *grouped(
        "Run",
        click.option(
            "--no-probe", is_flag=True, help="Do not read and encode samples for two seconds."
        ),
        SAVE,
    )
)
