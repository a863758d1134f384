"""What a user asks for to the settings of a job: defaults filled in, what cannot be refused."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from tokenmill.amounts import parse_count
from tokenmill.errors import UsageError, did_you_mean
from tokenmill.formats import Format, get_format
from tokenmill.inputs.input_rules import EVERY, InputRules, PatternRules, parse_rules
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.remote.address import is_url
from tokenmill.inputs.rows.row_rule import columns_needed
from tokenmill.inputs.source import Source
from tokenmill.inputs.split_names import SplitChoice, check_choice
from tokenmill.planning.mixture.mix_file import FRACTION_VAL, mixture_val
from tokenmill.settings import (
    DEFAULT_DOWNLOADS,
    DEFAULT_START_METHOD,
    Compression,
    Cut,
    Dtype,
    EncoderCheck,
    EncoderChoice,
    Engine,
    Eot,
    LastShard,
    Layout,
    OnBadRow,
    PlanSettings,
    Reading,
    RunSettings,
    StartMethod,
    Val,
    is_plain_name,
    is_plain_path,
    timer_knobs,
)
from tokenmill.system.buckets.address import is_bucket, parse_address
from tokenmill.system.memory import Budget
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.fast import fast_verdict
from tokenmill.tokenizer.files import find_encoding, settled_id, special_id

WHOLE_TEXT_VAL = "tail:0.1"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may ask for; None means the format's or the machine's default."""

    text_column: str = "text"
    text: str = ""
    where: str = ""
    column_rules: PatternRules = ()  # text columns of some of the files
    kind_rules: PatternRules = ()  # kinds of files, as the user says
    text_separator: str | None = None
    tokenizer: str = "gpt2"
    pattern: str = ""
    eot_token: str | int | None = None
    bos_token: str | int | None = None
    dtype: Dtype | None = None
    format: str = "nanogpt"
    eot: Eot | None = None
    cut: Cut | None = None
    shard_tokens: str | int | None = None
    min_shard_tokens: str | int | None = None
    last_shard: LastShard | None = None
    compression: Compression | None = None
    name: str | None = None
    split: str = ""
    all_splits: bool = False
    val: str | float | None = None
    val_inputs: tuple[str, ...] = ()
    mix: str = ""
    shuffle: bool = False
    seed: int = 0
    drop_empty: bool = False
    min_tokens: str | int | None = None
    max_tokens: str | int | None = None
    limit_docs: str | int | None = None
    limit_tokens: str | int | None = None
    workers: int | None = None
    memory: str | int | None = None
    start_method: StartMethod = DEFAULT_START_METHOD
    encoder: EncoderChoice = "auto"
    encoder_check: EncoderCheck | bool = "sample"  # True is "sample", False is "none"
    on_bad_row: OnBadRow = "stop"
    allow_empty_split: bool = False
    overwrite: bool = False
    keep_downloads: bool = True
    downloads: int = DEFAULT_DOWNLOADS
    scratch: str = ""
    reuse: str = ""
    part: str = ""
    engine: Engine = "local"
    ray_address: str = ""

    @property
    def input_rules(self) -> InputRules:
        return InputRules(
            choice=self.choice,
            val_inputs=self.val_inputs,
            kinds=self.kind_rules,
            columns=self.column_rules,
            needed=columns_needed(Reading(self.text_column, template=self.text, where=self.where)),
        )

    @property
    def choice(self) -> SplitChoice:
        return SplitChoice(
            split=self.split,
            all_splits=self.all_splits,
            by_name=self.val == "split",
            val_inputs=bool(self.val_inputs),
        )


def _several(options: dict[str, Any], name: str) -> list[Any]:
    """An option that may be given once or several times."""
    value = options.get(name) or ()
    if isinstance(value, str | os.PathLike):
        return [value]
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} must be a string or a list of strings")
    return list(value)


