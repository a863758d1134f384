"""The tokens and documents of a split, read as they are asked for.

What is returned is the caller's own and can be written: a change of it never gets into the
dataset, and torch does not warn of an array that is not writable.
"""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tokenmill.amounts import counted
from tokenmill.errors import VerificationError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Slices, TokenPieces, stored_dtype
from tokenmill.output.manifest import FileEntry, SplitEntry
from tokenmill.settings import Layout
from tokenmill.system.store import Store

if TYPE_CHECKING:
    from tokenmill.dataset.loader import Dataset

MOST_TOKENS = 1 << 62  # no document ends there
BLOCK = 1 << 16  # tokens that are read at once where they are wanted one by one


def damaged(where: object, what: str) -> VerificationError:
    return VerificationError(f"{where}: {what}", hint="`tokenmill verify` tells what is damaged")


def _position(index: int, length: int, what: str) -> int:
    """An index as Python counts, from the end where it is negative."""
    try:
        return range(length)[index]
    except IndexError:
        raise IndexError(f"{what} {index} of {length}") from None


class _View:
    """Something of a split; pickled as the dataset and the name of the split."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        self._dataset, self.name = dataset, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self.name)


class Split(_View):
    """One split of a dataset: its `tokens` as one long array, and its `documents`."""

    def __repr__(self) -> str:
        if "manifest" not in vars(self._dataset):
            return f"Split({self.name!r}, not opened yet)"
        return (
            f"Split({self.name!r}: {counted(len(self.documents), 'document')}, "
            f"{counted(len(self.tokens), 'token')}, {self.tokens.dtype})"
        )

    @functools.cached_property
    def tokens(self) -> Tokens:
        return Tokens(self._dataset, self.name)

    @functools.cached_property
    def documents(self) -> Documents:
        return Documents(self._dataset, self.name)

    def __getitem__(self, index: Any) -> NoReturn:
        raise self._not_an_array(f"[{index!r}]")

    def __len__(self) -> NoReturn:
        raise self._not_an_array()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self._not_an_array()

    def __bool__(self) -> bool:
        return True  # a split without a token is not in a dataset

    def _not_an_array(self, place: str = "") -> TypeError:
        return TypeError(
            f"the split {self.name!r} has documents and tokens: use "
            f"ds[{self.name!r}].documents{place} or ds[{self.name!r}].tokens{place}"
        )


def _places(index: Any, length: int, what: str) -> Array | None:
    """The numbers that a list, an array or a mask chooses, as numpy counts; None: one number."""
    try:
        operator.index(index)
    except TypeError:
        pass
    else:
        return None
    if isinstance(index, tuple) or not isinstance(index, Sequence | np.ndarray):
        kinds = "a number, a slice, a list of numbers, an integer array or a boolean mask"
        raise TypeError(f"a {what} is chosen by {kinds}, not by {type(index).__name__}")
    chosen = np.asarray(index)
    if chosen.dtype == bool:
        if chosen.shape != (length,):
            shape = "x".join(map(str, chosen.shape))
            raise IndexError(f"a mask of {shape} values for {length} {what}s")
        return np.flatnonzero(chosen)
    if not chosen.size:
        chosen = chosen.astype(np.int64)  # of an empty list numpy makes floats
    if chosen.dtype.kind not in "iu":
        raise TypeError(f"{what}s are chosen by whole numbers, not by {chosen.dtype}")
    chosen = chosen.astype(np.int64)
    wrong = chosen[(chosen < -length) | (chosen >= length)]
    if wrong.size:
        raise IndexError(f"{what} {int(wrong[0])} of {length}")
    return np.where(chosen < 0, chosen + length, chosen)


class TokenRanges:
    """The tokens of one file in a store that is asked for ranges."""

    def __init__(self, store: Store, file: FileEntry, layout: Layout) -> None:
        self._store, self._file = store, file
        self._dtype = stored_dtype(layout)
        self._first = get_format(layout.format).header_bytes(layout)

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(self._file.tokens)
        size = self._dtype.itemsize
        length = max(0, stop - start) * size
        content = self._store.read(self._file.path, self._first + start * size, length)
        if len(content) != length:
            raise damaged(self._store.where(self._file.path), "is shorter than it was")
        return np.frombuffer(content, self._dtype)


class Tokens(_View, NDArrayOperatorsMixin):
    """All tokens of a split as one long array, memory-mapped file by file.

    `tokens[i:j]`, `tokens[[1, 5]]` and `tokens[mask]` are arrays of the caller's own, so that
    `torch.from_numpy` takes them; a part that is not asked for is not read. `np.asarray(tokens)`
    reads all of them. Of a dataset in one file, `np.asarray(tokens, copy=False)` is the memory
    map itself, which cannot be written. Comparing and calculating (`tokens == 3`) gives an array,
    as with numpy's own arrays, and reads all tokens.
    """

    # A map holds a descriptor, of which a process may have 1,024, and a dataset 10,000 files.
    MAX_OPEN = 64

    def __repr__(self) -> str:
        if "manifest" not in vars(self._dataset):
            return f"Tokens({self.name!r}, not opened yet)"
        return f"Tokens({self.name!r}: {len(self):,} of {self.dtype})"

    @functools.cached_property
    def _files(self) -> list[FileEntry]:
        return [file for file in self._dataset.token_files if file.split == self.name]

    @functools.cached_property
    def _pieces(self) -> TokenPieces:
        lengths = [file.tokens for file in self._files]
        read = functools.lru_cache(self.MAX_OPEN)(self._open)
        return TokenPieces(self._dataset.layout, sum(lengths), lengths, read)

    def _open(self, number: int) -> Slices:
        return self._dataset.open_tokens(self._files[number])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._pieces.dtype

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __len__(self) -> int:
        return self._pieces.tokens

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Array) -> Array: ...
    def __getitem__(self, index: Any) -> int | Array:
        if isinstance(index, slice):
            return self._slice(range(len(self))[index])
        chosen = _places(index, len(self), "token")
        if chosen is None:
            position = _position(index, len(self), "token")
            return int(self._pieces[position : position + 1][0])
        return self._take(chosen.reshape(-1)).reshape(chosen.shape)

    def _slice(self, chosen: range) -> Array:
        if not chosen:
            return np.zeros(0, self.dtype)
        start, last = sorted((chosen[0], chosen[-1]))
        found = self._pieces[start : last + 1][:: chosen.step]
        # Not the map itself: it cannot be written, and torch warns of such an array.
        return found if found.base is None else found.copy()

    def _take(self, places: Array) -> Array:
        """Tokens at any places, block by block: each block is read once."""
        found = np.empty(len(places), self.dtype)
        order = np.argsort(places, kind="stable")
        blocks, firsts = np.unique(places[order] // BLOCK, return_index=True)
        for block, mine in zip(blocks.tolist(), np.split(order, firsts[1:]), strict=False):
            tokens = self._pieces[block * BLOCK : (block + 1) * BLOCK]
            found[mine] = tokens[places[mine] - block * BLOCK]
        return found

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), BLOCK):
            yield from self._pieces[start : start + BLOCK].tolist()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """What numpy does with arrays: `tokens == 3`, `tokens % 2`, `np.add(tokens, 1)`."""
        if any(isinstance(one, Tokens) for one in options.get("out", ())):
            raise TypeError(f"the tokens of {self.name!r} cannot be written")
        arrays = [np.asarray(one) if isinstance(one, Tokens) else one for one in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All tokens, copied block by block: another dtype takes no more memory."""
        wanted = self.dtype if dtype is None else np.dtype(dtype)
        if copy is False:
            if len(self._files) == 1 and wanted == self.dtype:
                opened = self._pieces.piece(0)
                if isinstance(opened, np.ndarray) and opened.flags.aligned:
                    return opened
            raise ValueError(
                f"the tokens of {self.name!r} are no array in memory: they cannot be had without "
                "a copy; use np.asarray(tokens)"
            )
        found = np.empty(len(self), wanted)
        for start in range(0, len(self), BLOCK << 6):
            part = self._pieces[start : start + (BLOCK << 6)]
            found[start : start + len(part)] = part
        return found


