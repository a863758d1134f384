"""What a trainer's format has to say: names, bytes, defaults, limits, and how to load it.

A plain format's token file is a header of known length and the tokens: workers write the tokens
to their place, the header comes at commit. A framed format has something around every document
or row; its files are made at commit (or by `export`) from the plain stream of tokens. Both may
have files beside each token file (an index) and files for the whole dataset.

Formats write nothing themselves: they turn a shard into buffers, and others put those on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.config import Cut, Dtype, Eot, PlanSettings
from tokenmill.errors import VerificationError

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]
Buffers = Iterable[Any]  # bytes, memoryviews, arrays
Info = dict[str, Any]  # what a format notes of a shard for its files of the whole
DEFAULT_SHARD_TOKENS = 100_000_000


class Shard(Protocol):
    """One token file to be: tokens [first_token, first_token + tokens) of a stream."""

    settings: PlanSettings
    split: str
    number: int  # in its split, from 0
    of: int  # as many shards has the split
    first_token: int
    tokens: int
    first_document: int
    documents: int

    @property
    def path(self) -> str:
        """Name of the token file, as seen from the format's folder."""

    def lengths(self) -> Iterator[I64]:
        """Tokens of each document, some documents at a time."""

    def blocks(self) -> Iterator[tuple[Array, I64]]:
        """Tokens and lengths of whole documents, some at a time."""

    def origins(self) -> Iterator[tuple[list[str], I64, I64]]:
        """Names of sources, and source and row of each document, in step with `lengths`."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that is written."""

    path: str
    split: str
    tokens: int
    documents: int
    size: int
    info: Info = {}


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset whose shards are all written."""

    settings: PlanSettings
    fingerprint: str
    shards: list[Done]

    def splits(self) -> Iterator[tuple[str, list[Done]]]:
        for split in dict.fromkeys(done.split for done in self.shards):
            yield split, [done for done in self.shards if done.split == split]


class Slices(Protocol):
    """The tokens of one file, of which parts are read."""

    def __getitem__(self, part: slice) -> Array: ...


def narrow(vocab_size: int) -> Dtype:
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def nothing(settings: PlanSettings) -> None:
    """A format without rules of its own."""


def itemsize(settings: PlanSettings) -> int:
    return np.dtype(settings.dtype).itemsize


def stored_dtype(settings: PlanSettings) -> np.dtype[Any]:
    return np.dtype(settings.dtype).newbyteorder("<")


class Format(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    trainer: str
    files: str  # its names in words, for people
    eot: Eot
    cut: Cut
    val: str
    sharded: bool
    named: bool = True  # whether --name is part of its files' names
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    framed: bool = False
    keeps_documents: bool = False  # its files say where documents begin: none may be cut in two
    compressible: bool = False
    dtype: Callable[[int], Dtype] = narrow  # of a vocabulary, where the user does not say
    check: Callable[[PlanSettings], None] = nothing  # raises what the trainer would stumble over
    header_bytes: Callable[[PlanSettings], int] = lambda settings: 0
    header: Callable[[PlanSettings, int], bytes] = lambda settings, tokens: b""
    file_name: Callable[[PlanSettings, str, int, int], str]  # split, number from 0, how many
    trainer_glob: Callable[[PlanSettings], tuple[str, ...]]  # what the trainer would pick up
    load_lines: Callable[[PlanSettings, str, str], list[str]]  # folder, file: how to read it
    max_shard_tokens: Callable[[PlanSettings], int | None] = lambda settings: None
    min_shard_tokens: int = 0  # a shorter file makes the trainer fail; 0: it does not
    min_train_shards: int = 1
    max_document_tokens: int | None = None
    max_documents: int | None = None  # in one file
    max_bytes: int | None = None  # of a file with what frames its documents: split before
    document_bytes: Callable[[PlanSettings, I64], I64] = lambda settings, lengths: (
        lengths * itemsize(settings)
    )
    # Buffers of a framed token file; what the generator returns is kept for `whole`.
    write: Callable[[Shard], Generator[Any, None, Info]] | None = None
    sidecars: Callable[[Shard], Iterator[tuple[str, Buffers]]] = lambda shard: iter(())
    whole: Callable[[Whole], Iterator[tuple[str, bytes]]] = lambda whole: iter(())
    read: Callable[[PlanSettings, Path, int], Slices] | None = None
    # Folder, name: whether a file that is not ours is a true copy that the trainer made of one.
    is_copy: Callable[[Path, str], bool] = lambda folder, name: False

    def open_tokens(self, settings: PlanSettings, path: Path, tokens: int) -> Slices:
        """The tokens of a file that is as long as it should be."""
        if self.read is not None:
            return self.read(settings, path, tokens)
        mapped: Slices = np.memmap(
            path,
            mode="r",
            dtype=stored_dtype(settings),
            offset=self.header_bytes(settings),
            shape=(tokens,),
        )
        return mapped


class Pieces:
    """Tokens that lie in a file piece by piece: `ends` counts tokens, `piece(i)` reads one."""

    def __init__(self, ends: I64, piece: Callable[[int], Array], dtype: np.dtype[Any]) -> None:
        self.ends, self.piece, self.dtype = ends, piece, dtype

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(int(self.ends[-1]) if len(self.ends) else 0)
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


def refuse_shape(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise VerificationError(
            f"{path}: holds {found} tokens, should hold {expected}",
            hint="`tokenmill verify` tells what is damaged",
        )
