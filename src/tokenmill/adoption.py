"""Existing token files become a dataset of ours: manifest and index beside them, nothing moved.

Every token is read once: its checksum is taken, its id compared with the vocabulary, documents
are found by their separator or compared with the index. What was found is written as after any
run, so that verify, inspect, export and the loader work on it. The files stay their owner's:
nothing of ours ever removes them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from tokenmill.commit import IMPORTED, PIECES, UNITS, Commit, carry_out
from tokenmill.config import Dtype, Eot, PlanSettings, RunSettings, Val, settings_to_dict
from tokenmill.editions import Named, named_table
from tokenmill.errors import InputError, UsageError
from tokenmill.foreign_files import Foreign, find_foreign
from tokenmill.formats import get_format
from tokenmill.formats.base import Array, narrow
from tokenmill.interrupts import interruptible
from tokenmill.job import open_job
from tokenmill.manifest import MANIFEST_VERSION, Counts, Manifest, SplitEntry
from tokenmill.options import NO_LAYOUT, one_of
from tokenmill.pipeline import Result
from tokenmill.plan import BoundPlan
from tokenmill.production import PIECE_BYTES, Made, Production
from tokenmill.steps import explained, read_piece
from tokenmill.storage import OutputFiles, Workspace
from tokenmill.vocabulary_files import find_encoding, settled_id, special_id


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
    began = time.monotonic()
    folder = Path(directory)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    encoding = find_encoding(tokenizer, pattern)
    eot_id = (
        special_id(encoding, str(eot_token), "--eot-token")
        if eot_token is not None
        else settled_id(encoding, encoding.eot_candidates, "--eot-token")
    )
    vocab_size = max(encoding.vocab_size, eot_id + 1)
    wanted: Dtype = narrow(vocab_size)
    if dtype is not None:
        wanted = one_of("--dtype", dtype, ("uint16", "uint32"))  # type: ignore[assignment]
    name, files = find_foreign(folder, format, wanted)
    side = eot or _side_of_first(folder, files[0], eot_id) or get_format(format).eot
    settings = PlanSettings(
        text_column="",
        tokenizer=encoding.name,
        tokenizer_sha256=encoding.sha256,
        pattern=encoding.pattern if encoding.path else "",
        eot_id=eot_id,
        vocab_size=vocab_size,
        **{
            **msgspec.structs.asdict(NO_LAYOUT),
            "format": format,
            "dtype": files[0].dtype,
            "eot": one_of("--eot", side, ("append", "prepend", "none")),
            "name": name,
        },
        val=Val(kind="given" if any(f.split == "val" for f in files) else "none"),
        seed=0,
        drop_empty=False,
    )
    sources = [{"name": f.path, "size": (folder / f.path).stat().st_size} for f in files]
    bound = {"settings": settings_to_dict(settings), "sources": sources, IMPORTED: True}
    plan = BoundPlan(settings=settings, sources=(), bound=bound)
    workspace = Workspace(folder)
    run = RunSettings(workers=0, memory=0, overwrite=overwrite)
    with (
        interruptible() as interrupts,
        interrupts.deferred(),
        open_job(plan, run, workspace, interrupts.check) as opened,
    ):
        manifest = opened.manifest
        if manifest is None:
            try:
                manifest = _adopt(folder, plan, files, workspace, interrupts.check)
            except InputError:  # it is asked again with other options, to which nothing is bound
                workspace.remove_work()
                raise
        if workspace.work.exists():
            workspace.put_run_record({"tokenizer": encoding.path or encoding.name})
            workspace.remove_work()
    return Result(
        output=os.fspath(directory),
        manifest=manifest,
        already_done=opened.manifest is not None,
        seconds=time.monotonic() - began,
        run={},
        warnings=[],
    )


def _side_of_first(folder: Path, file: Foreign, eot_id: int) -> Eot | None:
    """Where the separator of the first document stands; None where no index says how long it is."""
    if file.ends is None:
        return None
    ends = next(file.ends(), np.zeros(0, np.int64))
    if not len(ends) or not ends[0]:
        return "none"
    size = np.dtype(file.dtype).itemsize

    def token(at: int) -> int:
        path = folder / file.path
        with explained("read", path):
            return int.from_bytes(read_piece(path, file.header_bytes + at * size, size), "little")

    if token(int(ends[0]) - 1) == eot_id:
        return "append"
    return "prepend" if token(0) == eot_id else "none"


def _pieces_of(path: Path, size: int) -> Iterator[bytes]:
    at = 0
    while at < size:
        with explained("read", path):
            content = read_piece(path, at, min(PIECE_BYTES, size - at))
        if not content:
            raise InputError(f"{path}: became shorter while it was read")
        yield content
        at += len(content)


class _Scan:
    """All tokens of a split, once: digests of the files and ends of documents."""

    def __init__(
        self,
        folder: Path,
        settings: PlanSettings,
        files: list[Foreign],
        check_interrupt: Callable[[], None],
    ) -> None:
        self.folder, self.settings, self.files = folder, settings, files
        self.check_interrupt = check_interrupt  # a terabyte may pass before an index is written
        self.pieces: list[list[tuple[int, int]]] = []
        self.documents: list[int] = []  # that end in each file

    def blocks(self, file: Foreign) -> Iterator[Array]:
        """The tokens of a file in pieces, each hashed and compared with the vocabulary."""
        path, size = self.folder / file.path, np.dtype(file.dtype).itemsize
        pieces: list[tuple[int, int]] = []
        self.pieces.append(pieces)
        total = file.header_bytes + file.tokens * size
        at = 0
        for content in _pieces_of(path, total):
            self.check_interrupt()
            pieces.append((len(content), xxhash.xxh3_64_intdigest(content)))
            skipped = file.header_bytes if at == 0 else 0
            tokens = np.frombuffer(content, np.dtype(file.dtype).newbyteorder("<"), offset=skipped)
            if len(tokens) and int(tokens.max()) >= self.settings.vocab_size:
                where = (at + skipped - file.header_bytes) // size + int(tokens.argmax())
                raise InputError(
                    f"{path}: token {where} is {int(tokens.max())}, and {self.settings.tokenizer} "
                    f"has ids up to {self.settings.vocab_size - 1}",
                    hint="name the tokenizer it was made with (--tokenizer), or its --dtype",
                )
            yield tokens
            at += len(content)

    def by_separator(self) -> Generator[Any, None, dict[str, Any]]:
        """Ends of documents: behind each separator, or before each, and at the end of all."""
        prepend = self.settings.eot == "prepend"
        token = last = separators = 0
        for file in self.files:
            ended = 0
            for tokens in self.blocks(file):
                at = np.flatnonzero(tokens == self.settings.eot_id) + token + (not prepend)
                separators += len(at)
                if prepend:
                    at = at[at > 0]  # the first separator ends nothing
                if self.settings.eot == "none":
                    at = at[:0]
                token += len(tokens)
                last = int(at[-1]) if len(at) else last
                ended += len(at)
                yield at.astype("<u8")
            self.documents.append(ended)
        if token and not separators and self.settings.eot != "none" and file.split == "train":
            raise InputError(
                f"{self.folder}: no separator {self.settings.eot_id} in the train files, so no "
                "document is found",
                hint="name the tokenizer they were made with (--tokenizer, --eot-token); "
                "with --eot none all is one document",
            )
        if last < token:  # the last document, which no separator ends
            self.documents[-1] += 1
            yield np.array([token], "<u8")
        return self._info()

    def by_index(self) -> Generator[Any, None, dict[str, Any]]:
        before = 0
        for file in self.files:
            assert file.ends is not None
            previous = np.zeros(1, np.int64)
            waiting = np.zeros(0, np.int64)
            reader, at, ended = file.ends(), 0, np.int64(0)
            for tokens in self.blocks(file):
                stop = at + len(tokens)
                while not len(waiting) or int(waiting[-1]) < stop:
                    following = next(reader, None)
                    if following is None:
                        break
                    if (np.diff(following, prepend=previous[-1]) < 0).any():
                        raise self._contradiction(file, "documents that end before they begin")
                    previous = following if len(following) else previous
                    waiting = np.concatenate((waiting, following))
                count = int(np.searchsorted(waiting, stop, side="right"))
                self._check_frames(file, tokens, at, np.append(ended, waiting[:count]))
                yield (waiting[:count] + before).astype("<u8")
                if count:
                    ended = waiting[count - 1]
                waiting, at = waiting[count:], stop
            if len(waiting) or next(reader, None) is not None or int(previous[-1]) != file.tokens:
                raise self._contradiction(
                    file, f"documents end at token {int(previous[-1])}, the file at {file.tokens}"
                )
            self.documents.append(file.documents)
            before += file.tokens
        return self._info()

    def _contradiction(self, file: Foreign, what: str, hint: str = "") -> InputError:
        return InputError(f"{self.folder / file.beside[0]}: {what}", hint=hint)

    def _check_frames(self, file: Foreign, tokens: Array, at: int, ends: Array) -> None:
        """Every document that ends here has its separator; `ends` begins with the one before."""
        side, eot = self.settings.eot, self.settings.eot_id
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

    def _info(self) -> dict[str, Any]:
        return {"pieces": self.pieces, "documents": self.documents}


def _adopt(
    folder: Path,
    plan: BoundPlan,
    files: list[Foreign],
    workspace: Workspace,
    check_interrupt: Callable[[], None],
) -> Manifest:
    output = OutputFiles(workspace)
    production = Production(workspace, output, plan.fingerprint, check_interrupt)
    named: list[Named] = []
    ours: list[Named] = []
    splits: list[SplitEntry] = []
    sources: list[dict[str, Any]] = []
    settings = plan.settings
    with contextlib.closing(output), contextlib.closing(production):
        for split in dict.fromkeys(file.split for file in files):
            mine = [file for file in files if file.split == split]
            scan = _Scan(folder, settings, mine, check_interrupt)
            ends = scan.by_index() if mine[0].ends is not None else scan.by_separator()
            made = production.make(f"{split}.ends", ends)
            entries, found = _token_entries(folder, settings, split, mine, made.info)
            named += entries
            runs = production.make(f"{split}.runs", _runs(made.info, len(sources)))
            sources += found
            ours.append(_named(f"index/{split}.ends", "ends", made, stream=split))
            ours.append(_named(f"index/{split}.runs", "runs", runs, stream=split))
            splits.append(
                SplitEntry(
                    name=split,
                    format=settings.format,
                    stream=split,
                    first_token=0,
                    tokens=sum(file.tokens for file in mine),
                    documents=sum(made.info["documents"]),
                )
            )
        table = b"".join(one.table for one in named + ours)
        ours.append(named_table(UNITS, b"", production))
        ours.append(named_table(PIECES, table, production))
    manifest = _manifest(plan, named + ours, splits, sources)
    names = {entry.path: working for entry, working, _ in ours}
    return carry_out(Commit(names=names, manifest=manifest), workspace)


def _named(path: str, kind: str, made: Made, **fields: Any) -> Named:
    return Named(made.entry(path, kind, **fields), made.working, made.table())


def _runs(info: dict[str, Any], source: int) -> Generator[Any, None, None]:
    """One run for each file: its documents come from it, in order."""
    first = 0
    for number, documents in enumerate(info["documents"]):
        if documents:
            yield np.array([first, source + number, 0], "<u8")
        first += documents


def _token_entries(
    folder: Path, settings: PlanSettings, split: str, files: list[Foreign], info: dict[str, Any]
) -> tuple[list[Named], list[dict[str, Any]]]:
    """The files as they are, with what lies beside them, and each as a source of documents."""
    named, sources = [], []
    token = 0
    for file, pieces, documents in zip(files, info["pieces"], info["documents"], strict=True):
        made = Made("", [(length, digest) for length, digest in pieces], {})
        fields = {"split": split, "stream": split, "first_token": token, "tokens": file.tokens}
        entry = made.entry(file.path, "tokens", format=settings.format, **fields)
        named.append(Named(entry, "", made.table()))
        for path in file.beside:
            contents = _pieces_of(folder / path, (folder / path).stat().st_size)
            beside = Made("", [(len(c), xxhash.xxh3_64_intdigest(c)) for c in contents], {})
            sidecar = beside.entry(path, "sidecar", format=settings.format)
            named.append(Named(sidecar, "", beside.table()))
        counts = Counts(rows=documents, documents=documents, tokens=file.tokens)
        sources.append({"name": file.path, "size": entry.size, **counts.to_dict()})
        token += file.tokens
    return named, sources


def _manifest(
    plan: BoundPlan,
    named: list[Named],
    splits: list[SplitEntry],
    sources: list[dict[str, Any]],
) -> Manifest:
    total = Counts()
    for source in sources:
        total.add(Counts(**{key: source[key] for key in Counts.__struct_fields__}))
    return Manifest(
        version=MANIFEST_VERSION,
        fingerprint=plan.fingerprint,
        plan=plan.to_dict(),
        counts=total.to_dict(),
        splits=splits,
        sources=sources,
        set_aside=[],
        files=[entry for entry, _, _ in named],
    ).sealed()
