"""Token files that others made: which there are in a folder, what their headers and indexes say.

nanoGPT and llm.c write no index: there documents are found by their separator. Megatron's `.idx`
and datatrove's `.ds.index` say where each ends. Files that contradict each other are refused.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import InputError, UsageError
from tokenmill.formats.llmc import HEADER_WORDS, VERSIONS
from tokenmill.formats.megatron import CODES, MAGIC
from tokenmill.settings import Dtype
from tokenmill.system.store import Store, has_file, read_range, read_whole
from tokenmill.texts import I64

INDEX_BLOCK = 1 << 20


class ForeignFile(NamedTuple):
    """One token file, and the files beside it."""

    split: str
    path: str  # seen from the folder
    beside: tuple[str, ...]
    dtype: Dtype
    header_bytes: int
    tokens: int
    documents: int = -1  # -1: no index says
    ends: Callable[[], Iterator[I64]] | None = None


def find_foreign(store: Store, format: str, dtype: Dtype) -> tuple[str, list[ForeignFile]]:
    """The common name of the files, and the files of train and val in order."""
    if format not in FOREIGN:
        raise UsageError(
            f"--format {format}: cannot be imported",
            hint=f"formats that can be imported: {', '.join(FOREIGN)}",
        )
    read, names = FOREIGN[format]
    name, found = read(store, dtype)
    if not any(file.split == "train" for file in found):
        raise InputError(f"{store.where()}: no train files of {format}", hint=f"looked for {names}")
    if len({file.dtype for file in found}) > 1:
        raise InputError(f"{store.where()}: files of different dtypes: import them one by one")
    return name, found


def _sized(store: Store, name: str, dtype: Dtype, header: int = 0) -> int:
    """Tokens of a file, by its size."""
    if not has_file(store, name):
        raise InputError(f"{store.where(name)}: missing, or not a file")
    size = (store.size(name) or 0) - header
    if size < 0 or size % np.dtype(dtype).itemsize:
        raise InputError(
            f"{store.where(name)}: {size} bytes are not a whole number of {dtype} tokens",
            hint="the file is cut short, or it needs another --dtype",
        )
    return size // np.dtype(dtype).itemsize


def _nanogpt(store: Store, dtype: Dtype) -> tuple[str, list[ForeignFile]]:
    names = [(s, f"{s}.bin") for s in ("train", "val") if has_file(store, f"{s}.bin")]
    return "", [ForeignFile(s, n, (), dtype, 0, _sized(store, n, dtype)) for s, n in names]


def _llmc(store: Store, dtype: Dtype) -> tuple[str, list[ForeignFile]]:
    pattern = re.compile(r"(.+)_(train|val)_(\d+)\.bin")
    matches = [m for n in store.list("") if (m := pattern.fullmatch(n)) and has_file(store, n)]
    names = sorted({match[1] for match in matches})
    if len(names) > 1:
        raise InputError(
            f"{store.where()}: files of several datasets: {', '.join(names)}",
            hint="move those of one into a folder of their own",
        )
    matches.sort(key=lambda match: (match[2], int(match[3])))
    for one, following in itertools.pairwise(matches):
        if one[2] == following[2] and int(following[3]) != int(one[3]) + 1:
            raise InputError(
                f"{store.where()}: {following[0]} does not follow {one[0]}: a document that goes "
                "on from one shard to the next would be joined to a wrong one",
                hint="download what is missing, or number the shards without holes",
            )
    return "".join(names), [_llmc_file(store, match) for match in matches]


def _llmc_file(store: Store, match: re.Match[str]) -> ForeignFile:
    path, header = store.where(match[0]), HEADER_WORDS * 4
    content = read_range(store, match[0], 0, header)
    if len(content) < header:
        raise InputError(f"{path}: shorter than its header")
    magic, version, tokens = struct.unpack("<iii", content[:12])
    dtypes: dict[tuple[int, int], Any] = {known: dtype for dtype, known in VERSIONS.items()}
    if (magic, version) not in dtypes:
        raise InputError(f"{path}: not a file of llm.c (magic {magic}, version {version})")
    dtype: Dtype = dtypes[magic, version]
    if _sized(store, match[0], dtype, header) != tokens:
        raise InputError(f"{path}: its header says {tokens} tokens, which is not the file's size")
    return ForeignFile(match[2], match[0], (), dtype, header, tokens)


def _split_of(name: str) -> str:
    return "val" if re.search(r"(?:^|[_\-/])val(?:id|idation)?(?:[_\-/.]|$)", name) else "train"


def _megatron(store: Store, dtype: Dtype) -> tuple[str, list[ForeignFile]]:
    prefixes = [name.removesuffix(".idx") for name in store.list("") if name.endswith(".idx")]
    found = [_megatron_file(store, prefix) for prefix in prefixes]
    first = next((file.path for file in found if file.split == "train"), "")
    return first.removesuffix(".bin").removesuffix("_text_document").removesuffix("_train"), found


def _megatron_file(store: Store, prefix: str) -> ForeignFile:
    path, content = store.where(f"{prefix}.idx"), store.view(f"{prefix}.idx")
    head = bytes(content[:34])
    if head[:9] != MAGIC or len(head) < 34:
        raise InputError(f"{path}: not an index of Megatron")
    version, code, sequences, starts = struct.unpack("<QBQQ", head[9:])
    dtype: Dtype = "uint16" if code == CODES["uint16"] else "uint32"
    if version != 1 or CODES[dtype] != code:
        raise InputError(
            f"{path}: version {version}, dtype code {code}; read are version 1 with uint16 (8) "
            "and int32 (4)"
        )
    if len(content) != 34 + 12 * sequences + 8 * starts:
        raise InputError(
            f"{path}: not as long as its counts say (an index with modes is not supported)"
        )
    tokens = _sized(store, f"{prefix}.bin", dtype)

    def array(at: int, kind: str, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(content, kind, count, at)

    lengths = array(34, "<i4", sequences)
    pointers = array(34 + 4 * sequences, "<i8", sequences)
    documents = array(34 + 12 * sequences, "<i8", starts)
    if starts < 1 or int(documents[0]) != 0 or int(documents[-1]) != sequences:
        raise InputError(f"{path}: its documents are not its sequences")
    size = np.dtype(dtype).itemsize

    def ends() -> Iterator[I64]:
        """Documents may be of several sequences, which must follow each other in the file."""
        total = 0
        for first in range(0, starts - 1, INDEX_BLOCK):
            at = np.array(documents[first : first + INDEX_BLOCK + 1], np.int64)
            if (np.diff(at) < 0).any():
                raise InputError(f"{path}: documents that end before they begin")
            low, high = int(at[0]), int(at[-1])
            upto = np.append(np.int64(0), np.cumsum(lengths[low:high], dtype=np.int64))
            if not np.array_equal(pointers[low:high], (total + upto[:-1]) * size):
                raise InputError(f"{path}: its sequences do not follow each other in the .bin")
            yield total + upto[at[1:] - low]
            total += int(upto[-1])

    return ForeignFile(
        _split_of(prefix), f"{prefix}.bin", (f"{prefix}.idx",), dtype, 0, tokens, starts - 1, ends
    )


def _datatrove(store: Store, dtype: Dtype) -> tuple[str, list[ForeignFile]]:
    names = [name for name in store.list("") if name.endswith(".ds")]
    for folder in ("train", "val"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            inside = (f"{folder}/{name}" for name in store.list(folder) if name.endswith(".ds"))
            names += inside
    found = [_datatrove_file(store, name, dtype) for name in sorted(names)]
    common = {re.sub(r"^\d+_", "", PurePath(file.path).stem) for file in found}
    return common.pop() if len(common) == 1 else "tokens", found


def _datatrove_file(store: Store, name: str, dtype: Dtype) -> ForeignFile:
    index, metadata = f"{name}.index", f"{name}.metadata"
    if not has_file(store, index):
        raise InputError(f"{store.where(index)}: missing, and documents cannot be found without it")
    beside = [index]
    if has_file(store, metadata):
        beside.append(metadata)
        first = read_whole(store, metadata).decode(errors="replace").partition("\n")[0]
        size = first.rpartition("|")[2]
        if size in ("2", "4"):
            dtype = "uint16" if size == "2" else "uint32"
    tokens, ends_of = _sized(store, name, dtype), store.view(index)
    if len(ends_of) % 8:
        raise InputError(
            f"{store.where(index)}: {len(ends_of)} bytes are not a whole number of uint64"
        )
    count = len(ends_of) // 8

    def ends() -> Iterator[I64]:
        for first in range(0, count, INDEX_BLOCK):
            block = min(INDEX_BLOCK, count - first)
            yield np.frombuffer(ends_of, "<u8", block, 8 * first).astype(np.int64)

    return ForeignFile(_split_of(name), name, tuple(beside), dtype, 0, tokens, count, ends)


# By format: what finds its files, and how these are named.
FOREIGN: dict[str, tuple[Callable[[Store, Dtype], tuple[str, list[ForeignFile]]], str]] = {
    "nanogpt": (_nanogpt, "train.bin and val.bin"),
    "llmc": (_llmc, "NAME_train_000001.bin ... and NAME_val_000000.bin"),
    "megatron": (
        _megatron,
        "*.idx with a *.bin beside each; one with val or valid in its name is val",
    ),
    "datatrove": (
        _datatrove,
        "*.ds with a *.ds.index beside each, here or in folders train and val",
    ),
}