def _plain(value: Any) -> Any:
    """A path as text, and a whole number of numpy's as one of Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


def make_options(options: dict[str, Any]) -> Options:
    options = {name: _plain(value) for name, value in options.items()}
    for field in msgspec.structs.fields(Options):
        kinds = (field.type, *get_args(field.type))
        choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
        if choices and isinstance(options.get(field.name), str):
            one_of("--" + field.name.replace("_", "-"), options[field.name], choices)
    for name in ("scratch", "reuse"):
        if options.get(name):
            options = {**options, name: os.fspath(options[name])}
    options = {**options, "val_inputs": tuple(map(os.fspath, _several(options, "val_inputs")))}
    column, columns = parse_rules("--text-column", _several(options, "text_column"))
    kind, kinds = parse_rules("--as", _several(options, "as_kind"))
    options.pop("as_kind", None)
    if "format" in options:
        options["format"] = ",".join(map(str, _several(options, "format")))
    options |= {"text_column": column or "text", "column_rules": columns}
    options["kind_rules"] = (*kinds, *([(EVERY, kind)] if kind else []))
    for _, name in options["kind_rules"]:
        kind_named(name)
    try:
        wanted = Options(**options)
        msgspec.convert(msgspec.to_builtins(wanted), Options)  # a Struct's own call checks no types
    except (TypeError, msgspec.ValidationError) as error:
        raise _wrong_type(options, str(error)) from None
    if not 0 <= wanted.seed < 1 << 64:
        raise UsageError(f"--seed {wanted.seed}: must be from 0 to 2**64 - 1")
    if not 1 <= wanted.downloads <= 64:
        raise UsageError(f"--downloads {wanted.downloads}: must be from 1 to 64")
    if wanted.val_inputs and wanted.val not in (None, "split"):
        raise UsageError(f"--val-inputs contradicts --val {wanted.val}", hint="leave --val out")
    check_choice(wanted.choice)
    return wanted


def _wrong_type(options: dict[str, Any], error: str) -> UsageError:
    """What msgspec says of a value, in words."""
    found = re.search(r"at `\$\.(\w+)", error)
    if not found:
        return UsageError(error.replace("Unexpected", "unexpected"))
    kind = str(Options.__annotations__[found[1]])
    words = {"bool": "True or False", "int": "a whole number", "float": "a number", "str": "text"}
    wanted = [word for name, word in words.items() if name in kind]
    value = options[found[1]]
    option = "--" + found[1].replace("_", "-")
    return UsageError(f"{option} {value!r}: must be {' or '.join(wanted)}")


def plan_settings(
    options: Options, output: str | os.PathLike[str], encoding: Encoding | None = None
) -> PlanSettings:
    """The format's defaults under what was asked for, and what cannot be refused."""
    encoding = encoding or find_encoding(options.tokenizer, options.pattern)
    if not os.fspath(output):
        raise UsageError("-o: is empty", hint="name a folder")
    if is_bucket(os.fspath(output)):
        parse_address(os.fspath(output))
    elif is_url(os.fspath(output)):
        raise UsageError(
            f"-o {output}: neither a local folder nor a bucket (s3://, gs://)",
            hint="write to a local folder and copy it",
        )
    if os.fsencode(output).decode(errors="ignore") != os.fspath(output):
        raise UsageError(f"{output!r}: the name is not valid UTF-8")
    if any(letter in options.text_column for letter in '"\\') or not options.text_column:
        raise UsageError(f"--text-column {options.text_column!r}: cannot be a column's name")
    if options.text and (options.text_column != "text" or options.column_rules):
        raise UsageError("--text contradicts --text-column", hint="leave one of them out")
    _ = options.input_rules.needed  # a template or a condition that is none is refused here
    formats = formats_of(options.format)
    asked = "split" if options.val_inputs else options.val
    val = Val.parse(_default_val(formats) if asked is None else asked)
    if options.mix:
        val = mixture_val(val, asked is None)
    separated = any((options.eot or fmt.eot) != "none" for fmt in formats)
    eot_id, bos_id = _special_ids(options, encoding, separated)
    vocab_size = max(encoding.vocab_size, eot_id + 1, bos_id + 1)
    bare = PlanSettings(
        text_column=options.text_column,
        text_separator=unescape(options.text_separator),
        # Whether a document is dropped for its length is known when it is encoded whole.
        may_cut=encoding.cuttable and options.min_tokens is None and options.max_tokens is None,
        tokenizer=encoding.name,
        tokenizer_sha256=encoding.sha256,
        pattern=encoding.pattern if encoding.path else "",
        eot_id=eot_id,
        bos_id=bos_id,
        vocab_size=vocab_size,
        layouts=(),
        val=val,
        seed=options.seed,
        drop_empty=options.drop_empty,
        **_limits(options),
        text_template=options.text,
        where=options.where,
        shuffle=options.shuffle,
    )
    return layout_settings(bare, options, formats, output)


