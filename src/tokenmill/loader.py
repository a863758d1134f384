"""Read a dataset back: tokens across files, documents by number. Trusts the manifest alone.

A file that is not as long as the manifest says is an error, and so is an index that leads
nowhere; whether every byte is right only `verify` tells.
"""

from __future__ import annotations

import bisect
import operator
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.config import PlanSettings
from tokenmill.errors import UsageError, VerificationError
from tokenmill.formats import get_format
from tokenmill.formats.base import Slices
from tokenmill.manifest import FileEntry, Manifest, SplitEntry
from tokenmill.verification import no_dataset, size_fault

Array = npt.NDArray[Any]
MOST_TOKENS = 1 << 62  # no document ends there


def open_dataset(directory: str | os.PathLike[str], *, format: str | None = None) -> Dataset:
    """A finished dataset: `ds["train"].tokens[i:j]`, `ds["train"].documents[i]`, `len()`.

    Of one in several formats, `format` says which; the documents are the same in each.
    """
    path = Path(directory) / "manifest.json"
    if not path.is_file():
        raise no_dataset(path.parent)
    return Dataset(Path(directory), Manifest.load(path), format)


def damaged(where: object, what: str) -> VerificationError:
    return VerificationError(f"{where}: {what}", hint="`tokenmill verify` tells what is damaged")


def settings_of(manifest: Manifest, format: str | None = None) -> PlanSettings:
    """The settings of one of a dataset's formats; of the one that was written first."""
    layouts = msgspec.convert(manifest.plan["settings"], PlanSettings).layouts
    for settings in layouts:
        if format in (None, settings.format):
            return settings
    raise UsageError(
        f"no format {format!r} in this dataset",
        hint=f"there is: {', '.join(settings.format for settings in layouts)}",
    )


