"""Read a dataset back: tokens across files, documents by number. Trusts the manifest alone.

A file that is not as long as the manifest says is an error, and so is an index that leads
nowhere. Only `verify` tells whether every byte is right.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from tokenmill.dataset.verification import no_dataset, size_fault
from tokenmill.errors import UsageError, VerificationError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Slices, TokenPieces
from tokenmill.output.manifest import MANIFEST, FileEntry, Manifest, SplitEntry
from tokenmill.settings import Layout, PlanSettings
from tokenmill.system.store import Place, Store, has_file, store_of

Opened = TypeVar("Opened")
MOST_TOKENS = 1 << 62  # no document ends there


def open_dataset(directory: Place, *, format: str | None = None) -> Dataset:
    """A finished dataset: `ds["train"].tokens[i:j]`, `ds["train"].documents[i]`, `len()`.

    If it is in several formats, `format` says which; the documents are the same in each.
    """
    store = store_of(directory)
    dataset = Dataset(store, _load(store), format)
    for split in dataset.splits:
        if split.tokens:
            dataset.check_size(f"index/{split.stream}.ends")
    return dataset


def _load(store: Store) -> Manifest:
    if not has_file(store, MANIFEST):
        raise no_dataset(store)
    return Manifest.load(store)


def damaged(where: object, what: str) -> VerificationError:
    return VerificationError(f"{where}: {what}", hint="`tokenmill verify` tells what is damaged")


class Dataset(Mapping[str, "Split"]):
    """Splits by name; those without a token are not there.

    A dataset is pickled as its store (a path) and the checksum of its manifest, never with its
    memory maps: a data loader sends it to every worker process. There it opens at its first use.
    """

    def __init__(self, store: Store, manifest: Manifest, format: str | None = None) -> None:
        self.store, self.manifest, self._format = store, manifest, format
        if format not in (None, *self._layouts):
            hint = f"there is: {', '.join(self._layouts)}"
            raise UsageError(f"no format {format!r} in this dataset", hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.store, self._format, self._manifest_checksum)

    @property
    def directory(self) -> Path:
        return Path(self.store.where())

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Of a dataset that was pickled: read now, and compared with the one it had then."""
        manifest = _load(self.store)
        if manifest.checksum != self._manifest_checksum:
            raise VerificationError(
                f"{self.directory}: is not the dataset that was pickled: its manifest has changed",
                hint="open the dataset again with open_dataset() and pickle that",
            )
        return manifest

    @functools.cached_property
    def _manifest_checksum(self) -> str:
        return self.manifest.checksum

    @functools.cached_property
    def settings(self) -> PlanSettings:
        return self.manifest.settings

    @property
    def _layouts(self) -> dict[str, Layout]:
        return {layout.format: layout for layout in self.settings.layouts}

    @functools.cached_property
    def layout(self) -> Layout:
        return self._layouts[self._format or self.settings.first.format]

    @functools.cached_property
    def token_files(self) -> list[FileEntry]:
        mine = self.layout.format
        return [f for f in self.manifest.files if f.kind == "tokens" and f.format == mine]

    @functools.cached_property
    def splits(self) -> list[SplitEntry]:
        return [s for s in self.manifest.splits if s.format == self.layout.format]

    @functools.cached_property
    def _entries(self) -> dict[str, FileEntry]:
        return {entry.path: entry for entry in self.manifest.files}

    @functools.cached_property
    def _splits(self) -> dict[str, Split]:
        return {s.name: Split(self, s.name) for s in self.splits if s.tokens}

    def __getitem__(self, name: str) -> Split:
        return self._splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def check_size(self, name: str) -> None:
        """A file of the dataset must be there in its full length."""
        if name not in self._entries:
            raise damaged(self.store.where(), f"{name}: not in its manifest")
        if fault := size_fault(self.store, self._entries[name]):
            raise damaged(self.store.where(), fault)

    def opened(self, name: str, read: Callable[[memoryview], Opened]) -> Opened:
        self.check_size(name)
        try:
            return read(self.store.view(name))
        except (OSError, ValueError) as error:
            raise damaged(self.store.where(name), f"cannot be read: {error}") from None

    def index(self, name: str) -> Array:
        return self.opened(f"index/{name}", lambda content: np.frombuffer(content, "<u8"))

    def open_tokens(self, file: FileEntry) -> Slices:
        read = get_format(self.layout.format).open_tokens
        return self.opened(file.path, lambda content: read(self.layout, content, file.tokens))


def _unpickled(store: Store, format: str | None, checksum: str) -> Dataset:
    dataset = Dataset.__new__(Dataset)
    dataset.store, dataset._format = store, format
    dataset._manifest_checksum = checksum
    return dataset


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
    @functools.cached_property
    def tokens(self) -> Tokens:
        return Tokens(self._dataset, self.name)

    @functools.cached_property
    def documents(self) -> Documents:
        return Documents(self._dataset, self.name)


class Tokens(_View):
    """All tokens of a split as one long array, memory-mapped file by file."""

    # A map holds a descriptor, of which a process may have 1,024, and a dataset 10,000 files.
    MAX_OPEN = 64

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

    def __len__(self) -> int:
        return self._pieces.tokens

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Array: ...
    def __getitem__(self, index: int | slice) -> int | Array:
        if not isinstance(index, slice):
            position = _position(index, len(self), "token")
            return int(self._pieces[position : position + 1][0])
        chosen = range(len(self))[index]
        if not chosen:
            return np.zeros(0, self.dtype)
        start, last = sorted((chosen[0], chosen[-1]))
        return self._pieces[start : last + 1][:: chosen.step]


class Documents(_View):
    """Documents of a split in order, separator included; one cut by a border is there in part."""

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
    def _first(self) -> int:
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
        return _position(index, len(self), "document") + self._first

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
        document = self._ended_by(position + self._entry.first_token) - self._first
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

    def __getitem__(self, index: int) -> Array:
        start, end = self.span(index)
        return self._tokens[start:end]

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))
