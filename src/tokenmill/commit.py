"""From durable units to a dataset: headers, index, manifest, names, in that order.

Token files grow under working names. The commit writes headers and index next to them, syncs
all, and writes down in the work folder which names it is about to give. Then the files get them,
and the manifest comes last. A crash in between is rolled back: the names are taken away again,
every piece is checked as after any crash, and the commit is made anew. So nothing is published
that was not found whole in the same run.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.config import is_plain_name
from tokenmill.engines.books import Ledger
from tokenmill.engines.unit import stream_name, token_file
from tokenmill.errors import StorageError, TokenmillError
from tokenmill.formats import Format, get_format
from tokenmill.manifest import (
    MANIFEST_VERSION,
    FileEntry,
    Manifest,
    SplitEntry,
    State,
    checksum_of_digests,
)
from tokenmill.pack import streams_of
from tokenmill.plan import Plan
from tokenmill.steps import is_published, publish, read_file, sync_directory, withdraw, write_atomic
from tokenmill.storage import OutputFiles, Workspace

U64 = npt.NDArray[np.uint64]
PIECES = "index/pieces"
UNITS = "index/units"
QUARANTINE = "quarantine.jsonl"


class _Grown:
    """A file in the work folder: its pieces in order, checked to be without gap or overlap."""

    def __init__(self, name: str, rows: U64) -> None:
        self.name = name
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        self.offsets, self.lengths, self.digests = rows[:, 1], rows[:, 2], rows[:, 3]

    def with_header(self, header: bytes) -> None:
        first = np.array([xxhash.xxh3_64_intdigest(header)], np.uint64)
        self.offsets = np.concatenate((np.zeros(1, np.uint64), self.offsets))
        self.lengths = np.concatenate((np.array([len(header)], np.uint64), self.lengths))
        self.digests = np.concatenate((first, self.digests))

    @property
    def size(self) -> int:
        return int(self.lengths.sum())

    def check(self, actual_size: int) -> None:
        ends = np.cumsum(self.lengths)
        if not np.array_equal(self.offsets, ends - self.lengths) or actual_size != self.size:
            raise StorageError(
                f"{self.name}: its pieces do not add up to the file ({actual_size} bytes on disk, "
                f"{self.size} in the journal)",
                hint="run again with --overwrite to start anew",
            )

    def table(self) -> bytes:
        return np.column_stack((self.lengths, self.digests)).astype("<u8").tobytes()

    def entry(self, path: str, kind: str, **fields: Any) -> FileEntry:
        return FileEntry(
            path=path,
            kind=kind,
            size=self.size,
            checksum=checksum_of_digests(self.digests.astype("<u8").tobytes()),
            pieces=len(self.lengths),
            **fields,
        )


class Commit(msgspec.Struct, frozen=True):
    """What is about to be published, durable before the first file gets its name."""

    names: dict[str, str]  # path in the dataset to name in the work folder
    manifest: Manifest


def commit(plan: Plan, ledger: Ledger, final: State, workspace: Workspace) -> Manifest:
    """Make the dataset visible, all at once. Every unit is durable when this is called."""
    decision = _prepare_commit(plan, ledger, final, workspace)
    write_atomic(workspace.commit, msgspec.json.encode(decision))
    _publish(workspace, decision)
    return decision.manifest


def read_commit(workspace: Workspace) -> Commit:
    try:
        decision = msgspec.json.decode(read_file(workspace.commit), type=Commit)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"{workspace.commit}: cannot be read: {error}",
            hint="which files are its own cannot be told: look into the folder, remove it by hand",
        ) from None
    Manifest.decode(decision.manifest.encode(), str(workspace.commit))  # its own checksum
    paths = {entry.path for entry in decision.manifest.files}
    if decision.names.keys() != paths or not all(map(is_plain_name, decision.names.values())):
        raise StorageError(
            f"{workspace.commit}: names files that are not those of its manifest",
            hint="look into the folder, and remove it by hand",
        )
    return decision


def published(workspace: Workspace, decision: Commit) -> list[str]:
    """Of the files a commit names, those that have got their name: only they are ours."""
    return [
        path
        for path, working in decision.names.items()
        if is_published(workspace.files / working, workspace.output / path)
    ]


def _publish(workspace: Workspace, decision: Commit) -> None:
    """Names for all files, then the manifest. The work folder is left to the caller."""
    folders = {workspace.output}
    for path, working in decision.names.items():
        publish(workspace.files / working, workspace.output / path)
        folders.add((workspace.output / path).parent)
    for folder in folders:
        sync_directory(folder)
    workspace.put(workspace.manifest, decision.manifest.encode())


def roll_back(workspace: Workspace) -> None:
    """After a crash: take back the names that a commit had begun to give."""
    decision = read_commit(workspace)
    folders = {workspace.output}
    for path in published(workspace, decision):
        withdraw(workspace.files / decision.names[path], workspace.output / path)
        folders.add((workspace.output / path).parent)
    for folder in folders:
        sync_directory(folder)
    workspace.forget_commit()


def _prepare_commit(plan: Plan, ledger: Ledger, final: State, workspace: Workspace) -> Commit:
    """Everything but the names: headers and index written, all files checked and synced."""
    files = OutputFiles(workspace)
    with contextlib.closing(files):
        grown = {name: _Grown(name, rows) for name, rows in _by_file(ledger).items()}
        token_entries, splits = _token_files(plan, final, grown, files)
        named = token_entries + _index_files(plan, grown)
        for _, working in named:
            grown[working].check(files.size(working))
        tables = {
            UNITS: _units_table(ledger),
            PIECES: b"".join(grown[working].table() for _, working in named),
        }
        for path, content in tables.items():
            named.append(_write_table(path, content, files))
        for _, working in named:
            files.sync(working)
    entries = [entry for entry, _ in named]
    return Commit(
        names={entry.path: working for entry, working in named},
        manifest=_manifest(plan, ledger, entries, splits),
    )


def _by_file(ledger: Ledger) -> dict[str, U64]:
    pieces = np.frombuffer(ledger.pieces, np.uint64).reshape(-1, 4)
    order = np.argsort(pieces[:, 0], kind="stable")
    bounds = np.searchsorted(pieces[order, 0], np.arange(len(ledger.file_ids) + 1))
    return {name: pieces[order[bounds[i] : bounds[i + 1]]] for name, i in ledger.file_ids.items()}


Named = tuple[FileEntry, str]


def _token_files(
    plan: Plan, final: State, grown: dict[str, _Grown], files: OutputFiles
) -> tuple[list[Named], list[SplitEntry]]:
    """Token files with their headers, numbered without holes, and the splits they make up."""
    settings = plan.settings
    fmt = get_format(settings.format)
    header_bytes = fmt.header_bytes(settings)
    itemsize = np.dtype(settings.dtype).itemsize
    named: list[Named] = []
    splits: list[SplitEntry] = []
    for stream, state in zip(streams_of(settings.val), final.streams, strict=True):
        name = stream_name(stream)
        token = 0
        for split in stream:
            first = token
            prefix = token_file(split, 0)[:-6]
            working = sorted((w for w in grown if w.startswith(prefix)), key=_file_number)
            for number, file in enumerate(working):
                tokens = grown[file].size // itemsize
                _check_limit(fmt, plan, tokens, fmt.file_name(settings, split, number))
                if header_bytes:
                    header = fmt.header(settings, tokens)
                    files.write(file, 0, header)
                    grown[file].with_header(header)
                entry = grown[file].entry(
                    fmt.file_name(settings, split, number),
                    "tokens",
                    split=split,
                    stream=name,
                    first_token=token,
                    tokens=tokens,
                )
                named.append((entry, file))
                token += tokens
            last = split == stream[-1]
            documents = _documents_between(
                files, name, state.documents, first, None if last else token
            )
            splits.append(
                SplitEntry(
                    name=split,
                    stream=name,
                    first_token=first,
                    tokens=token - first,
                    documents=documents,
                )
            )
        if token != state.tokens:
            raise TokenmillError(f"stream {name}: {token} tokens in files, {state.tokens} placed")
    return named, splits


def _file_number(working: str) -> int:
    return int(working.rpartition("-")[2])


def _check_limit(fmt: Format, plan: Plan, tokens: int, name: str) -> None:
    limit = fmt.max_shard_tokens(plan.settings)
    if limit is not None and tokens > limit:
        raise TokenmillError(
            f"{name}: {tokens} tokens; {fmt.name} reads at most {limit} in one file",
            hint="use --cut exact, or a smaller --shard-tokens",
        )


def _documents_between(
    files: OutputFiles, stream: str, count: int, first: int, end: int | None
) -> int:
    """Documents of a split, tokens [first, end) of its stream, by bisection in the ends.

    A document cut in two by an exact shard border counts on both sides.
    """

    def end_of(document: int) -> int:
        return int.from_bytes(files.read(f"{stream}.ends", document * 8, 8), "little")

    def ended_by(token: int) -> int:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if end_of(middle) <= token else (low, middle)
        return low

    before = ended_by(first) if first else 0
    if end is None:
        return count - before
    if end == first:
        return 0
    through = ended_by(end)
    cut_in_two = through < count and (through == 0 or end_of(through - 1) < end)
    return through + cut_in_two - before


def _index_files(plan: Plan, grown: dict[str, _Grown]) -> list[Named]:
    named: list[Named] = []
    for stream in streams_of(plan.settings.val):
        name = stream_name(stream)
        for kind in ("ends", "runs"):
            working = f"{name}.{kind}"
            if working in grown:
                entry = grown[working].entry(f"index/{working}", kind, stream=name)
                named.append((entry, working))
    if "quarantine" in grown:
        named.append((grown["quarantine"].entry(QUARANTINE, "quarantine"), "quarantine"))
    return named


def _write_table(path: str, content: bytes, files: OutputFiles) -> Named:
    working = "-".join(path.split("/"))
    files.truncate(working, 0)
    files.write(working, 0, content)
    digest = xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")
    entry = FileEntry(
        path=path,
        kind=path.removeprefix("index/"),
        size=len(content),
        checksum=checksum_of_digests(digest),
        pieces=1,
    )
    return entry, working


def _units_table(ledger: Ledger) -> bytes:
    """Source, segment, part, first row, rows of every unit, in document order."""
    units = np.frombuffer(ledger.units, np.uint64).reshape(-1, 5)
    order = np.lexsort((units[:, 2], units[:, 1], units[:, 0]))
    return units[order].astype("<u8").tobytes()


def _manifest(
    plan: Plan, ledger: Ledger, entries: list[FileEntry], splits: list[SplitEntry]
) -> Manifest:
    totals = ledger.totals()
    if not totals.balanced:
        raise TokenmillError(f"rows do not add up: {totals.to_dict()}")
    for source, counts in zip(plan.sources, ledger.by_source, strict=True):
        if source.rows not in (-1, counts.rows) and not plan.settings.limited:
            raise TokenmillError(
                f"{source.name}: {counts.rows} rows were read, but it has {source.rows}",
                hint="run again with --overwrite to start anew",
            )
    sources = [
        {**source.identity(), **counts.to_dict()}
        for source, counts in zip(plan.sources, ledger.by_source, strict=True)
    ]
    return Manifest(
        version=MANIFEST_VERSION,
        fingerprint=plan.fingerprint,
        plan=plan.to_dict(),
        counts=totals.to_dict(),
        splits=splits,
        sources=sources,
        set_aside=[
            {"source": plan.sources[source].name, "row": row, "reason": reason}
            for source, row, reason in sorted(ledger.set_aside)
        ],
        files=entries,
    ).sealed()