def whole_text_val(options: Options, sources: Sequence[Source]) -> str | None:
    """For one text file without a separator, where the format's default is a fraction: a hash of
    its only document would leave one split empty. `tail:0.1`, or `none` where it is never cut."""
    alone = len(sources) == 1 and kind_named(sources[0].kind).has_separators
    if not alone or options.text_separator is not None or options.val is not None:
        return None
    formats = formats_of(options.format)
    if Val.parse(_default_val(formats)).kind != "fraction":
        return None
    first = min(formats, key=lambda fmt: fmt.framed)  # the one that workers write
    return "none" if (options.cut or first.cut) == "document" else WHOLE_TEXT_VAL


def _default_val(formats: list[Format]) -> str:
    """The first format's rule; a first shard only where all have shards."""
    if formats[0].val == "shard" and not all(fmt.sharded for fmt in formats):
        return FRACTION_VAL
    return formats[0].val


def layout_settings(
    bare: PlanSettings, options: Options, formats: list[Format], output: str | os.PathLike[str]
) -> PlanSettings:
    """Settings of one or several formats: what was asked for holds for all that it applies to."""
    if options.min_shard_tokens is not None:  # also where a short shard is kept, with a warning
        parse_count(options.min_shard_tokens, what="--min-shard-tokens")
    first = formats[0].name
    # Workers write the first format whose tokens lie in one piece; the others are made of it.
    formats = sorted(formats, key=lambda fmt: fmt.framed)
    layouts = [
        _layout(_applying(options, fmt, formats), fmt, bare.val, output, bare.vocab_size)
        for fmt in formats
    ]
    settings = msgspec.structs.replace(bare, layouts=tuple(layouts))
    sizes = {layout.format: layout.shard_tokens for layout in layouts}
    if bare.val.kind == "shard" and not bare.val.amount and len(set(sizes.values())) > 1:
        # One format's validation split must be all others': the first one's shard for all.
        settings = msgspec.structs.replace(settings, val=Val(kind="shard", amount=sizes[first]))
    for layout in layouts:
        check_layout(settings, layout, options.name)
    return settings


def _applying(options: Options, fmt: Format, formats: list[Format]) -> Options:
    """Without what is meant for other formats of the same run: one file has no shards to cut."""
    if not fmt.sharded and any(other.sharded for other in formats):
        options = msgspec.structs.replace(
            options, cut=None, shard_tokens=None, last_shard=None, min_shard_tokens=None
        )
    if not fmt.compressible and any(other.compressible for other in formats):
        options = msgspec.structs.replace(options, compression=None)
    return options


