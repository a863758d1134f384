"""From durable units to a dataset: headers, index, manifest, names, in that order.

Token files grow under working names. The commit writes headers and index next to them, syncs
all files, and records in the work folder which final names they will get. Then the files get
their names, and the manifest is written last. A crash in between is rolled back: the names are
removed, every piece is checked as after any crash, and the commit is made again. So only files
that were checked in the same run are published.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from tokenmill.errors import StorageError, TokenmillError
from tokenmill.formats import get_format, is_made_last
from tokenmill.formats.base import MadeFile, itemsize
from tokenmill.output.durability import UnitTable
from tokenmill.output.editions import (
    DatasetFile,
    EditionCut,
    as_made,
    checked_cut,
    cut_edition,
    dataset_file,
    index_tables,
    lay_out_edition,
    make_editions,
)
from tokenmill.output.file_maker import BufferSource, FileMaker, FileTask, digested, pieces_of
from tokenmill.output.file_tasks import FileJob, MakeFiles
from tokenmill.output.files import JobFiles
from tokenmill.output.manifest import MANIFEST_VERSION, Manifest, SplitEntry
from tokenmill.output.order.row_index import chosen_of, row_index
from tokenmill.output.stored import FileStream, StreamFiles, TokenFile
from tokenmill.output.workspace import FILES, WorkArea, Workspace, folders_of
from tokenmill.planning.empty_splits import refuse_empty
from tokenmill.planning.plan import Plan
from tokenmill.settings import is_plain_name
from tokenmill.system.memory import NO_LIMIT, MemoryShare
from tokenmill.system.store import Store, read_range, read_small
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.reframe import ReframedStream
from tokenmill.tokens.shards import ShardView, number_shards, settle_last
from tokenmill.tokens.splits import U64, WorkingFile, stream_name, streams_of

QUARANTINE = "quarantine.jsonl"
IMPORTED = "imported"  # in the plan of a dataset whose token files are somebody else's


class _GrownFile:
    """A file that workers wrote piece by piece: offset, length and digest of each, in order."""

    def __init__(self, name: str, pieces: U64) -> None:
        self.name = name
        self.pieces = pieces[np.argsort(pieces[:, 0], kind="stable")]
        self.taken: list[tuple[_GrownFile, int]] = []  # with how far its pieces move

    @property
    def size(self) -> int:
        return int(self.pieces[:, 1].sum())

    def put_header(self, header: bytes) -> None:
        if header:
            first = np.array([[0, *digested(header)]], np.uint64)
            self.pieces = np.concatenate((first, self.pieces))

    def take(self, other: _GrownFile) -> None:
        """The pieces of another file come behind ours."""
        shift = self.pieces[-1, 0] + self.pieces[-1, 1] - other.pieces[0, 0]
        self.taken.append((other, int(shift)))
        moved = other.pieces + np.array([shift, 0, 0], np.uint64)
        self.pieces = np.concatenate((self.pieces, moved))

    def write(self, header: bytes, files: JobFiles) -> None:
        """Of a file that is in its place: the header, and the files that it takes. The same bytes
        at the same place, however often this is begun."""
        for other, shift in self.taken:
            for offset, length, _ in other.pieces.tolist():
                content = read_range(files, other.name, offset, length)
                files.write_at(self.name, offset + shift, content)
        if header:
            files.write_at(self.name, 0, header)

    def made(self, actual_size: int) -> MadeFile:
        """The file, once its pieces are checked to be without gap or overlap."""
        offsets, lengths = self.pieces[:, 0], self.pieces[:, 1]
        has_gap = not np.array_equal(offsets, np.cumsum(lengths) - lengths)
        if has_gap or actual_size != self.size:
            raise StorageError(
                f"{self.name}: its pieces do not add up to the file ({actual_size} bytes on disk, "
                f"{self.size} in the journal)",
                hint="run again with --overwrite to start over",
            )
        return MadeFile(self.name, self.pieces[:, 1:].astype("<u8"), {})


class Commit(msgspec.Struct, frozen=True):
    """What is about to be published, durable before the first file gets its name."""

    names: dict[str, str]  # path in the dataset to name in the work folder
    manifest: Manifest


class Content(NamedTuple):
    """All of a manifest but the plan."""

    files: list[DatasetFile]
    splits: list[SplitEntry]
    counts: dict[str, int]
    sources: list[dict[str, Any]]
    set_aside: list[dict[str, Any]]


def _file_job(plan: Plan, about: tuple[StreamFiles, ...], workspace: WorkArea) -> FileJob:
    units = "" if workspace.has_places else plan.work_fingerprint
    return FileJob(plan.settings, about, workspace.where(FILES), workspace.address, units)


def evidence_of(plan: Plan, ledger: UnitTable) -> str:
    """What files are made of: with other units, those of an earlier run are not these."""
    digest = xxhash.xxh3_128(plan.fingerprint.encode())
    for some in ledger.evidence():
        digest.update(some)
    return digest.hexdigest()


class _FilesToBe(NamedTuple):
    """What workers wrote, as the streams that files are made of."""

    grown: dict[str, _GrownFile]
    source: Store
    about: tuple[StreamFiles, ...]
    written: tuple[list[WorkingFile], ...]
    streams: list[FileStream]

    def written_cut(self, plan: Plan) -> _WrittenCut | None:
        """The format that the workers wrote; None if there is none."""
        if is_made_last(plan.settings):
            return None
        return _written_cut(plan, self.streams, list(self.written), self.grown)

    def other_cuts(self, plan: Plan, room: MemoryShare) -> list[EditionCut]:
        """The other formats."""
        others = plan.settings.layouts[0 if is_made_last(plan.settings) else 1 :]
        return [cut_edition(plan, one, self.streams, room) for one in others]


def _files_to_be(
    plan: Plan, ledger: UnitTable, final: State, workspace: WorkArea, files: JobFiles
) -> _FilesToBe:
    grown = {name: _GrownFile(name, pieces) for name, pieces in _by_file(ledger).items()}
    about, written = zip(*_working_streams(plan, final, grown), strict=True)
    source = workspace.grown_files(files, plan.work_fingerprint)
    return _FilesToBe(grown, source, about, written, [FileStream(source, one) for one in about])


def file_tasks(
    plan: Plan, ledger: UnitTable, final: State, workspace: WorkArea, room: MemoryShare
) -> tuple[FileJob, list[FileTask]]:
    """All token files, as tasks for any number of machines. In a store without places."""
    with contextlib.closing(workspace.open_files()) as files:
        to_be = _files_to_be(plan, ledger, final, workspace, files)
        mine = to_be.written_cut(plan)
        cuts = ([] if mine is None else [mine.cut]) + to_be.other_cuts(plan, room)
        tasks = [task for cut in cuts for parts in cut.tasks(workspace) for task in parts]
        return _file_job(plan, to_be.about, workspace), tasks


def commit(
    plan: Plan,
    ledger: UnitTable,
    final: State,
    workspace: WorkArea,
    check_interrupt: Callable[[], None] = lambda: None,
    *,
    allow_empty: bool = True,
    make_files: MakeFiles | None = None,
    room: MemoryShare = NO_LIMIT,
) -> Manifest:
    """Make the dataset visible, all at once. Every unit is durable when this is called.

    Before the names: files that no unit wrote are made (by `make_files`, or here), headers and
    index are written, all files checked and synced. A split without tokens is refused unless it
    is allowed: the work folder stays, and a run may go on. So does one with more memory, where a
    document takes more than a worker's `room`.
    """
    evidence = evidence_of(plan, ledger)
    with contextlib.closing(FileMaker(workspace, evidence, check_interrupt)) as maker:
        to_be = _files_to_be(plan, ledger, final, workspace, maker.files)
        maker.source = None if workspace.has_places else to_be.source
        by_source, of_rows = _shuffled(plan, ledger.by_source, to_be.streams, maker, workspace)
        index = _index_files(plan, to_be.grown, to_be.source, maker) + of_rows
        totals = _checked_totals(plan, by_source)
        editions, cuts, checked = [], [], as_made
        mine = to_be.written_cut(plan)
        if mine is not None and workspace.has_places:
            editions = [lay_out_edition(plan, mine.cut, maker, mine.finished_in(maker.files))]
        elif mine is not None:
            cuts, checked = [mine.cut], mine.checked
        cuts += to_be.other_cuts(plan, room)
        job = _file_job(plan, to_be.about, workspace)
        editions += make_editions(plan, cuts, job, maker, make_files, checked)
        if not allow_empty:
            refuse_empty(plan.settings, editions[0].splits, totals.documents)
        files = [file for edition in editions for file in edition.files] + index
        for _, made in files:
            maker.files.sync(made.working)
        files += index_tables(files, ledger.in_order()[0].tobytes(), maker)
    content = Content(
        files,
        [split for edition in editions for split in edition.splits],
        counts=totals.to_dict(),
        sources=_source_entries(plan, ledger, by_source),
        set_aside=_rows_aside(plan, ledger),
    )
    return carry_out(plan, content, workspace)


def _source_entries(plan: Plan, ledger: UnitTable, by_source: list[Counts]) -> list[dict[str, Any]]:
    return [
        {**source.identity(), **counts.to_dict(), **ledger.mix_of(source.number)}
        for source, counts in zip(plan.sources, by_source, strict=True)
    ]


def _rows_aside(plan: Plan, ledger: UnitTable) -> list[dict[str, Any]]:
    return [
        {"source": plan.sources[source].name, **one.to_dict()}
        for source, one in sorted(ledger.set_aside, key=lambda pair: (pair[0], pair[1].row))
    ]


def carry_out(plan: Plan, content: Content, workspace: WorkArea) -> Manifest:
    """Write down what is about to be published, then publish it: names for all files, then the
    manifest. The work folder is left to the caller."""
    manifest = Manifest(
        version=MANIFEST_VERSION,
        fingerprint=plan.fingerprint,
        plan=plan.to_dict(),
        counts=content.counts,
        splits=content.splits,
        sources=content.sources,
        set_aside=content.set_aside,
        files=[entry for entry, _ in content.files],
    ).sealed()
    # A file of somebody else's has no working name, and stays where it is.
    names = {entry.path: made.working for entry, made in content.files if made.working}
    decision = msgspec.json.encode(Commit(names, manifest))
    workspace.publish(names, decision, manifest.encode())
    return manifest


def read_commit(workspace: Workspace) -> Commit:
    where = workspace.store.where(workspace.commit)
    try:
        content = read_small(workspace.store, workspace.commit)
        decision = msgspec.json.decode(content, type=Commit)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"{where}: cannot be read: {error}",
            hint="tokenmill cannot tell which files it made: look into the folder and "
            "remove it by hand",
        ) from None
    Manifest.decode(decision.manifest.encode(), where)  # its own checksum
    paths = {entry.path for entry in decision.manifest.files}
    if IMPORTED in decision.manifest.plan:  # token files that were there before, and stay
        paths -= {e.path for e in decision.manifest.files if e.kind in ("tokens", "sidecar")}
    if decision.names.keys() != paths or not all(map(is_plain_name, decision.names.values())):
        raise StorageError(
            f"{where}: names files that are not those of its manifest",
            hint="look into the folder, and remove it by hand",
        )
    return decision


def published(workspace: Workspace, decision: Commit) -> list[str]:
    """The files of a commit that have their final name: only these are ours."""
    return [
        path
        for path, working in decision.names.items()
        if workspace.store.is_published(f"{FILES}/{working}", path)
    ]


def roll_back(workspace: Workspace) -> None:
    """After a crash: take back the names that a commit had begun to give."""
    decision = read_commit(workspace)
    taken = published(workspace, decision)
    for path in taken:
        workspace.store.withdraw(f"{FILES}/{decision.names[path]}", path)
    for folder in folders_of(taken):
        workspace.store.sync_names(folder)
    workspace.forget_commit()


def _by_file(ledger: UnitTable) -> dict[str, U64]:
    pieces = np.frombuffer(ledger.pieces, np.uint64).reshape(-1, 4)
    order = np.argsort(pieces[:, 0], kind="stable")
    bounds = np.searchsorted(pieces[order, 0], np.arange(len(ledger.file_ids) + 1))
    return {
        name: pieces[order[bounds[i] : bounds[i + 1]], 1:] for name, i in ledger.file_ids.items()
    }


def _working_streams(
    plan: Plan, final: State, grown: dict[str, _GrownFile]
) -> list[tuple[StreamFiles, list[WorkingFile]]]:
    """The streams that the workers wrote, and their files in order."""
    streams, layout = [], plan.settings.first
    token_files = sorted(file for file in map(WorkingFile.named, grown) if file is not None)
    for splits, state in zip(streams_of(plan.settings.val), final.streams, strict=True):
        name, token = stream_name(splits), 0
        mine = [one for split in splits for one in token_files if one.split == split]
        files = []
        for file in mine:
            tokens = grown[file.name].size // itemsize(layout)
            files.append(TokenFile(file.name, token, tokens))
            token += tokens
        if token != state.tokens:
            raise TokenmillError(f"stream {name}: {token} tokens in files, {state.tokens} placed")
        stream = StreamFiles(
            name,
            plan.settings,
            layout,
            state.tokens,
            state.documents,
            tuple(files),
            f"{name}.ends",
            f"{name}.runs",
            tuple(source.name for source in plan.sources),
        )
        streams.append((stream, mine))
    return streams


class _WrittenCut(NamedTuple):
    """The format that the workers wrote: its files to be, and the pieces that each is made of."""

    cut: EditionCut
    grown: dict[tuple[str, int], _GrownFile]  # by split and number

    def _of(self, shard: ShardView) -> tuple[_GrownFile, bytes]:
        header = get_format(shard.layout.format).header(shard.layout, shard.tokens)
        return self.grown[shard.split, shard.number], header

    def finished_in(self, files: JobFiles) -> Callable[[ShardView], MadeFile]:
        """In a folder its files are there already, but for headers."""

        def finished(shard: ShardView) -> MadeFile:
            file, header = self._of(shard)
            file.write(header, files)
            file.put_header(header)
            return file.made(files.size(file.name) or 0)

        return finished

    def checked(self, shard: ShardView, made: MadeFile) -> MadeFile:
        """A file that was made of units: the checksums in the manifest are of their pieces."""
        file, header = self._of(shard)
        file.put_header(header)
        return file.made(made.size)._replace(working=made.working)


def _written_cut(
    plan: Plan,
    streams: list[FileStream],
    written: list[list[WorkingFile]],
    grown: dict[str, _GrownFile],
) -> _WrittenCut:
    layout = plan.settings.first
    size = itemsize(layout)
    reframed = [ReframedStream(stream, plan.settings, layout) for stream in streams]
    shards: list[list[ShardView]] = []
    working: dict[tuple[str, int], _GrownFile] = {}
    for stream, its_files in zip(reframed, written, strict=True):
        mine = [(file.split, grown[file.name]) for file in its_files]
        sizes = [(split, file.size // size) for split, file in mine]
        shards.append(number_shards(stream, settle_last(sizes, layout)))
        unused = (file for _, file in mine)
        for shard in shards[-1]:
            file = working[shard.split, shard.number] = next(unused)
            while file.size < shard.tokens * size:
                file.take(next(unused))  # a last shard that is too short
    return _WrittenCut(checked_cut(EditionCut(reframed, shards)), working)


def _index_files(
    plan: Plan, grown: dict[str, _GrownFile], source: Store, maker: FileMaker
) -> list[DatasetFile]:
    def finished(working: str, path: str) -> MadeFile:
        size = source.size(working) or 0
        made = grown[working].made(size)
        name = maker.workspace.name_of(working, path)
        if name != working:
            maker.make(name, BufferSource(lambda: pieces_of(source, working, size)))
        return made._replace(working=name)

    index: list[DatasetFile] = []
    for stream in map(stream_name, streams_of(plan.settings.val)):
        for kind in ("ends", "runs"):
            working, path = f"{stream}.{kind}", f"index/{stream}.{kind}"
            if working in grown:
                index.append(dataset_file(finished(working, path), path, kind, stream=stream))
    if "quarantine" in grown:
        made = finished("quarantine", QUARANTINE)
        index.append(dataset_file(made, QUARANTINE, "quarantine"))
    return index


def _shuffled(
    plan: Plan,
    by_source: list[Counts],
    streams: list[FileStream],
    maker: FileMaker,
    workspace: WorkArea,
) -> tuple[list[Counts], list[DatasetFile]]:
    """Of a shuffled job: what a limit has left of each source; and where each row of a source
    went, for every stream that has documents."""
    if not plan.settings.by_key:
        return by_source, []
    if plan.settings.limited:
        by_source = chosen_of(by_source, streams)
    rows = [counts.rows for counts in by_source]
    index: list[DatasetFile] = []
    for stream in (one for one in streams if one.documents):
        working, path = f"{stream.name}.rows", f"index/{stream.name}.rows"
        name = workspace.name_of(working, path)
        by_row = functools.partial(row_index, stream, rows, workspace.spill)
        made = maker.make(name, BufferSource(by_row))
        index.append(dataset_file(made, path, "rows", stream=stream.name))
    return by_source, index


def _checked_totals(plan: Plan, by_source: list[Counts]) -> Counts:
    totals = Counts()
    for source, counts in zip(plan.sources, by_source, strict=True):
        if source.rows not in (-1, counts.rows) and not plan.settings.reads_part:
            raise TokenmillError(
                f"{source.name}: {counts.rows} rows were read, but it has {source.rows}",
                hint="run again with --overwrite to start over",
            )
        totals.add(counts)
    if not totals.balanced:
        raise TokenmillError(f"rows do not add up: {totals.to_dict()}")
    return totals
