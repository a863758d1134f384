"""What a trainer's format has to say: names, bytes, defaults, limits, and how to load it.

A plain format's token file is a header of known length and the tokens: workers write the tokens
to their place, the header comes at commit. A framed format has something around every document
or row; its files are made at commit (or by `export`) from the plain stream of tokens. Both may
have files beside each token file (an index) and files for the whole dataset.

Formats write nothing themselves: they turn a shard into buffers, and others put those on disk.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.settings import Cut, Dtype, Eot, Layout, PlanSettings
from tokenmill.system.store import Store
from tokenmill.texts import I64

Array = npt.NDArray[Any]
Info = dict[str, Any]  # what a format notes of a shard for its files of the whole dataset
Buffers = Iterable[Any]  # bytes, memoryviews, arrays; a generator may return an Info
DEFAULT_SHARD_TOKENS = 100_000_000
MAX_OFFSET = 2**32 - 4096  # of uint32, less what a file's header ever takes


class Shard(Protocol):
    """One token file to be."""

    settings: PlanSettings
    layout: Layout
    tokens: int
    first_document: int
    documents: int

    @property
    def path(self) -> str:
        """Name of the token file, as seen from the format's folder."""

    def lengths(self) -> Iterator[I64]:
        """Tokens of each document, some documents at a time."""

    def blocks(self) -> Iterator[tuple[Array, I64]]:
        """Tokens and lengths of whole documents, some at a time, and at least one."""

    def bare(self) -> Iterator[Array]:
        """All tokens, some at a time, wherever documents end."""

    def origins(self) -> Iterator[tuple[list[str], I64, I64]]:
        """Names of sources, and source and row of each document, in step with `lengths`."""


class MadeFile(NamedTuple):
    """A complete file in the work folder: length and digest of each piece, in order."""

    working: str  # '' where it is somebody else's and stays where it is
    pieces: npt.NDArray[np.uint64]
    info: Info

    @property
    def size(self) -> int:
        return int(self.pieces[:, 0].sum())


# The shards of each split, with the file that each has become.
MadeShards = dict[str, list[tuple[Shard, MadeFile]]]
# The name of a token file, from its split, its number from 0, and how many the split has.
FileName = Callable[[Layout, str, int, int], str]
# Of a folder and a token file in it.
LoadLines = Callable[[PlanSettings, Layout, str, str], list[str]]
MEMMAP_LINES = (
    "import numpy as np",
    "tokens = np.memmap({path!r}, dtype=np.{dtype}, mode='r')",
)


class Slices(Protocol):
    """The tokens of one file, of which parts are read."""

    def __getitem__(self, part: slice) -> Array: ...


def narrow(vocab_size: int) -> Dtype:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def itemsize(layout: Layout) -> int:
    return np.dtype(layout.dtype).itemsize


def stored_dtype(layout: Layout) -> np.dtype[Any]:
    return np.dtype(layout.dtype).newbyteorder("<")


def flat_tokens(layout: Layout, content: memoryview, tokens: int, offset: int) -> Slices:
    return np.frombuffer(content, stored_dtype(layout), tokens, offset)


def spans(sizes: Iterable[I64], start: int = 0) -> Iterator[tuple[I64, I64]]:
    """Begins and ends of things that have these sizes and follow each other."""
    for some in sizes:
        ends = start + np.cumsum(some)
        yield ends - some, ends
        start += int(some.sum())


def lines(*templates: str) -> LoadLines:
    """Lines that name {path}, {folder}, {split}, {split_folder}, {name}, {dtype}, {itemsize}."""

    def filled(settings: PlanSettings, layout: Layout, folder: str, file: str) -> list[str]:
        return [
            template.format(
                path=f"{folder}/{file}",
                folder=folder,
                split=file.partition("/")[0],
                split_folder=f"{folder}/{file.rpartition('/')[0]}",
                name=layout.name,
                dtype=layout.dtype,
                itemsize=itemsize(layout),
            )
            for template in templates
        ]

    return filled


def split_globs(settings: PlanSettings, folder: str, file: str) -> tuple[str, str]:
    """What a trainer is given for train and for val, of shards NAME_SPLIT_NUMBER; '' where there
    is no file. `file`: one of train, or of val where train has none; val none: val has none."""
    found = re.fullmatch(r"(.*)_(train|val)_[0-9]+(\.[a-z]+)", file)
    if found is None:  # somebody else's name
        return (f"{folder}/{file}", "") if "val" not in file else ("", f"{folder}/{file}")
    train, val = (f"{folder}/{found[1]}_{split}_*{found[3]}" for split in ("train", "val"))
    return train if found[2] == "train" else "", val if settings.val.kind != "none" else ""


