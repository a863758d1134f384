"""Every keyword of the Python functions in one sentence, and messages in terms of keywords.

`help(tokenmill.prepare)` and docs/python.md are made from `SENTENCES`. Messages are written with
the options of the command line (`--shard-tokens 0`); a caller in Python gets them with the
keywords (`shard_tokens=0`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast, get_args

from tokenmill import settings
from tokenmill.errors import TokenmillError, UnknownKeywordError, did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])

SENTENCES = {
    "inputs": "Files, folders, globs or URLs, one or a list; or a `datasets.Dataset`.",
    "output": "Folder to write.",
    "directory": "Folder of a finished dataset.",
    # input
    "mix": "A mix.toml with sources, their inputs and weights, in place of `inputs`, which is then "
    "().",
    "text_column": "Column or JSON field with the text; 'a.b' is field b in a. 'GLOB=NAME' for "
    "some of the files, in a list.",
    "text": r"Text from several columns, such as '{title}\n\n{text}'.",
    "where": "Only rows that meet this condition, such as \"language == 'de' and score > 0.8\".",
    "as_kind": "Read the files as parquet, arrow, jsonl, json, csv, tsv or text, whatever their "
    "extension. 'GLOB=KIND' for some of them, in a list.",
    "text_separator": r"What separates documents in a .txt file, such as '\n\n'. None: a file is "
    "one document.",
    # tokenizer
    "tokenizer": "Name (gpt2, r50k_base, p50k_base, cl100k_base, o200k_base), file or folder of "
    "a tokenizer, or a model on the Hub (ORG/NAME). For an existing dataset: where the file is "
    "now.",
    "pattern": "How a .tiktoken file splits words: gpt2, cl100k, o200k, llama3, qwen2 or a regex.",
    "eot_token": "Token or id that separates documents. None: the one that the tokenizer names.",
    "bos_token": "Token or id that every document begins with; 'auto': the one that the tokenizer "
    "names. None: no such token.",
    # output
    "format": "Format of the token files, or a list of formats: nanogpt, llmc, modded, "
    "build-nanogpt, megatron, datatrove, olmo, flat, mds, litdata, hf, parquet.",
    "eot": "Where the separator goes: 'append', 'prepend' or 'none'. None: the trainer's way.",
    "cut": "Where shards end: 'exact' (at a token) or 'document'. None: the trainer's way.",
    "shard_tokens": "Tokens per shard, as a number or as text ('100M'). None: the format's.",
    "min_shard_tokens": "Minimum tokens in the last shard (see `last_shard`). None: the format's.",
    "last_shard": "What to do if the last shard is too short: 'keep', 'merge' or 'refuse'.",
    "compression": "Compression of the shards, for mds only: 'none' or 'zstd'.",
    "name": "Start of the shards' names. None: the folder's name.",
    "dtype": "Type of a token in the files: 'uint16' or 'uint32'. None: what the ids need.",
    # splits and rows
    "split": "Take only this split (train, validation, test) of folders, globs and DatasetDicts.",
    "all_splits": "Mix the splits of a folder, glob or DatasetDict.",
    "val": "Validation split: a fraction of the documents (0.0005), 'tail:0.1' (the last tenth of "
    "the tokens), 'docs:N', 'tokens:N', 'shard' (the first shard), 'split' (the files of the "
    "validation split) or 'none'. None: the format's.",
    "val_inputs": "Files, a folder or a glob for the validation split, one or a list.",
    "allow_empty_split": "Commit also if a split has no documents.",
    "shuffle": "Documents of all inputs in random order (docs/order.md).",
    "seed": "Which documents a fraction in `val` takes, and the order of `shuffle`: another seed, "
    "other documents, another order.",
    "only": "Only documents of this source of a mixture, or of this input file.",
    "drop_empty": "Drop empty documents (they are counted).",
    "min_tokens": "Drop documents with fewer tokens (they are counted).",
    "max_tokens": "Drop documents with more tokens (they are counted).",
    "limit_docs": "Only the first N documents: a trial run.",
    "limit_tokens": "Only documents that begin before token N: a trial run.",
    # run
    "workers": "Worker processes; 0: do everything in this process. None: one per usable core.",
    "memory": "Memory for all processes together, as bytes or as text ('4GB'). None: 0.5 GB and "
    "0.5 GB per worker.",
    "start_method": "How worker processes are started: 'forkserver', 'spawn' or 'fork'.",
    "encoder": "'auto' (the fast encoder where it is proven equal to the reference), 'gigatoken' "
    "or 'reference'.",
    "encoder_check": "Encode documents again with the reference: 'sample', 'all' or 'none'.",
    "on_bad_row": "What to do with a row that is not text: 'stop', or 'quarantine' (write it to "
    "quarantine.jsonl and go on).",
    "keep_downloads": "Keep downloaded inputs in the cache. False: remove each once its tokens "
    "are durable.",
    "downloads": "Parallel downloads.",
    "scratch": "A folder on a local disk for tokens that wait to be written. '': in the output "
    "folder.",
    "reuse": "A finished dataset: documents of sources that are unchanged since it was made are "
    "taken from it instead of being encoded. The result is the same. '': none.",
    "part": "Do part I of N of a job on several machines, such as '0/16' (docs/cluster.md); then "
    "`finish`. '': the whole job.",
    "engine": "Where the work is done: 'local' (processes of this machine) or 'ray' (a cluster).",
    "ray_address": "Address of a running Ray cluster. '': start one on this machine.",
    "overwrite": "Replace a dataset that tokenmill made in this folder.",
    "quiet": "Show nothing: no plan, progress, warnings or summary.",
    "observer": "Receives the progress (a `tokenmill.engines.observer.Observer`); then nothing is "
    "shown.",
    "on_plan": "Called with the plan before the work begins.",
    "probe": "Read and encode samples for two seconds, to estimate tokens and time.",
    # fineweb
    "version": "Which part of FineWeb: '10B', '100B' or '350B' (samples), or a dump such as "
    "'CC-MAIN-2024-10'.",
    "type": "'edu' (FineWeb-Edu) or 'classic' (FineWeb).",
    "revision": "Branch, tag or commit of the repository on the Hub.",
    # finished datasets
    "threads": "Threads that read files. None: one per usable core.",
    "sample": "How many documents are compared, or 'all'. None: what `seconds` allow.",
    "seconds": "How long documents are compared where `sample` is None.",
    "source_root": "Folder that holds the inputs now, if they were moved.",
    "on_progress": "Called with the bytes of text compared so far, and of all.",
    "document": "Number of the document, counted from 0; a negative one counts from the end.",
    "token": "Number of a token in its split: shows the document that holds it.",
    "source": "Input file: its name in the manifest, the end of that name, or its path.",
    "row": "Number of a row of the source, counted from 0; a negative one counts from the end.",
}

# Where a keyword means something else in one function.
OWN_SENTENCES = {
    ("adopt", "directory"): "Folder that holds the token files.",
    ("adopt", "format"): "Format of the token files: nanogpt, llmc, megatron or datatrove.",
    ("inspect_document", "split"): "The split of the dataset: 'train' or 'val'.",
    ("open_dataset", "format"): "Which of several formats. None: the only or first one.",
}

# Names that other tools use for the same thing.
MEANT = {
    "as": "as_kind", "kind": "as_kind", "column": "text_column", "text_key": "text_column",
    "text_field": "text_column", "content_key": "text_column", "num_proc": "workers",
    "num_workers": "workers", "n_jobs": "workers", "processes": "workers", "nprocs": "workers",
    "shard_size": "shard_tokens", "out": "output", "output_dir": "output", "path": "inputs",
    "data": "inputs", "files": "inputs", "encoding": "tokenizer", "model": "tokenizer",
    "vocab": "tokenizer", "val_fraction": "val", "validation": "val", "val_split": "val",
    "test_size": "val", "max_docs": "limit_docs", "force": "overwrite", "verbose": "quiet",
    "filter": "where", "bos": "bos_token", "random_state": "seed",
}  # fmt: skip

FLAGS = ("overwrite", "shuffle", "allow_empty_split", "all_splits", "drop_empty", "quiet")
REPLACED = {
    "--as": "as_kind",
    "--no-keep-downloads": "keep_downloads=False",
    "--no-probe": "probe=False",
    "--download-only": "tokenmill.download()",
    "--deep": "verify_deep()",
    "-o": "output",
}
_WORDS = {
    word
    for kind in (
        settings.Eot, settings.Cut, settings.EncoderChoice, settings.EncoderCheck,
        settings.OnBadRow, settings.LastShard, settings.Compression, settings.Dtype,
        settings.StartMethod,
    )
    for word in get_args(kind)
} | {"shard", "split", "auto", "json", "jsonl", "text", "train", "validation", "test",
     "gpt2", "classic"}  # fmt: skip
_WORDS |= set(re.findall(r"[a-z0-9-]+", SENTENCES["format"].partition(": ")[2]))
_OPTION = re.compile(
    r"`[^`]*`"  # a command stays a command
    r"|(?<![\w-])(?P<option>--[a-z][a-z-]*|-o)\b(?!-)"
    r"(?P<value> (?:'[^']*'|\"[^\"]*\"|(?:docs|tokens|tail):[\w.]+"
    r"|[^\s:]+(?=: )"
    rf"|(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})\b(?![-:]\w)"
    r"|[A-Z]+\b|-?[0-9][\w.,*]*\w|-?[0-9]))?"
)

_NEIGHBOURS = re.compile(r"\b([a-z_]+=(?:'[^']*'|\w+)) (?=[a-z_]+=)")


def in_keywords(text: str) -> str:
    """A message that names options of the command line, for a caller in Python."""
    changed = _OPTION.sub(_as_keyword, text).replace("the same command", "the same call")
    # `--workers 1 --memory 1GB` was a list of options, without commas.
    return text if changed == text else _NEIGHBOURS.sub(r"\1, ", changed)


def _as_keyword(match: re.Match[str]) -> str:
    option, value = match["option"], (match["value"] or "").strip()
    name = (option or "").removeprefix("--").replace("-", "_")
    if option is None or (option not in REPLACED and name not in SENTENCES):
        return match[0]
    if "=" in (keyword := REPLACED.get(option, name)) or keyword.endswith("()"):
        return f"{keyword} {value}".strip()
    if not value:
        return f"{keyword}=True" if keyword in FLAGS else keyword
    if value[0] in "'\"" or re.fullmatch("[A-Z]+", value):
        return f"{keyword}={value}"
    number = value.replace(",", "")
    return f"{keyword}={number}" if re.fullmatch(r"-?[0-9.]+", number) else f"{keyword}={value!r}"


def unknown_keyword(function: str, name: str, known: Collection[str]) -> UnknownKeywordError:
    meant = {word: keyword for word, keyword in MEANT.items() if keyword in known}
    return UnknownKeywordError(
        f"{function}() has no keyword {name!r}",
        hint=f"{did_you_mean(name, known, meant)}help(tokenmill.{function}) lists them all",
    )


def in_python(function: Function) -> Function:
    """A public function: its help lists every keyword, an unknown one is answered with a
    suggestion, and errors speak of keywords."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    lines = _help_lines(function.__name__, names)
    function.__doc__ = "\n".join([function.__doc__ or "", *lines])

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in names:
                raise unknown_keyword(function.__name__, name, names)
        try:
            return function(*arguments, **keywords)
        except TokenmillError as error:
            error.reword(in_keywords)
            raise

    return cast(Function, call)


def sentence(function: str, keyword: str) -> str:
    return OWN_SENTENCES.get((function, keyword), SENTENCES[keyword])


def _help_lines(function: str, names: Iterable[str]) -> list[str]:
    width = max(map(len, names))
    return ["", *(f"    {name:{width}}  {sentence(function, name)}" for name in names)]
