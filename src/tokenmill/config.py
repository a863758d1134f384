"""Settings of a job: frozen, validated once, and split by what they may do.

Plan settings decide the bytes of the output; they are bound to an output folder and hashed into
its fingerprint. Run settings decide only how the work is done; they are free on every resume.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal
from unicodedata import category

import msgspec

from tokenmill.cgroups import cgroup_cores, cgroup_memory
from tokenmill.errors import UsageError

Eot = Literal["append", "prepend", "none"]
Cut = Literal["exact", "document"]
# "given": the splits of token files that were imported
ValKind = Literal["fraction", "docs", "tokens", "shard", "none", "given"]
EncoderChoice = Literal["auto", "gigatoken", "reference"]
OnBadRow = Literal["stop", "quarantine"]
LastShard = Literal["keep", "merge", "refuse"]
Compression = Literal["none", "zstd"]
Dtype = Literal["uint16", "uint32"]

START_METHODS = ("fork", "spawn", "forkserver")

# As fast as fork and faster than spawn (docs/log.md), and unlike fork it copies nothing of the
# threads and locks that the caller's process happens to hold.
DEFAULT_START_METHOD = "forkserver"

DEFAULT_DOWNLOADS = 4  # files on their way at a time
MAX_NAME_BYTES = 255  # of a file, on every usual file system

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_count(text: str | int, *, what: str = "a number", unit: str = "") -> int:
    """'100M' -> 100000000, '64KiB' -> 65536. k, M, G are decimal; KiB, MiB, GiB are binary."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = re.fullmatch(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if match:
        number, suffix = match[1].replace("_", ""), match[2].lower()
        if unit and suffix.endswith(unit) and suffix not in _BINARY:
            suffix = suffix[: -len(unit)]
        factor = _BINARY.get(suffix) or _DECIMAL.get(suffix)
        if factor:
            whole, _, fraction = number.partition(".")
            value = int(whole) * factor
            if fraction:
                value += int(fraction) * factor // 10 ** len(fraction)
            return value
    raise UsageError(
        f"{what}: {text!r} is not a number",
        hint="write a whole number, or one with k, M, G (decimal) or KiB, MiB, GiB (binary)",
    )


def parse_bytes(text: str | int, *, what: str = "a size") -> int:
    """'1.5GB' -> 1500000000, '2GiB' -> 2147483648."""
    return parse_count(text, what=what, unit="b")


def is_plain_name(name: str) -> bool:
    """Whether a name is one that we give a file: in its folder, visible, writable anywhere."""
    return (
        0 < len(name.encode(errors="surrogatepass")) <= MAX_NAME_BYTES
        and not name.startswith(".")
        and "/" not in name
        and not any(category(letter) in ("Cc", "Cs") for letter in name)
    )


