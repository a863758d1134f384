"""Existing token files become a dataset: a manifest and an index beside them, nothing moved.

Every token is read once: its checksum is taken, its id compared with the vocabulary, documents
are found by their separator or compared with the index. Manifest and index are written as after
any run, so that verify, inspect, export and the loader work. tokenmill never removes the files.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from tokenmill.dataset.conversion import make_dataset
from tokenmill.dataset.foreign_files import ForeignFile, find_foreign
from tokenmill.errors import InputError, UsageError
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, narrow
from tokenmill.output.commit import IMPORTED, Content
from tokenmill.output.editions import DatasetFile, dataset_file, index_tables
from tokenmill.output.file_maker import FileMaker, digested, made_file, pieces_of
from tokenmill.output.manifest import SplitEntry
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.result import Result
from tokenmill.planning.options import one_of
from tokenmill.planning.plan import BoundPlan
from tokenmill.settings import Dtype, Eot, Layout, PlanSettings, Val
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.interrupts import interruptible
from tokenmill.system.store import Store, read_range, store_of
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.files import find_encoding, settled_id, special_id
from tokenmill.tokens.counts import Counts


def adopt(
    directory: str | os.PathLike[str],
    *,
    format: str,
    tokenizer: str = "gpt2",
    pattern: str = "",
    eot: str | None = None,
    eot_token: str | int | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> Result:
    """Give existing token files a manifest and an index: `adopt("data", format="nanogpt")`."""
    if not is_bucket(directory) and not os.path.isdir(directory):
        raise UsageError(f"{os.fspath(directory)}: no such folder")
    encoding, store = find_encoding(tokenizer, pattern), store_of(directory)
    settings, files = _settings_of(store, format, encoding, eot, dtype, eot_token)
    sources = [{"name": f.path, "size": store.size(f.path)} for f in files]
    bound = {"settings": settings.to_dict(), "sources": sources, IMPORTED: True}
    plan = BoundPlan(settings=settings, sources=(), bound=bound)
    with interruptible() as interrupts:
        return make_dataset(
            plan,
            open_workspace(directory),
            interrupts,
            overwrite,
            lambda maker: _adopt(store, settings, files, maker),
            lambda seconds: {"tokenizer": encoding.path or encoding.name},
        )


def _settings_of(
    store: Store,
    format: str,
    encoding: Encoding,
    eot: str | None,
    dtype: str | None,
    eot_token: str | int | None,
) -> tuple[PlanSettings, list[ForeignFile]]:
    """The files in a folder, and the settings that they must have been made with."""
    eot_id = (
        special_id(encoding, str(eot_token), "--eot-token")
        if eot_token is not None
        else settled_id(encoding, encoding.eot_candidates, "--eot-token")
    )
    vocab_size = max(encoding.vocab_size, eot_id + 1)
    wanted: Dtype = narrow(vocab_size)
    if dtype is not None:
        wanted = one_of("--dtype", dtype, ("uint16", "uint32"))  # type: ignore[assignment]
    name, files = find_foreign(store, format, wanted)
    side = eot or _side_of_first(store, files[0], eot_id) or get_format(format).eot
    layout = Layout(
        format=format,
        dtype=files[0].dtype,
        eot=one_of("--eot", side, ("append", "prepend", "none")),  # type: ignore[arg-type]
        cut="exact",
        shard_tokens=0,
        name=name,
    )
    settings = PlanSettings(
        text_column="",
        tokenizer=encoding.name,
        tokenizer_sha256=encoding.sha256,
        pattern=encoding.pattern if encoding.path else "",
        eot_id=eot_id,
        vocab_size=vocab_size,
        layouts=(layout,),
        val=Val(kind="given" if any(f.split == "val" for f in files) else "none"),
        seed=0,
        drop_empty=False,
    )
    return settings, files


def _side_of_first(store: Store, file: ForeignFile, eot_id: int) -> Eot | None:
    """Where the first document has its separator; None where no index says how long it is."""
    if file.ends is None:
        return None
    ends = next(file.ends(), np.zeros(0, np.int64))
    if not len(ends) or not ends[0]:
        return "none"
    size = np.dtype(file.dtype).itemsize

    def token(at: int) -> int:
        content = read_range(store, file.path, file.header_bytes + at * size, size)
        return int.from_bytes(content, "little")

    if token(int(ends[0]) - 1) == eot_id:
        return "append"
    return "prepend" if token(0) == eot_id else "none"


class _Scan:
    """All tokens of a split, once: digests of the files and ends of documents."""

    def __init__(
        self, store: Store, settings: PlanSettings, files: list[ForeignFile], maker: FileMaker
    ) -> None:
        self.store, self.settings, self.files = store, settings, files
        self.check_interrupt = maker.check_interrupt  # a terabyte may pass before it writes a piece
        self.pieces: list[list[tuple[int, int]]] = []
        self.documents: list[int] = []  # that end in each file

    def ends(self) -> Generator[Any, None, dict[str, Any]]:
        """Where the documents end in the split; then pieces and documents of each file."""
        yield from self._by_index() if self.files[0].ends is not None else self._by_separator()
        return {"pieces": self.pieces, "documents": self.documents}

    def _blocks(self, file: ForeignFile) -> Iterator[Array]:
        """The tokens of a file in pieces, each hashed and compared with the vocabulary."""
        size = np.dtype(file.dtype).itemsize
        pieces: list[tuple[int, int]] = []
        self.pieces.append(pieces)
        total = file.header_bytes + file.tokens * size
        at = 0
        for content in pieces_of(self.store, file.path, total):
            self.check_interrupt()
            pieces.append(digested(content))
            skipped = file.header_bytes if at == 0 else 0
            tokens = np.frombuffer(content, np.dtype(file.dtype).newbyteorder("<"), offset=skipped)
            if len(tokens) and int(tokens.max()) >= self.settings.vocab_size:
                where = (at + skipped - file.header_bytes) // size + int(tokens.argmax())
                raise InputError(
                    f"{self.store.where(file.path)}: token {where} is {int(tokens.max())}, and "
                    f"{self.settings.tokenizer} has ids up to {self.settings.vocab_size - 1}",
                    hint="name the tokenizer it was made with (--tokenizer), or its --dtype",
                )
            yield tokens
            at += len(content)

    def _by_separator(self) -> Iterator[Array]:
        """Ends of documents: after each separator, or before each, and at the end of the split."""
        prepend = self.settings.first.eot == "prepend"
        token = last = separators = 0
        for file in self.files:
            self.documents.append(0)
            for tokens in self._blocks(file):
                at = np.flatnonzero(tokens == self.settings.eot_id) + token + (not prepend)
                separators += len(at)
                if prepend:
                    at = at[at > 0]  # the first separator ends nothing
                if self.settings.first.eot == "none":
                    at = at[:0]
                token += len(tokens)
                last = int(at[-1]) if len(at) else last
                self.documents[-1] += len(at)
                yield at.astype("<u8")
        if token and not separators and self.settings.first.eot != "none" and file.split == "train":
            raise InputError(
                f"{self.store.where()}: no separator {self.settings.eot_id} in the train files, "
                "so no document is found",
                hint="name the tokenizer they were made with (--tokenizer, --eot-token); "
                "with --eot none each split is one document",
            )
        if last < token:  # the last document, which no separator ends
            self.documents[-1] += 1
            yield np.array([token], "<u8")

    def _by_index(self) -> Iterator[Array]:
        before = 0
        for file in self.files:
            assert file.ends is not None
            reader, waiting = file.ends(), np.zeros(0, np.int64)
            at = ended = last = 0
            for tokens in self._blocks(file):
                stop = at + len(tokens)
                while last <= stop and (following := next(reader, None)) is not None:
                    if (np.diff(following, prepend=last) < 0).any():
                        raise self._contradiction(file, "documents that end before they begin")
                    last = int(following[-1]) if len(following) else last
                    waiting = np.concatenate((waiting, following))
                count = int(np.searchsorted(waiting, stop, side="right"))
                self._check_frames(file, tokens, at, np.append(ended, waiting[:count]))
                yield (waiting[:count] + before).astype("<u8")
                if count:
                    ended = int(waiting[count - 1])
                waiting, at = waiting[count:], stop
            if last != file.tokens or next(reader, None) is not None:
                what = f"documents end at token {last}, the file at {file.tokens}"
                raise self._contradiction(file, what)
            self.documents.append(file.documents)
            before += file.tokens

    def _contradiction(self, file: ForeignFile, what: str, hint: str = "") -> InputError:
        return InputError(f"{self.store.where(file.beside[0])}: {what}", hint=hint)

    def _check_frames(self, file: ForeignFile, tokens: Array, at: int, ends: Array) -> None:
        """Every document that ends here has its separator; `ends` begins with the one before."""
        side, eot = self.settings.first.eot, self.settings.eot_id
        if side == "append":
            there = tokens[np.maximum(ends[1:] - 1 - at, 0)] == eot
        elif side == "prepend":
            starts = ends[(ends >= at) & (ends < at + len(tokens))]
            there = tokens[starts - at] == eot
        else:
            return
        if not there.all() or (len(ends) > 1 and (np.diff(ends) == 0).any()):
            raise self._contradiction(
                file,
                f"a document near token {at + len(tokens)} has no separator {eot} "
                f"{'behind' if side == 'append' else 'before'} it, as the first one has",
                hint="import it with --eot none: its documents are then taken as they are",
            )


def _adopt(
    store: Store, settings: PlanSettings, files: list[ForeignFile], maker: FileMaker
) -> Content:
    theirs: list[DatasetFile] = []
    ours: list[DatasetFile] = []
    splits: list[SplitEntry] = []
    sources: list[dict[str, Any]] = []
    total = Counts()
    for split in dict.fromkeys(file.split for file in files):
        mine = [file for file in files if file.split == split]
        names = [
            maker.workspace.name_of(f"{split}.{kind}", f"index/{split}.{kind}")
            for kind in ("ends", "runs")
        ]
        ends = maker.make(names[0], _Scan(store, settings, mine, maker).ends())
        documents = ends.info["documents"]
        runs = maker.make(names[1], _runs(documents, len(sources)))
        ours.append(dataset_file(ends, f"index/{split}.ends", "ends", stream=split))
        ours.append(dataset_file(runs, f"index/{split}.runs", "runs", stream=split))
        token = 0
        for file, pieces, count in zip(mine, ends.info["pieces"], documents, strict=True):
            found = _token_files(store, settings.first.format, file, token, pieces)
            counts = Counts(rows=count, documents=count, tokens=file.tokens)
            sources.append({"name": file.path, "size": found[0][0].size, **counts.to_dict()})
            total.add(counts)
            theirs += found
            token += file.tokens
        splits.append(
            SplitEntry(
                name=split,
                format=settings.first.format,
                stream=split,
                first_token=0,
                tokens=token,
                documents=sum(documents),
            )
        )
    every = theirs + ours
    every += index_tables(every, b"", maker)
    return Content(every, splits, total.to_dict(), sources, [])


def _runs(documents: list[int], source: int) -> Iterator[Array]:
    """One run for each file: its documents come from it, in order."""
    firsts = itertools.accumulate(documents, initial=0)
    for number, (first, count) in enumerate(zip(firsts, documents, strict=False), source):
        if count:
            yield np.array([first, number, 0], "<u8")


def _token_files(
    store: Store, format: str, file: ForeignFile, token: int, pieces: list[tuple[int, int]]
) -> list[DatasetFile]:
    """A file as it is, from this token of its split on, and those beside it."""
    place = {"split": file.split, "stream": file.split, "first_token": token, "tokens": file.tokens}
    made = made_file("", pieces, {})
    found = [dataset_file(made, file.path, "tokens", format=format, **place)]
    for path in file.beside:
        contents = pieces_of(store, path, store.size(path) or 0)
        beside = made_file("", map(digested, contents), {})
        found.append(dataset_file(beside, path, "sidecar", format=format))
    return found
