"""The options that several commands share, in the order of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

Command = Callable[..., Any]
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
NO_CHECK = "no_encoder_check"
JSON = click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout.")


def echo_json(value: object, err: bool = False) -> None:
    import msgspec  # `tokenmill --help` must be quick

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode(), err=err)


def _encoder_check(context: click.Context, option: click.Parameter, value: str) -> str:
    if not context.meta.get(NO_CHECK):
        return value
    given = context.get_parameter_source("encoder_check") is not ParameterSource.DEFAULT
    if given and value != "none":
        raise click.UsageError(f"--no-encoder-check contradicts --encoder-check {value}")
    return "none"


def examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def command(*lines: str, **attributes: Any) -> Callable[[Command], click.Command]:
    """A command with these examples in its help."""
    return click.command(context_settings=CONTEXT, epilog=examples(*lines), **attributes)


INPUTS = [
    click.argument("inputs", nargs=-1, required=True),
    click.option("-o", "--output", required=True, metavar="DIR", help="Folder to write."),
]

FINEWEB = [
    click.option(
        "--version",
        default="10B",
        metavar="PART",
        help="A sample, 10B, 100B or 350B; or a dump such as CC-MAIN-2024-10.",
    ),
    click.option("--type", "kind", help="edu or classic.  [default: edu]"),
    click.option(
        "--revision", default="main", help="Of the repository: a branch, a tag or a commit."
    ),
    click.option(
        "-o", "--output", metavar="DIR", help="Folder to write.  [default: llm.c's, edu_fineweb10B]"
    ),
]

READING = [
    click.option(
        "--text-column",
        default="text",
        help="Column or JSON field with the text; a.b is field b in a.",
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
        metavar="NAME|FILE",
        help="gpt2, r50k_base, p50k_base, cl100k_base, o200k_base; or a tokenizer.json, "
        "SentencePiece .model or .tiktoken file, or a model's folder.",
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
        help="Token that separates documents.  [default: the file's]",
    ),
]

BOS = click.option(
    "--bos-token",
    metavar="TOKEN|ID",
    help="Token that every document begins with; auto: the file's.",
)

FORMAT = click.option(
    "--format",
    default="nanogpt",
    metavar="NAME[,NAME...]",
    help="Trainer: nanogpt, llmc, modded, build-nanogpt, megatron, datatrove, olmo, flat, "
    "mds, litdata, hf, parquet; several are written to DIR/NAME.",
)
FINEWEB_FORMAT = click.option("--format", default="llmc", help="Trainer.")

# How tokens are laid out: what `export` takes too.
LAYOUT = [
    click.option(
        "--eot",
        metavar="WHERE",
        help="Where the separator goes: append, prepend or none.  [default: the trainer's]",
    ),
    click.option(
        "--cut",
        metavar="HOW",
        help="Where shards end: exact (at a token) or document.  [default: the trainer's]",
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
        metavar="HOW",
        help="What to do if the last shard is too short: keep, merge or refuse.  [default: keep]",
    ),
    click.option("--compression", metavar="HOW", help="mds: none or zstd.  [default: none]"),
    click.option(
        "--name",
        help="Start of shard names.  [default: the folder's name; of `export`: the source's]",
    ),
    click.option("--dtype", help="uint16 or uint32.  [default: what the ids need]"),
]

SPLITS = [
    click.option(
        "--val",
        metavar="RULE",
        help="Validation split: a fraction (0.0005), docs:N, tokens:N, shard (the first shard) or "
        "none.  [default: the trainer's]",
    ),
    click.option("--seed", type=int, default=0, help="For --val FRACTION."),
    click.option("--drop-empty", is_flag=True, help="Drop empty documents (counted)."),
    click.option("--min-tokens", metavar="N", help="Drop documents with fewer (counted)."),
    click.option("--max-tokens", metavar="N", help="Drop documents with more (counted)."),
    click.option("--limit-docs", metavar="N", help="Only the first N documents: a trial run."),
    click.option("--limit-tokens", metavar="N", help="Only documents that begin before token N."),
]

RUN = [
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Worker processes; 0: do everything in this process.  [default: usable cores]",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="Memory for all processes together.  [default: 0.5GB + 0.5GB per worker]",
    ),
    click.option("--start-method", default="forkserver", help="forkserver, spawn or fork."),
    click.option("--encoder", default="auto", help="auto, gigatoken or reference."),
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
        "--on-bad-row", default="stop", help="What to do with a bad row: stop or quarantine."
    ),
    click.option(
        "--keep-downloads/--no-keep-downloads",
        default=True,
        help="Keep downloaded inputs in the cache, or remove each once its tokens are durable.",
    ),
    click.option("--downloads", type=int, default=4, metavar="N", help="Parallel downloads."),
    click.option("--overwrite", is_flag=True, help="Replace a dataset that tokenmill made in DIR."),
    JSON,
]

RUN_ONLY = [
    click.option(
        "--download-only",
        is_flag=True,
        help="Download the inputs and stop; prepare later, offline.",
    ),
    click.option("--quiet", is_flag=True, help="No plan and no progress."),
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


_MAKING = (*LAYOUT, *SPLITS, *RUN)
plan_options = with_options(*INPUTS, *READING, *TOKENIZER, BOS, FORMAT, *_MAKING)
fineweb_options = with_options(*FINEWEB, *READING, *TOKENIZER, BOS, FINEWEB_FORMAT, *_MAKING)
run_options = with_options(*RUN_ONLY)