class Dataset(Mapping[str, "Split"]):
    """Splits by name; those without a token are not there."""

    def __init__(self, directory: Path, manifest: Manifest, format: str | None = None) -> None:
        self.directory = directory
        self.manifest = manifest
        self.settings = settings_of(manifest, format)
        self._entries = {entry.path: entry for entry in manifest.files}
        self.token_files = [
            f for f in manifest.files if f.kind == "tokens" and f.format == self.settings.format
        ]
        self.splits = [s for s in manifest.splits if s.format == self.settings.format]
        self._splits = {s.name: Split(self, s) for s in self.splits if s.tokens}

    def __getitem__(self, name: str) -> Split:
        return self._splits[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def path_of(self, name: str) -> Path:
        """A file of the dataset, which must be there in its full length: mapped, a shorter one
        would kill the process."""
        if name not in self._entries:
            raise damaged(self.directory, f"{name}: not in its manifest")
        fault = size_fault(self.directory, self._entries[name])
        if fault:
            raise damaged(self.directory, fault)
        return self.directory / name

    def map(self, name: str, **options: Any) -> Array:
        path = self.path_of(name)
        try:
            return np.memmap(path, mode="r", **options)
        except (OSError, ValueError) as error:
            raise damaged(path, f"cannot be read: {error}") from None


class Split:
    def __init__(self, dataset: Dataset, entry: SplitEntry) -> None:
        self.name = entry.name
        self.tokens = Tokens(dataset, entry)
        self.documents = Documents(dataset, entry, self.tokens)


class Tokens:
    """All tokens of a split as one long array, memory-mapped file by file."""

    def __init__(self, dataset: Dataset, entry: SplitEntry) -> None:
        self._dataset = dataset
        self._length = entry.tokens
        self.dtype = np.dtype(dataset.settings.dtype).newbyteorder("<")
        self._files: list[FileEntry] = [f for f in dataset.token_files if f.split == entry.name]
        self._starts = np.array([f.first_token - entry.first_token for f in self._files], np.int64)
        self._maps: dict[int, Slices] = {}

    def __len__(self) -> int:
        return self._length

    def _map(self, number: int) -> Slices:
        if number not in self._maps:
            file = self._files[number]
            path, settings = self._dataset.path_of(file.path), self._dataset.settings
            try:
                fmt = get_format(settings.format)
                self._maps[number] = fmt.open_tokens(settings, path, file.tokens)
            except (OSError, ValueError) as error:
                raise damaged(path, f"cannot be read: {error}") from None
        return self._maps[number]

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Array: ...
    def __getitem__(self, index: int | slice) -> int | Array:
        if not isinstance(index, slice):
            position = operator.index(index)
            if position < 0:
                position += self._length
            if not 0 <= position < self._length:
                raise IndexError(f"token {index} of {self._length}")
            return int(self[position : position + 1][0])
        start, stop, step = index.indices(self._length)
        if step != 1:
            if step < 0:
                return self[stop + 1 : start + 1][::step] if start > stop else self[0:0]
            return self[start:stop][::step]
        if stop <= start:
            return np.zeros(0, self.dtype)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        for number in range(first, len(self._files)):
            begin = int(self._starts[number])
            if begin >= stop:
                break
            pieces.append(self._map(number)[max(0, start - begin) : stop - begin])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class Documents:
    """Documents of a split in order, separator included; one cut by a border is there in part."""

    def __init__(self, dataset: Dataset, entry: SplitEntry, tokens: Tokens) -> None:
        self._dataset = dataset
        self._stream = entry.stream
        self._tokens = tokens
        self._length = entry.documents
        self._first_token = entry.first_token
        self._runs: Array | None = None
        self._ends = dataset.map(f"index/{entry.stream}.ends", dtype="<u8")
        self._first = self._ended_by(entry.first_token)
        if entry.first_token == 0:
            self._first = 0

    def __len__(self) -> int:
        return self._length

    def _ended_by(self, token: int) -> int:
        """Documents of the stream that end at or before its token `token`."""
        # As uint64: with a plain int numpy would convert, and so read, the whole index.
        return int(np.searchsorted(self._ends, np.uint64(token), side="right"))

    def _position(self, index: int) -> int:
        """A document's number in its stream."""
        position = operator.index(index)
        if position < 0:
            position += self._length
        if not 0 <= position < self._length:
            raise IndexError(f"document {index} of {self._length}")
        return position + self._first

    def whole_span(self, index: int) -> tuple[int, int]:
        """First token and end of a document, counted in its split, also where it lies beyond.

        A document cut by the border between val and train begins before its split or ends behind.
        """
        position = self._position(index)
        if position >= len(self._ends):
            raise self._lost(f"document {index} is not in it")
        start = int(self._ends[position - 1]) if position else 0
        end = int(self._ends[position])
        if not start <= end < MOST_TOKENS:
            raise self._lost(f"document {index} ends before it begins")
        return start - self._first_token, end - self._first_token

    def _lost(self, what: str, kind: str = "ends") -> VerificationError:
        return damaged(self._dataset.directory / "index" / f"{self._stream}.{kind}", what)

    def span(self, index: int) -> tuple[int, int]:
        """First token and end of a document, counted in its split."""
        start, end = self.whole_span(index)
        return max(0, start), min(len(self._tokens), end)

    def at(self, token: int) -> int:
        """The number of the document that holds a token of this split."""
        position = operator.index(token)
        if position < 0:
            position += len(self._tokens)
        if not 0 <= position < len(self._tokens):
            raise IndexError(f"token {token} of {len(self._tokens)}")
        document = self._ended_by(position + self._first_token) - self._first
        if not 0 <= document < self._length:
            raise self._lost(f"token {token} is in none of the documents")
        return document

    def source(self, index: int) -> tuple[str, int]:
        """Name of the input file and row, counted from 0, that a document was made from."""
        position = self._position(index)
        if self._runs is None:
            self._runs = self._dataset.map(f"index/{self._stream}.runs", dtype="<u8").reshape(-1, 3)
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
        return (self[i] for i in range(self._length))
