"""The options that `prepare` and `plan` share, in the order of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


INPUTS = [
    click.argument("inputs", nargs=-1, required=True),
    click.option("-o", "--output", required=True, metavar="DIR", help="Folder to write."),
]

FINEWEB = [
    click.option(
        "--version",
        default="10B",
        show_default=True,
        metavar="PART",
        help="A sample, 10B, 100B or 350B; or a dump such as CC-MAIN-2024-10.",
    ),
    click.option("--type", "kind", help="edu or classic.  [default: edu]"),
    click.option(
        "--revision",
        default="main",
        show_default=True,
        help="Of the repository: a branch, a tag or a commit.",
    ),
    click.option(
        "-o", "--output", metavar="DIR", help="Folder to write.  [default: llm.c's, edu_fineweb10B]"
    ),
]

READING = [
    click.option(
        "--text-column",
        default="text",
        show_default=True,
        help="Column or JSON field; a.b is field b in a.",
    ),
    click.option(
        "--text-separator",
        metavar="STRING",
        help=r"Between documents of a .txt file, such as '\n\n'.  [default: none, a file is one]",
    ),
]

TOKENIZER = [
    click.option(
        "--tokenizer",
        default="gpt2",
        show_default=True,
        metavar="NAME|FILE",
        help="gpt2, r50k_base, p50k_base, cl100k_base, o200k_base; or a tokenizer.json, "
        "SentencePiece .model or .tiktoken file, or a model's folder.",
    ),
    click.option(
        "--pattern",
        default="",
        help="How a .tiktoken file splits words: gpt2, cl100k, o200k, llama3, qwen2, a regex.",
    ),
    click.option("--eot-token", metavar="TOKEN|ID", help="Separator.  [default: the file's]"),
    click.option(
        "--bos-token", metavar="TOKEN|ID", help="Begin documents with it; auto: the file's."
    ),
]

LAYOUT = [
    click.option(
        "--format",
        default="nanogpt",
        show_default=True,
        metavar="NAME[,NAME...]",
        help="Trainer: nanogpt, llmc, modded, build-nanogpt, megatron, datatrove, olmo, flat, "
        "mds, litdata, hf, parquet; several are written to DIR/NAME.",
    ),
    click.option(
        "--eot",
        metavar="WHERE",
        help="Separator: append, prepend or none.  [default: the trainer's]",
    ),
    click.option(
        "--cut", metavar="HOW", help="Shards end: exact or document.  [default: the trainer's]"
    ),
    click.option(
        "--shard-tokens",
        metavar="N",
        help="Tokens per shard.  [default: 100M; mds, litdata: 33.6M]",
    ),
    click.option(
        "--min-shard-tokens",
        metavar="N",
        help="A last shard below is too short.  [default: llmc 524289]",
    ),
    click.option(
        "--last-shard",
        metavar="HOW",
        help="Where too short: keep, merge or refuse.  [default: keep]",
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
        help="Held out: 0.0005, docs:N, tokens:N, shard or none.  [default: the trainer's]",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="For --val FRACTION."),
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
        help="Processes; 0: all in this one.  [default: usable cores]",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="For all processes together.  [default: 0.5GB + 0.5GB a worker]",
    ),
    click.option(
        "--start-method",
        default="forkserver",
        show_default=True,
        help="forkserver, spawn or fork.",
    ),
    click.option(
        "--encoder",
        default="auto",
        show_default=True,
        help="auto, gigatoken or reference.",
    ),
    click.option(
        "--encoder-check/--no-encoder-check",
        default=True,
        show_default=True,
        help="Encode samples again with the reference.",
    ),
    click.option("--on-bad-row", default="stop", show_default=True, help="stop or quarantine."),
    click.option(
        "--keep-downloads/--no-keep-downloads",
        default=True,
        show_default=True,
        help="Keep fetched inputs in the cache, or remove each once its tokens are durable.",
    ),
    click.option(
        "--downloads", type=int, default=4, metavar="N", help="Files on their way at a time."
    ),
    click.option("--overwrite", is_flag=True, help="Remove what tokenmill made in DIR before."),
    click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout."),
]


RUN_ONLY = [
    click.option(
        "--download-only", is_flag=True, help="Fetch the inputs and stop; prepare later, offline."
    ),
    click.option("--quiet", is_flag=True, help="No plan and no progress."),
]

Command = Callable[..., Any]


def _with(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def plan_options(command: Command) -> Command:
    return _with([*INPUTS, *READING, *TOKENIZER, *LAYOUT, *SPLITS, *RUN], command)


def fineweb_options(command: Command) -> Command:
    """Those of `prepare`, but the input is known, and the format is llm.c's."""
    format_option = click.option("--format", default="llmc", show_default=True, help="Trainer.")
    return _with(
        [*FINEWEB, *READING, *TOKENIZER, format_option, *LAYOUT[1:], *SPLITS, *RUN], command
    )


def layout_options(command: Command) -> Command:
    """What says how tokens are laid out; of the options of `prepare`, those `export` takes."""
    return _with(LAYOUT[1:], command)  # but --format, which it demands


def run_options(command: Command) -> Command:
    return _with(RUN_ONLY, command)


def takes_value(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.is_flag