def file_names(pattern: str, first_of_train: int = 0) -> FileName:
    """Names by a pattern of {name}, {split}, {number}, {of}, and {packed}: '' or '.zstd'."""

    def name(layout: Layout, split: str, number: int, of: int) -> str:
        number += first_of_train if split == "train" else 0
        packed = "" if layout.compression == "none" else f".{layout.compression}"
        return pattern.format(name=layout.name, split=split, number=number, of=of, packed=packed)

    return name


def globs(*patterns: str) -> Callable[[Layout], tuple[str, ...]]:
    """Patterns of {name} and {split}, for both splits."""
    return lambda layout: tuple(
        pattern.format(name=glob.escape(layout.name), split=split)
        for split in ("train", "val")
        for pattern in patterns
    )


class Format(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    trainer: str
    files: str  # its names in words, for people
    beside: str = ""  # files beside those of the tokens, in words
    eot: Eot = "append"
    cut: Cut = "document"
    val: str = "0.0005"
    sharded: bool = True
    named: bool = True  # whether --name is part of its files' names
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    framed: bool = False
    compressible: bool = False
    dtype: Callable[[int], Dtype] = narrow  # of a vocabulary, where the user does not say
    dtype_names: dict[str, str] = {}  # where the trainer calls it something else
    # Raises what the trainer would stumble over.
    check: Callable[[PlanSettings, Layout], None] = lambda settings, layout: None
    # As long for any number of tokens: these are in their place before they are counted.
    header: Callable[[Layout, int], bytes] = lambda layout, tokens: b""
    file_name: FileName
    trainer_glob: Callable[[Layout], tuple[str, ...]]  # what the trainer would pick up
    load_lines: LoadLines  # how to read it
    max_shard_tokens: Callable[[Layout], int | None] = lambda layout: None
    min_shard_tokens: int = 0  # a shorter file makes the trainer fail; 0: it does not
    min_train_shards: int = 1
    needs_val: bool = False  # the trainer opens the validation split even if nobody asks for it
    max_document_tokens: int | None = None
    max_documents: int | None = None  # in one file
    max_bytes: int | None = None  # of a file with what frames its documents: split before
    document_bytes: Callable[[Layout, I64], I64] = lambda layout, lengths: (
        lengths * itemsize(layout)
    )
    # Memory for each token of a document that is written in one piece (docs/log.md); 0: it is not.
    document_memory: int = 0
    effort: int = 1  # to write a byte of it, beside a plain format's
    # Buffers of a framed token file; what the generator returns is kept for `whole`.
    write: Callable[[Shard], Generator[Any, None, Info | None]] | None = None
    sidecars: Callable[[Shard], Iterable[tuple[str, Buffers]]] = lambda shard: ()
    # With the fingerprint of the plan: files about all shards.
    whole: Callable[[PlanSettings, Layout, str, MadeShards], Iterator[tuple[str, bytes]]] = (
        lambda settings, layout, fingerprint, shards: iter(())
    )
    # The content of a token file, how many tokens it should hold; a ValueError if it does not.
    read: Callable[[Layout, memoryview, int], Slices] | None = None
    # Whether a file that is not ours is a true copy that the trainer made of one.
    is_copy: Callable[[Store, str], bool] = lambda store, name: False

    def shown_dtype(self, layout: Layout) -> str:
        """As the trainer calls it."""
        return self.dtype_names.get(layout.dtype, layout.dtype)

    @property
    def keeps_documents(self) -> bool:
        """Whether its files say where documents begin: then none may be cut in two."""
        return self.cut == "document"

    def header_bytes(self, layout: Layout) -> int:
        return len(self.header(layout, 0))

    def open_tokens(self, layout: Layout, content: memoryview, tokens: int) -> Slices:
        """The tokens of a file that is as long as it should be."""
        if self.read is not None:
            return self.read(layout, content, tokens)
        return flat_tokens(layout, content, tokens, self.header_bytes(layout))


class TokenPieces:
    """The tokens of a file that holds them in pieces, of which `piece(i)` reads one."""

    def __init__(
        self,
        layout: Layout,
        tokens: int,
        lengths: npt.ArrayLike,
        piece: Callable[[int], Slices],
    ) -> None:
        self.ends = np.cumsum(np.asarray(lengths, np.int64))
        self.piece, self.tokens = piece, int(self.ends[-1]) if len(self.ends) else 0
        self.dtype = stored_dtype(layout)
        if self.tokens != tokens:
            raise ValueError(f"holds {self.tokens} tokens, should hold {tokens}")

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(self.tokens)
        if start >= stop:
            return np.zeros(0, self.dtype)
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.ends, stop, side="left"))
        found = []
        for number in range(first, last + 1):
            begin = int(self.ends[number - 1]) if number else 0
            found.append(self.piece(number)[max(0, start - begin) : stop - begin])
        # Tokens may begin at any byte of a file; only what is asked for is moved to its place.
        return np.require(found[0], requirements="A") if len(found) == 1 else np.concatenate(found)
