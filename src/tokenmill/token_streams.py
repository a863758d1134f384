"""A dataset as its streams: tokens, document ends and row runs, read piece by piece.

What `verify --deep` looks things up in. Nothing is trusted: `faults` says where the index
contradicts itself, and `border_faults` where splits and files do not begin where the rules of
the plan put them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.config import PlanSettings
from tokenmill.editions import cuts_of
from tokenmill.formats import get_format
from tokenmill.formats.base import Slices
from tokenmill.loader import settings_of
from tokenmill.manifest import Manifest, SplitEntry
from tokenmill.pack import CutRule, streams_of
from tokenmill.shards import Reframed, origins_in
from tokenmill.texts import I64

Array = npt.NDArray[Any]
BLOCK = 1 << 20


def open_streams(directory: Path, manifest: Manifest, format: str | None = None) -> list[Stream]:
    """The streams in the order of `streams_of`: one, or train and val."""
    settings = settings_of(manifest, format)
    names = [s[0] if len(s) == 1 else "all" for s in streams_of(settings.val)]
    return [Stream(directory, manifest, settings, name) for name in names]


class Stream:
    def __init__(
        self, directory: Path, manifest: Manifest, settings: PlanSettings, name: str
    ) -> None:
        self.name = name
        self.directory = directory
        self.settings = settings
        self.sources = len(manifest.sources)
        self.files = sorted(
            (
                f
                for f in manifest.files
                if f.kind == "tokens" and f.stream == name and f.format == settings.format
            ),
            key=lambda f: f.first_token,
        )
        self.starts = [f.first_token for f in self.files]
        self.tokens = sum(f.tokens for f in self.files)
        self.splits: list[SplitEntry] = [
            s for s in manifest.splits if s.stream == name and s.format == settings.format
        ]
        self.dtype = np.dtype(settings.dtype).newbyteorder("<")
        self.format = get_format(settings.format)
        self.header_bytes = self.format.header_bytes(settings)
        whole = msgspec.convert(manifest.plan["settings"], PlanSettings)
        self.folder = whole.folder_of(settings.format)
        self.source_names = [str(source["name"]) for source in manifest.sources]
        self._opened: tuple[int, Slices] | None = None
        present = {f.path for f in manifest.files if f.size}  # of an empty file there is no map
        self.ends = self._index("ends", present)
        self.runs = self._index("runs", present).reshape(-1, 3)
        self.documents = len(self.ends)

    def _index(self, kind: str, present: set[str]) -> Array:
        path = f"index/{self.name}.{kind}"  # a stream without a document has none
        if path not in present:
            return np.zeros(0, np.uint64)
        return np.memmap(self.directory / path, dtype="<u8", mode="r")

    # --- looking up --------------------------------------------------------------------------

    def read(self, start: int, stop: int) -> Array:
        """Tokens [start, stop). Opens files anew: of ten thousand shards none is kept open."""
        pieces = [np.zeros(0, self.dtype)]
        number = max(0, bisect.bisect_right(self.starts, start) - 1)
        while start < stop and number < len(self.files):
            file = self.files[number]
            at = start - file.first_token
            count = min(stop - start, file.tokens - at)
            pieces.append(self._read(number, at, count))
            start, number = start + count, number + 1
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _read(self, number: int, at: int, count: int) -> Array:
        path = self.directory / self.files[number].path
        if not self.format.framed:
            offset = self.header_bytes + at * self.dtype.itemsize
            return np.fromfile(path, self.dtype, count, offset=offset)
        opened = self._opened  # several threads read: what one has opened, another may replace
        if opened is None or opened[0] != number:
            tokens = self.files[number].tokens
            opened = self._opened = number, self.format.open_tokens(self.settings, path, tokens)
        return opened[1][at : at + count]

    def ends_of(self, first: int, stop: int) -> I64:
        return np.array(self.ends[first:stop], np.int64)

    def origins_of(self, first: int, stop: int) -> tuple[list[str], I64, I64]:
        return self.source_names, *origins_in(self.runs, first, stop)

    def span(self, document: int) -> tuple[int, int]:
        return int(self.ends[document - 1]) if document else 0, int(self.ends[document])

    def place_of(self, document: int) -> tuple[int, int]:
        """Source and row of a document."""
        at = bisect.bisect_right(
            range(len(self.runs)), document, key=lambda i: int(self.runs[i, 0])
        )
        first, source, row = self.runs[at - 1].tolist()
        return source, row + document - first

    def from_row(self, source: int, row: int) -> int:
        """The first document that comes from this row of this source, or from a later one."""
        runs = self.runs
        at = bisect.bisect_right(
            range(len(runs)), (source, row), key=lambda i: (int(runs[i, 1]), int(runs[i, 2]))
        )
        if at == 0:
            return 0
        first, its_source, its_row = runs[at - 1].tolist()
        end = int(runs[at, 0]) if at < len(runs) else self.documents
        return min(end, first + row - its_row) if its_source == source else end

    def rows_of(self, start: int, stop: int) -> I64:
        """Rows of documents [start, stop), which come from one source."""
        return origins_in(self.runs, start, stop)[1]

    def number_in_split(self, document: int, token: int) -> tuple[str, int, int]:
        """As `inspect` counts: split, document in it, token in it, of a token of the stream."""
        for split in reversed(self.splits):
            if split.tokens and token >= split.first_token:
                before = 0
                if split.first_token:
                    first = np.uint64(split.first_token)
                    before = int(np.searchsorted(self.ends, first, side="right"))
                return split.name, document - before, token - split.first_token
        return self.splits[0].name, document, token

    # --- contradictions ----------------------------------------------------------------------

    def faults(self) -> Iterator[str]:
        """Where ends and runs contradict themselves or the token files."""
        before = 0
        for block in range(0, self.documents, BLOCK):
            ends = np.array(self.ends[block : block + BLOCK], np.int64)
            wrong = np.flatnonzero(np.diff(ends, prepend=before) < 0)
            if len(wrong):
                yield f"index/{self.name}.ends: document {block + wrong[0]} ends before it begins"
                return
            before = int(ends[-1])
        if before != self.tokens:
            yield (
                f"index/{self.name}.ends: documents end at token {before}, "
                f"the files hold {self.tokens}"
            )
        yield from self._run_faults()

    def _run_faults(self) -> Iterator[str]:
        name = f"index/{self.name}.runs"
        if (len(self.runs) == 0) != (self.documents == 0):
            yield f"{name}: {len(self.runs)} runs for {self.documents} documents"
            return
        for block in range(0, len(self.runs), BLOCK):
            runs = np.array(self.runs[block : block + BLOCK + 1], np.int64)
            first, source, row = runs[:, 0], runs[:, 1], runs[:, 2]
            lengths = np.diff(first)
            later = np.diff(source) > 0
            beyond = (np.diff(source) == 0) & (row[1:] >= row[:-1] + lengths)
            if (block == 0 and first[0] != 0) or (lengths <= 0).any():
                yield f"{name}: documents are not numbered in order"
                return
            if not (later | beyond).all():
                at = block + int(np.flatnonzero(~(later | beyond))[0])
                yield f"{name}: rows are not in order after run {at}"
                return
            if first[-1] >= self.documents or source.max() >= self.sources:
                yield f"{name}: names a document or a source that is not there"
                return

    def border_faults(self) -> Iterator[str]:
        """Where splits and files begin elsewhere than the plan's rules say."""
        position = 0
        for number, split in enumerate(self.splits):
            if split.first_token != position:
                yield f"split {split.name}: begins at token {split.first_token}, not {position}"
            position = split.first_token + split.tokens
            if number == 0 and len(self.splits) == 2 and position != self._val_end():
                yield f"split val: ends at token {position}, by its rule at {self._val_end()}"
            yield from self._file_faults(split)
        yield from self._cut_faults()
        if position != self.tokens:
            yield f"stream {self.name}: splits end at token {position}, files at {self.tokens}"

    def _val_end(self) -> int:
        val, settings = self.settings.val, self.settings
        if val.kind == "docs":
            return int(self.ends[min(val.amount, self.documents) - 1]) if self.documents else 0
        held = val.amount or settings.shard_tokens
        if val.kind == "tokens" or settings.cut == "document":
            return self._start_from(held)
        return min(held, self.tokens)

    def _start_from(self, token: int) -> int:
        """Where the first document begins that begins at `token` or later."""
        at = int(np.searchsorted(self.ends, np.uint64(token), side="left"))
        return int(self.ends[at]) if at < self.documents else self.tokens

    def _cut_faults(self) -> Iterator[str]:
        """Where a file begins elsewhere than the rules by which it was cut say."""
        names = [s.name for s in self.splits]
        rule = next(r for r in CutRule.all_of(self.settings) if list(r.splits) == names)
        cuts = cuts_of(Reframed(self, self.settings), rule)
        for file, cut in zip(self.files, cuts, strict=False):
            if file.first_token != cut.first_token or file.split != cut.split:
                yield (
                    f"{file.path}: begins at token {file.first_token}, by its rule at "
                    f"{cut.first_token}"
                )
                return
        if len(self.files) != len(cuts):
            yield f"stream {self.name}: {len(self.files)} files, by its rule {len(cuts)}"

    def _file_faults(self, split: SplitEntry) -> Iterator[str]:
        files = [f for f in self.files if f.split == split.name]
        if sum(f.tokens for f in files) != split.tokens:
            yield f"split {split.name}: its files do not hold its {split.tokens} tokens"
        fmt, settings = self.format, self.settings
        folder = self.folder
        for number, file in enumerate(files):
            name = folder + fmt.file_name(settings, split.name, number, len(files))
            if file.path != name:
                yield f"{file.path}: not the name of file {number} of {split.name}"
            if fmt.framed:
                continue
            with open(self.directory / file.path, "rb") as stream:
                header = stream.read(self.header_bytes)
            if header != fmt.header(settings, file.tokens):
                yield f"{file.path}: its header is not that of {file.tokens} tokens"
