"""Settings of a job: frozen, validated once, and split by what they may do.

Plan settings decide the bytes of the output; they are bound to an output folder and hashed into
its fingerprint. Run settings decide only how the work is done; they are free on every resume.
"""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any, Literal
from unicodedata import category

import msgspec

from tokenmill.amounts import parse_count
from tokenmill.errors import UsageError

Eot = Literal["append", "prepend", "none"]
Cut = Literal["exact", "document"]
# "given": the splits of token files that were imported; "split": each source says its own
ValKind = Literal["fraction", "docs", "tokens", "shard", "none", "given", "split", "tail"]
EncoderChoice = Literal["auto", "gigatoken", "reference"]
EncoderCheck = Literal["sample", "all", "none"]
OnBadRow = Literal["stop", "quarantine"]
LastShard = Literal["keep", "merge", "refuse"]
Compression = Literal["none", "zstd"]
Dtype = Literal["uint16", "uint32"]

StartMethod = Literal["fork", "spawn", "forkserver"]
Engine = Literal["local", "ray"]

# As fast as fork and faster than spawn (docs/log.md), and unlike fork it copies nothing of the
# threads and locks that the caller's process happens to hold.
DEFAULT_START_METHOD: StartMethod = "forkserver"

DEFAULT_DOWNLOADS = 4  # files on their way at a time
MAX_NAME_BYTES = 255  # of a file, on every usual file system


def is_plain_name(name: str) -> bool:
    """Whether a name is one that we give a file: in its folder, visible, writable anywhere."""
    return (
        0 < len(name.encode(errors="surrogatepass")) <= MAX_NAME_BYTES
        and not name.startswith(".")
        and "/" not in name
        and not any(category(letter) in ("Cc", "Cs") for letter in name)
    )


class Val(msgspec.Struct, frozen=True, kw_only=True):
    """The validation split: a hashed fraction, the first documents, llm.c's first shard, the last
    tokens (`tail`), or whole sources (`split`)."""

    kind: ValKind
    amount: int = 0  # of `shard` too, where formats of one run have shards of different sizes
    fraction: str = ""  # the shortest decimal that is this float; of `tail` too

    @classmethod
    def parse(cls, text: str | float) -> Val:
        text = str(text).strip()
        if text in ("shard", "none", "split"):
            return cls(kind=text)  # type: ignore[arg-type]
        kind, _, amount = text.partition(":")
        if kind in ("docs", "tokens") and amount:
            number = parse_count(amount, what=f"--val {kind}:N")
            if number < 1:
                raise UsageError(f"--val {text}: N must be at least 1", hint="or use --val none")
            return cls(kind=kind, amount=number)  # type: ignore[arg-type]
        try:
            fraction = float(amount if kind == "tail" else text)
        except ValueError:
            fraction = -1.0
        if not 0 < fraction < 1:
            raise UsageError(
                f"--val {text!r} is not a validation rule",
                hint="use a fraction between 0 and 1 (0.01 is 1 % of the documents), tail:0.1, "
                "docs:N, tokens:N, shard, split or none",
            )
        return cls(kind="tail" if kind == "tail" else "fraction", fraction=repr(fraction))

    def tail_start(self, tokens: int) -> int:
        """The token at which the last FRACTION of so many begins, rounded down: as exact as the
        decimal is, and a stream that has tokens has some in its tail."""
        return int(tokens * (1 - Fraction(self.fraction)))

    @property
    def threshold(self) -> int:
        """A document is in the validation split when its 64-bit hash is below this."""
        return int(float(self.fraction) * 2**64) if self.kind == "fraction" else 0

    def __str__(self) -> str:
        if self.kind == "fraction":
            return self.fraction
        if self.kind == "tail":
            return f"tail:{self.fraction}"
        return f"{self.kind}:{self.amount}" if self.amount else self.kind


class Reading(msgspec.Struct, frozen=True):
    """What a reader needs to know to find the documents in a file."""

    text_column: str
    separator: bytes | None = None  # of documents in a text file; None: a file is one document
    may_cut: bool = False  # a giant text may be cut between words, see tokenizer/encoders/cuts.py
    template: str = ""  # of the text, from several columns; '': the text column
    where: str = ""  # a condition that rows must meet; '': all rows


def is_plain_path(path: str) -> bool:
    """A file of a dataset: in its folder, or in one or two folders below."""
    parts = path.split("/")
    return len(parts) <= 3 and all(map(is_plain_name, parts))


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How one format lays out the tokens of a job: what may differ between formats of one run."""

    format: str
    dtype: Dtype
    eot: Eot
    cut: Cut
    shard_tokens: int  # 0: one file per split
    name: str
    min_shard_tokens: int = 0  # of the last shard, where `last_shard` is not "keep"
    last_shard: LastShard = "keep"
    compression: Compression = "none"


# Settings that came later: at their default they are in no plan, so that a plan of before is the
# same plan.
LEFT_OUT = ("text_template", "where", "shuffle", "mixture", "reshuffle", "only")


class MixShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a mixture takes of one of its sources: a weight ("rest": what the others leave), or an
    amount of its own. Numbers are exact fractions, as text."""

    name: str
    weight: str = ""
    amount: int = 0
    max_epochs: str = "1"


class MixSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture, in the order of its file. `total` 0: the largest that is possible."""

    shares: tuple[MixShare, ...]
    unit: Literal["tokens", "documents"] = "tokens"
    total: int = 0

    @property
    def names(self) -> list[str]:
        return [share.name for share in self.shares]


class Reshuffle(msgspec.Struct, frozen=True, kw_only=True):
    """`export --shuffle`: documents in the order of keys that are made of the seed, of the
    checksum of a dataset, and of their numbers in it."""

    seed: int
    of: str


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the bytes. Every field is part of the output's fingerprint."""

    text_column: str
    text_separator: str | None = None
    may_cut: bool = False
    tokenizer: str
    tokenizer_sha256: str
    pattern: str = ""  # of a .tiktoken file, which does not say it itself
    eot_id: int  # -1: none
    bos_id: int = -1  # begins every document; -1: none
    vocab_size: int
    layouts: tuple[Layout, ...]  # one for each format, at least one
    val: Val
    seed: int
    drop_empty: bool
    min_tokens: int = 0  # a document with fewer is dropped
    max_tokens: int = 0  # one with more, too; 0: no limit
    limit_docs: int = 0  # the first documents only; 0: all
    limit_tokens: int = 0  # only documents that begin before this token
    text_template: str = ""  # of the text, from several columns
    where: str = ""  # a condition that rows must meet
    mixture: MixSettings | None = None
    shuffle: bool = False  # documents in the order of their keys, see tokens/order.py
    reshuffle: Reshuffle | None = None  # since then `export` has shuffled them
    only: str = ""  # `export --by-source`: the source whose documents are here

    @property
    def first(self) -> Layout:
        """The layout that workers write; the others are made of it."""
        return self.layouts[0]

    @property
    def reading(self) -> Reading:
        separator = None if self.text_separator is None else self.text_separator.encode()
        return Reading(self.text_column, separator, self.may_cut, self.text_template, self.where)

    @property
    def drops(self) -> bool:
        """Whether documents are dropped for their length."""
        return bool(self.drop_empty or self.min_tokens or self.max_tokens)

    @property
    def limited(self) -> bool:
        return bool(self.limit_docs or self.limit_tokens)

    @property
    def reads_part(self) -> bool:
        """Whether inputs may be left unread: of a shuffled job even the first documents may be
        anywhere."""
        return self.limited and not self.by_key

    @property
    def by_key(self) -> bool:
        """Whether documents get their places by keys once all are encoded: of a shuffled dataset,
        and of a mixture, which chooses them by their keys."""
        return self.shuffle or self.mixture is not None

    @property
    def reordered(self) -> bool:
        """Whether documents are not in the order of their sources and rows: then the index has a
        source and a row for each of them, and a table of documents by source and row."""
        return self.by_key or self.reshuffle is not None

    @property
    def unlimited(self) -> PlanSettings:
        return msgspec.structs.replace(self, limit_docs=0, limit_tokens=0)

    def folder_of(self, layout: Layout) -> str:
        """Where in the output a format's files are: one for each where there are several."""
        return f"{layout.format}/" if len(self.layouts) > 1 else ""

    def to_dict(self) -> dict[str, Any]:
        """As plans and manifests hold it: the first layout's fields among the common ones, in an
        order that checksums of manifests depend on, and further layouts as `more`."""
        fields = msgspec.json.decode(msgspec.json.encode(self))  # lists where there were tuples
        first, *more = fields.pop("layouts")
        name = first.pop("name")
        result: dict[str, Any] = {}
        for field, value in fields.items():
            if field == "val":
                result |= {**first, "more": more}
            elif field == "drop_empty":
                result["name"] = name
            if field not in LEFT_OUT or value:
                result[field] = value
        return result

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> PlanSettings:
        first = {field: stored[field] for field in Layout.__struct_fields__ if field in stored}
        return msgspec.convert({**stored, "layouts": [first, *stored.get("more", ())]}, cls)


STORE_SECONDS = 300.0  # the same, where it waits for a store
STUCK_SECONDS = 60.0  # a worker that was silent for so long is hung


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is done. Free to change whenever a job is resumed."""

    workers: int
    memory: int
    start_method: StartMethod = DEFAULT_START_METHOD
    encoder: EncoderChoice = "auto"
    encoder_check: EncoderCheck = "sample"
    on_bad_row: OnBadRow = "stop"
    allow_empty_split: bool = False
    overwrite: bool = False
    keep_downloads: bool = True
    downloads: int = DEFAULT_DOWNLOADS
    scratch: str = ""  # the folder for units that wait for their place; "": the work folder
    engine: Engine = "local"
    max_actors: int = 0  # on a cluster; 0: one for every core
    ray_address: str = ""  # of a running cluster; "": start one on this machine
    reuse: str = ""  # a finished dataset whose documents need not be encoded again
    sync_seconds: float = 2.0
    sync_bytes: int = 256_000_000
    stuck_seconds: float = STUCK_SECONDS
    make_bytes: float = 32_000_000  # of files to make: fewer are not worth the start of workers


def patient(run: RunSettings) -> RunSettings:
    """For a store without places: a worker that puts a unit into a bucket may have to wait for the
    bucket, and is not hung."""
    if run.start_method == "fork":  # a bucket's client has threads, which a fork loses
        run = msgspec.structs.replace(run, start_method="forkserver")
    if run.stuck_seconds == STUCK_SECONDS:
        run = msgspec.structs.replace(run, stuck_seconds=STORE_SECONDS)
    return run


def timer_knobs() -> dict[str, Any]:
    """Timers that tests shorten; a user has no reason to."""
    knobs = {}
    for name in ("sync_seconds", "stuck_seconds", "make_bytes"):
        value = os.environ.get(f"TOKENMILL_{name.upper()}")
        if value and value.replace(".", "", 1).isdigit():
            knobs[name] = float(value)
    return knobs