class Val(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents are held out: a hashed fraction, the first ones, llm.c's first shard."""

    kind: ValKind
    amount: int = 0  # of `shard` too, where formats of one run have shards of different sizes
    fraction: str = ""  # the shortest decimal that is this float

    @classmethod
    def parse(cls, text: str | float) -> Val:
        text = str(text).strip()
        if text in ("shard", "none"):
            return cls(kind=text)  # type: ignore[arg-type]
        kind, _, amount = text.partition(":")
        if kind in ("docs", "tokens") and amount:
            number = parse_count(amount, what=f"--val {kind}:N")
            if number < 1:
                raise UsageError(f"--val {text}: N must be at least 1", hint="or use --val none")
            return cls(kind=kind, amount=number)  # type: ignore[arg-type]
        try:
            fraction = float(text)
        except ValueError:
            fraction = -1.0
        if not 0 < fraction < 1:
            raise UsageError(
                f"--val {text!r} is not a validation rule",
                hint="use a fraction such as 0.0005, docs:N, tokens:N, shard or none",
            )
        return cls(kind="fraction", fraction=repr(fraction))

    @property
    def threshold(self) -> int:
        """A document is held out when its 64-bit hash is below this."""
        return int(float(self.fraction) * 2**64) if self.kind == "fraction" else 0

    def __str__(self) -> str:
        if self.kind == "fraction":
            return self.fraction
        return f"{self.kind}:{self.amount}" if self.amount else self.kind


class Reading(msgspec.Struct, frozen=True):
    """What a reader needs to know to find the documents in a file."""

    text_column: str
    separator: bytes | None = None  # of documents in a text file; None: a file is one document
    may_cut: bool = False  # a giant text may be cut between words, see encoders/cuts.py


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
    format: str
    dtype: Dtype
    eot: Eot
    cut: Cut
    shard_tokens: int  # 0: one file per split
    min_shard_tokens: int = 0
    last_shard: LastShard = "keep"
    compression: Compression = "none"
    more: tuple[Layout, ...] = ()  # formats that are written besides
    val: Val
    seed: int
    name: str
    drop_empty: bool
    min_tokens: int = 0  # a document with fewer is dropped
    max_tokens: int = 0  # one with more, too; 0: no limit
    limit_docs: int = 0  # the first documents only; 0: all
    limit_tokens: int = 0  # only documents that begin before this token

    @property
    def reading(self) -> Reading:
        separator = None if self.text_separator is None else self.text_separator.encode()
        return Reading(self.text_column, separator, self.may_cut)

    @property
    def drops(self) -> bool:
        """Whether documents are dropped for their length."""
        return bool(self.drop_empty or self.min_tokens or self.max_tokens)

    @property
    def limited(self) -> bool:
        return bool(self.limit_docs or self.limit_tokens)

    @property
    def layouts(self) -> list[PlanSettings]:
        """The settings of each format by itself; the first is what workers write."""
        alone = msgspec.structs.replace(self, more=())
        return [alone, *(alone.laid_out(layout) for layout in self.more)]

    def laid_out(self, layout: Layout) -> PlanSettings:
        fields = {name: getattr(layout, name) for name in layout.__struct_fields__}
        return msgspec.structs.replace(self, **fields)

    def folder_of(self, format: str) -> str:
        """Where in the output a format's files are: one for each where there are several."""
        return f"{format}/" if self.more else ""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is done. Free to change whenever a job is resumed."""

    workers: int
    memory: int
    start_method: str = DEFAULT_START_METHOD
    encoder: EncoderChoice = "auto"
    encoder_check: bool = True
    on_bad_row: OnBadRow = "stop"
    overwrite: bool = False
    keep_downloads: bool = True
    downloads: int = DEFAULT_DOWNLOADS
    sync_seconds: float = 2.0
    sync_bytes: int = 256_000_000
    stuck_seconds: float = 60.0


def settings_to_dict(settings: msgspec.Struct) -> dict[str, Any]:
    """As it will be read back from a file: with lists where there were tuples."""
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    return result


def available_cores() -> int:
    """Cores this process may use: affinity, and the cgroup's quota where there is one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = cgroup_cores()
    return max(1, min(cores, round(quota))) if quota else cores


def memory_allowed() -> int:
    """Bytes this process may use: the machine's memory, or the cgroup's limit where lower."""
    try:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        limit = 8 * 10**9
    group = cgroup_memory().limit
    return min(limit, group) if group > 0 else limit


# What the parts need, measured as PSS (docs/log.md): the coordinator and the fork server with its
# own copy of the encoders, and a worker with its encoder, one batch and one unit.
COORDINATOR_BYTES = 300_000_000
WORKER_MIN_BYTES = 350_000_000
WORKER_FLOOR_BYTES = 200_000_000  # of a worker, without what it has to hold whole (memory.py)
WORKER_BYTES = 500_000_000
MEMORY_BASE_BYTES = 500_000_000


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers the memory allows, and what each may use."""

    workers: int
    wanted: int  # workers there would be with more memory
    memory: int
    worker_bytes: int
    note: str = ""


def fit_budget(workers: int | None, memory: int | None) -> Budget:
    """Workers and memory that agree with each other; fewer workers when memory is short."""
    wanted = available_cores() if workers is None else workers
    if wanted < 0:
        raise UsageError(f"--workers {wanted}: must be 0 or more")
    processes = max(1, wanted)
    if memory is None:
        memory = min(MEMORY_BASE_BYTES + WORKER_BYTES * processes, memory_allowed() // 2)
    minimum = COORDINATOR_BYTES + WORKER_MIN_BYTES
    if memory < minimum:
        raise UsageError(
            f"--memory {memory / 1e9:.2f}GB is below the minimum of {minimum / 1e9:.2f}GB",
            hint=f"give --memory {minimum // 10**6}MB or more",
        )
    fits = max(1, (memory - COORDINATOR_BYTES) // WORKER_MIN_BYTES)
    note = ""
    if processes > fits:
        note = (
            f"{fits} workers instead of {processes}: --memory {memory / 1e9:.1f}GB holds no more "
            f"(each needs {WORKER_MIN_BYTES / 1e9:.1f}GB)"
        )
        processes = fits
    return Budget(
        workers=processes if wanted else 0,
        wanted=wanted,
        memory=memory,
        worker_bytes=(memory - COORDINATOR_BYTES) // processes,
        note=note,
    )
