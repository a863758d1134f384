"""Read a dataset back: tokens across files, documents by number. Trusts the manifest alone.

A file that is not as long as the manifest says is an error, and so is an index that leads
nowhere. Only `verify` tells whether every byte is right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokenmill.amounts import counted
from tokenmill.dataset.verification import no_dataset, read_run, size_fault
from tokenmill.dataset.views import Split, TokenRanges, damaged
from tokenmill.errors import UnknownSplitError, UsageError, VerificationError, did_you_mean
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, Slices
from tokenmill.output.manifest import MANIFEST, FileEntry, Manifest, SplitEntry
from tokenmill.settings import Layout, PlanSettings
from tokenmill.system.store import Place, Store, has_file, store_of
from tokenmill.tokenizer.encoders.decoding import encoding_of

if TYPE_CHECKING:
    from tokenmill.tokenizer.tokenizer import Tokenizer

Opened = TypeVar("Opened")
# What others call the splits that are `train` and `val` here.
SPLIT_NAMES = {
    "training": "train",
    **dict.fromkeys(("validation", "valid", "dev", "eval", "test"), "val"),
}


def open_dataset(
    directory: Place, *, format: str | None = None, tokenizer: str | None = None
) -> Dataset:
    store = store_of(directory)
    dataset = Dataset(store, _load(store), format, tokenizer)
    for split in dataset.splits:
        if split.tokens:
            dataset.check_size(f"index/{split.stream}.ends")
    return dataset


def _load(store: Store) -> Manifest:
    if not has_file(store, MANIFEST):
        raise no_dataset(store)
    return Manifest.load(store)


class Dataset(Mapping[str, "Split"]):
    """Splits by name; those without a token are not there.

    A dataset is pickled as its store (a path) and the checksum of its manifest, never with its
    memory maps: a data loader sends it to every worker process. There it opens at its first use.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        format: str | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self.store, self.manifest, self._format = store, manifest, format
        self._tokenizer_file = tokenizer
        if format not in (None, *self._layouts):
            hint = did_you_mean(str(format), self._layouts)
            hint += f"the dataset has: {', '.join(self._layouts)}"
            raise UsageError(f"no format {format!r} in this dataset", hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        known = self.store, self._format, self._manifest_checksum, self._tokenizer_file
        return _unpickled, known

    def __repr__(self) -> str:
        where = repr(self.store.where())
        if "manifest" not in vars(self):  # unpickled; its folder may not even be there
            return f"Dataset({where}, not opened yet)"
        splits = "; ".join(
            f"{s.name}: {counted(s.documents, 'document')}, {counted(s.tokens, 'token')}"
            for s in self.splits
        )
        return f"Dataset({where}, {self.layout.format}, {self.settings.tokenizer}; {splits})"

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that this dataset was made with: it encodes, and decodes documents."""
        from tokenmill.tokenizer.tokenizer import Tokenizer

        settings = self.settings
        try:
            encoding = encoding_of(settings, read_run(self.store), self._tokenizer_file)
        except (UsageError, VerificationError) as error:
            where = self.store.where()
            told = f"say where the file is now: open_dataset({where!r}, tokenizer='FILE')"
            raise error.advised(told) from None
        eot = settings.eot_id if settings.eot_id >= 0 else None
        if not encoding.path:
            return Tokenizer(encoding.name, eot=eot)
        # A file of ranks names no special tokens: those that the user named are in the settings.
        others = {f"<id {i}>": i for i in (settings.eot_id, settings.bos_id) if i >= 0}
        bare = others and not encoding.special_tokens and settings.pattern
        return Tokenizer(
            encoding.path,
            pattern=settings.pattern,
            special_tokens=others if bare else None,
            eot=eot,
        )

    @property
    def directory(self) -> Path:
        return Path(self.store.where())

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Of a dataset that was pickled: read now, and compared with the one it had then."""
        manifest = _load(self.store)
        if manifest.checksum != self._manifest_checksum:
            raise VerificationError(
                f"{self.store.where()}: is not the dataset that was pickled: its manifest has "
                "changed",
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
        if name in self._splits:
            return self._splits[name]
        if any(split.name == name for split in self.splits):
            raise UnknownSplitError(f"the split {name!r} of this dataset is empty")
        meant = {word: split for word, split in SPLIT_NAMES.items() if split in self._splits}
        hint = did_you_mean(str(name), self._splits, meant)
        raise UnknownSplitError(
            f"no split {name!r} in this dataset",
            hint=f"{hint}the dataset has: {', '.join(self._splits) or 'no splits'}",
        )

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
        fmt = get_format(self.layout.format)
        if self.store.ranged and not fmt.framed:
            self.check_size(file.path)
            return TokenRanges(self.store, file, self.layout)
        read = fmt.open_tokens
        return self.opened(file.path, lambda content: read(self.layout, content, file.tokens))


def _unpickled(
    store: Store, format: str | None, checksum: str, tokenizer: str | None = None
) -> Dataset:
    dataset = Dataset.__new__(Dataset)
    dataset.store, dataset._format, dataset._tokenizer_file = store, format, tokenizer
    dataset._manifest_checksum = checksum
    return dataset