class Documents(_View):
    """Documents of a split in order, separator included; one cut by a border is there in part.

    `documents[3]` is an array of ids, `documents[1:3]` and `documents[[1, 5]]` are lists of them.
    """

    def __repr__(self) -> str:
        if "manifest" not in vars(self._dataset):
            return f"Documents({self.name!r}, not opened yet)"
        return f"Documents({self.name!r}: {len(self):,})"

    @functools.cached_property
    def _entry(self) -> SplitEntry:
        return next(split for split in self._dataset.splits if split.name == self.name)

    @functools.cached_property
    def _tokens(self) -> Tokens:
        return self._dataset[self.name].tokens

    @functools.cached_property
    def _ends(self) -> Array:
        return self._dataset.index(f"{self._entry.stream}.ends")

    @functools.cached_property
    def first(self) -> int:
        """The number in its stream of the split's first document."""
        return self._ended_by(self._entry.first_token) if self._entry.first_token else 0

    @functools.cached_property
    def _runs(self) -> Array:
        return self._dataset.index(f"{self._entry.stream}.runs").reshape(-1, 3)

    def __len__(self) -> int:
        return self._entry.documents

    def _ended_by(self, token: int) -> int:
        """Documents of the stream that end at or before its token `token`."""
        # As uint64: with a plain int numpy would convert, and so read, the whole index.
        return int(np.searchsorted(self._ends, np.uint64(token), side="right"))

    def _number(self, index: int) -> int:
        """A document's number in its stream."""
        return _position(index, len(self), "document") + self.first

    def whole_span(self, index: int) -> tuple[int, int]:
        """First token and end of a document, counted in its split, also if outside of it.

        A document cut by the border between val and train begins before its split or ends after it.
        """
        position = self._number(index)
        if position >= len(self._ends):
            raise self._lost(f"document {index} is not in it")
        start = int(self._ends[position - 1]) if position else 0
        end = int(self._ends[position])
        if not start <= end < MOST_TOKENS:
            raise self._lost(f"document {index} ends before it begins")
        return start - self._entry.first_token, end - self._entry.first_token

    def _lost(self, what: str, kind: str = "ends") -> VerificationError:
        return damaged(self._dataset.store.where(f"index/{self._entry.stream}.{kind}"), what)

    def span(self, index: int) -> tuple[int, int]:
        """First token and end of a document, counted in its split."""
        start, end = self.whole_span(index)
        return max(0, start), min(len(self._tokens), end)

    def at(self, token: int) -> int:
        """The number of the document that holds a token of this split."""
        position = _position(token, len(self._tokens), "token")
        document = self._ended_by(position + self._entry.first_token) - self.first
        if not 0 <= document < len(self):
            raise self._lost(f"token {token} is in none of the documents")
        return document

    def source(self, index: int) -> tuple[str, int]:
        """Name of the input file and row, counted from 0, that a document was made from."""
        position = self._number(index)
        runs = self._runs
        at = bisect.bisect_right(range(len(runs)), position, key=lambda i: int(runs[i, 0])) - 1
        first, source, row = runs[at].tolist()
        sources = self._dataset.manifest.sources
        if at < 0 or not first <= position or source >= len(sources):
            raise self._lost(f"document {index} comes from no source", "runs")
        return str(sources[source]["name"]), row + position - first

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Array) -> list[Array]: ...
    def __getitem__(self, index: Any) -> Array | list[Array]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        chosen = _places(index, len(self), "document")
        if chosen is None:
            start, end = self.span(index)
            return self._tokens[start:end]
        if chosen.ndim > 1:
            raise IndexError("documents are chosen by a list of numbers, not by a table of them")
        return [self[i] for i in chosen.tolist()]

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))