def formats_of(text: str) -> list[Format]:
    """`llmc,megatron` as formats; each once."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--format {text}: {name} is named twice")
    return [get_format(name) for name in names]


def _layout(
    options: Options, fmt: Format, val: Val, output: str | os.PathLike[str], vocab_size: int
) -> Layout:
    """What was asked for, else what the format's trainer is used to."""
    last_shard = options.last_shard or "keep"
    compression = options.compression or "none"
    if compression != "none" and not fmt.compressible:
        raise UsageError(f"--compression {compression}: {fmt.name} files cannot be compressed")
    return Layout(
        format=fmt.name,
        dtype=_dtype(options, fmt, vocab_size),
        eot=options.eot or fmt.eot,
        cut=options.cut or fmt.cut,
        shard_tokens=_shard_tokens(options, fmt, val),
        # A name that is in no file's name must not bind the output; nor a minimum that none minds.
        name=(options.name or Path(output).resolve().name) if fmt.named else "",
        min_shard_tokens=_min_shard_tokens(options, fmt) if last_shard != "keep" else 0,
        last_shard=last_shard,
        compression=compression,
    )


def check_layout(settings: PlanSettings, layout: Layout, asked_name: str | None = None) -> None:
    """What the trainer would stumble over, said before anything is read."""
    fmt = get_format(layout.format)
    name = fmt.file_name(layout, "train", 10**9, 10**9 + 1)
    named = layout.name if fmt.named else asked_name or "x"
    if not is_plain_name(named) or not is_plain_path(name):
        raise UsageError(
            f"--name {named!r} cannot begin a file name",
            hint="give a plain --name: no slash, no dot in front, no control character, at most "
            "200 bytes",
        )
    if fmt.keeps_documents and layout.cut == "exact":
        raise UsageError(
            f"--cut exact: {fmt.name} files hold whole documents: none can be cut in two",
            hint="leave --cut out",
        )
    limit = fmt.max_shard_tokens(layout)
    if limit is not None and layout.shard_tokens > limit:
        raise UsageError(
            f"--shard-tokens {layout.shard_tokens}: {fmt.name} reads at most {limit} tokens in "
            "one file"
        )
    if layout.cut == "exact" and 0 < layout.shard_tokens < layout.min_shard_tokens:
        raise UsageError(
            f"--shard-tokens {layout.shard_tokens}: below --min-shard-tokens "
            f"{layout.min_shard_tokens}, so every shard would be too short",
            hint="choose a larger --shard-tokens or a smaller --min-shard-tokens",
        )
    merged = layout.shard_tokens + layout.min_shard_tokens - 1
    if limit is not None and layout.last_shard == "merge" and merged > limit:
        raise UsageError(
            f"--shard-tokens {layout.shard_tokens}: with a last shard merged into one, a file "
            f"may hold {merged} tokens, and {fmt.name} reads at most {limit} in one file",
            hint="choose a smaller --shard-tokens or --min-shard-tokens",
        )
    fmt.check(settings, layout)


def _min_shard_tokens(options: Options, fmt: Format) -> int:
    if options.min_shard_tokens is not None:
        return parse_count(options.min_shard_tokens, what="--min-shard-tokens")
    if not fmt.min_shard_tokens:
        raise UsageError(
            f"--last-shard {options.last_shard}: {fmt.name} has no minimum shard length",
            hint="set one with --min-shard-tokens N",
        )
    return fmt.min_shard_tokens


def _shard_tokens(options: Options, fmt: Format, val: Val) -> int:
    if not fmt.sharded:
        if (options.cut and not fmt.keeps_documents) or options.shard_tokens is not None:
            raise UsageError(
                f"--format {fmt.name} is one file per split: it takes no --cut or --shard-tokens",
                hint="use --format llmc for shards",
            )
        if options.last_shard not in (None, "keep"):
            raise UsageError(f"--last-shard {options.last_shard}: {fmt.name} has no shards")
        if val.kind == "shard":
            raise UsageError(
                f"--val shard: {fmt.name} has no shards",
                hint="use --val 0.0005, tail:0.1, docs:N, tokens:N or none",
            )
        return 0
    asked = fmt.shard_tokens if options.shard_tokens is None else options.shard_tokens
    shard_tokens = parse_count(asked, what="--shard-tokens")
    if shard_tokens < 1:
        raise UsageError("--shard-tokens must be at least 1")
    return shard_tokens


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescape(text: str | None) -> str | None:
    r"""`\n \t \r \0 \\` as a shell passes them on; anything else after a backslash is refused."""
    if text is None:
        return None

    def letter(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise UsageError(
                f"--text-separator: {match[0]!r} is not an escape sequence",
                hint=r"known are \n \t \r \0 \\",
            )
        return _ESCAPES[match[1]]

    separator = re.sub(r"\\(.?)", letter, text, flags=re.DOTALL)
    if not separator:
        raise UsageError(
            "--text-separator: is empty",
            hint="leave --text-separator out: then a file is one document",
        )
    try:
        separator.encode()
    except UnicodeEncodeError:
        raise UsageError("--text-separator: is not UTF-8") from None
    return separator


def _limits(options: Options) -> dict[str, Any]:
    limits = {}
    for name in ("min_tokens", "max_tokens", "limit_docs", "limit_tokens"):
        asked = getattr(options, name)
        what = "--" + name.replace("_", "-")
        limits[name] = 0 if asked is None else parse_count(asked, what=what)
        if asked is not None and limits[name] < 1:
            raise UsageError(f"{what} {asked}: must be at least 1", hint="or leave it out")
    if limits["max_tokens"] and limits["min_tokens"] > limits["max_tokens"]:
        raise UsageError("--min-tokens is above --max-tokens: every document would be dropped")
    return limits


def _special_ids(options: Options, encoding: Encoding, separated: bool) -> tuple[int, int]:
    """The ids that separate and begin documents: named by the user, or settled by the file."""
    eot_id = bos_id = -1
    if options.eot_token is not None:
        eot_id = special_id(encoding, str(options.eot_token), "--eot-token")
    elif separated:
        eot_id = settled_id(encoding, encoding.eot_candidates, "--eot-token")
    if options.bos_token == "auto":
        bos_id = settled_id(encoding, encoding.bos_candidates, "--bos-token")
    elif options.bos_token is not None:
        bos_id = special_id(encoding, str(options.bos_token), "--bos-token")
    return eot_id if separated else -1, bos_id


def _dtype(options: Options, fmt: Format, vocab_size: int) -> Dtype:
    if options.dtype == "uint16" and vocab_size > 1 << 16:
        raise UsageError(
            f"--dtype uint16: holds ids up to 65535, the tokenizer has ids up to {vocab_size - 1}",
            hint="leave --dtype out, or use --dtype uint32",
        )
    return options.dtype or fmt.dtype(vocab_size)


def one_of(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        hint = did_you_mean(value, allowed).strip()
        raise UsageError(f"{what} {value!r}: must be one of {', '.join(allowed)}", hint=hint)
    return value


def run_settings(options: Options, budget: Budget, encoding: Encoding) -> RunSettings:
    verdict = fast_verdict(encoding)
    if options.encoder == "gigatoken" and not verdict.rules:
        raise UsageError(
            f"--encoder gigatoken cannot encode with {encoding.name}: {verdict.why_slow}",
            hint="use --encoder auto",
        )
    check = options.encoder_check
    return RunSettings(
        workers=budget.workers,
        memory=budget.memory,
        start_method=options.start_method,
        encoder=options.encoder,
        encoder_check=("sample" if check else "none") if isinstance(check, bool) else check,
        on_bad_row=options.on_bad_row,
        allow_empty_split=options.allow_empty_split,
        overwrite=options.overwrite,
        keep_downloads=options.keep_downloads,
        downloads=options.downloads,
        scratch=os.path.abspath(options.scratch) if options.scratch else "",
        reuse=_absolute(options.reuse) if options.reuse else "",
        engine=options.engine,
        ray_address=options.ray_address,
        max_actors=options.workers or 0,
        **timer_knobs(),
    )


def _absolute(place: str) -> str:
    return str(parse_address(place)) if is_bucket(place) else os.path.abspath(place)
