"""A dataset in one format: its token files, the files beside them, and what the manifest says.

The same code lays out the format that workers wrote (only headers and indexes are missing), each
further format of a run, and what `export` makes of a finished dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tokenmill.formats import get_format
from tokenmill.formats.base import Buffers, MadeFile, MadeShards
from tokenmill.output.file_maker import BufferSource, FileMaker, FileTask
from tokenmill.output.file_tasks import FileJob, MakeFiles, tasks_of, token_file_name
from tokenmill.output.manifest import FileEntry, SplitEntry, checksum_of_digests
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.plan import BoundPlan, Plan
from tokenmill.settings import Layout
from tokenmill.system.memory import NO_LIMIT, MemoryShare
from tokenmill.tokens.placement import CutRule
from tokenmill.tokens.reframe import BLOCK_TOKENS, ReframedStream, StoredStream
from tokenmill.tokens.shards import (
    ShardView,
    check_shard,
    check_train_shards,
    cuts_of,
    documents_between,
    tokens_of,
)
from tokenmill.tokens.splits import stream_name, streams_of

PIECES = "index/pieces"
UNITS = "index/units"

DatasetFile = tuple[FileEntry, MadeFile]


# What is known of a token file beside what its maker noted: the pieces that units wrote.
CheckFile = Callable[[ShardView, MadeFile], MadeFile]


def as_made(shard: ShardView, made: MadeFile) -> MadeFile:
    """Nothing else is known of it."""
    return made


class Edition(NamedTuple):
    files: list[DatasetFile]
    splits: list[SplitEntry]


def dataset_file(made: MadeFile, path: str, kind: str, **fields: Any) -> DatasetFile:
    """A file and how the manifest names it."""
    entry = FileEntry(
        path=path,
        kind=kind,
        size=made.size,
        checksum=checksum_of_digests(made.pieces[:, 1].tobytes()),
        pieces=len(made.pieces),
        **fields,
    )
    return entry, made


class EditionCut(NamedTuple):
    """A format's files to be: what is known of them before the first one is made."""

    streams: list[ReframedStream]
    shards: list[list[ShardView]]  # of each stream

    def tasks(self, workspace: WorkArea) -> list[list[FileTask]]:
        """For each token file, what is to be done to make it."""
        return [
            tasks_of(shard, number, workspace)
            for number, mine in enumerate(self.shards)
            for shard in mine
        ]


def cut_edition(
    plan: Plan | BoundPlan,
    layout: Layout,
    stored: Sequence[StoredStream],
    room: MemoryShare = NO_LIMIT,
) -> EditionCut:
    """Where one format's files begin and end, of streams that are stored in another or the same."""
    streams = [ReframedStream(one, plan.settings, layout) for one in stored]
    rules = CutRule.all_of(plan.settings, layout)
    shards = [cuts_of(stream, rule) for stream, rule in zip(streams, rules, strict=True)]
    return checked_cut(EditionCut(streams, shards), room)


def checked_cut(cut: EditionCut, room: MemoryShare = NO_LIMIT) -> EditionCut:
    """Refuses what the trainer could not read, and what takes more memory than a worker has."""
    shards = [shard for mine in cut.shards for shard in mine]
    check_train_shards(shards, get_format(cut.streams[0].layout.format))
    for shard in shards:
        check_shard(shard)
        _check_memory(shard, room)
    return cut


def _check_memory(shard: ShardView, room: MemoryShare) -> None:
    """A document that its format writes in one piece must fit into a worker's memory."""
    fmt = get_format(shard.layout.format)
    if not fmt.document_memory or shard.tokens * fmt.document_memory <= room.most(1):
        return
    for first, lengths in shard.numbered_lengths():
        longest = int(lengths.max(initial=0))
        if longest <= BLOCK_TOKENS:  # so much is written at a time, whatever the documents
            continue
        at = first + int(lengths.argmax())
        names, sources, rows = shard.stream.stored.origins_of(at, at + 1)
        room.take(
            longest * fmt.document_memory,
            f"{names[int(sources[0])]}, row {int(rows[0])}",
            f"a document of {longest:,} tokens, which {fmt.name} holds in one piece",
        )


def make_edition(
    plan: Plan | BoundPlan, cut: EditionCut, maker: FileMaker, checked: CheckFile = as_made
) -> Edition:
    """Every file of one format. Token files that workers have made are found; others are made."""
    tasks = {parts[0].working: parts for parts in cut.tasks(maker.workspace)}

    def token_file(shard: ShardView) -> MadeFile:
        working = token_file_name(shard, maker.workspace)
        made = maker.joined(tasks[working])
        if made is None:
            made = maker.make(working, BufferSource(lambda: tokens_of(shard)))
        return checked(shard, made)

    return lay_out_edition(plan, cut, maker, token_file)


def make_editions(
    plan: Plan | BoundPlan,
    cuts: Sequence[EditionCut],
    job: FileJob,
    maker: FileMaker,
    make_files: MakeFiles | None,
    checked: CheckFile = as_made,
) -> list[Edition]:
    """Token files of all formats at once, by all workers; then, format by format, what is made of
    all of them: indexes, and names that hold a total. `checked`: of the first format."""
    if make_files is not None:
        tasks = [task for cut in cuts for parts in cut.tasks(maker.workspace) for task in parts]
        missing = maker.missing(tasks)
        maker.workspace.announce([task.working for task in missing])
        make_files(job, missing, maker)
    checks = (checked, *[as_made] * len(cuts))
    return [make_edition(plan, cut, maker, check) for cut, check in zip(cuts, checks, strict=False)]


def lay_out_edition(
    plan: Plan | BoundPlan,
    cut: EditionCut,
    maker: FileMaker,
    token_file: Callable[[ShardView], MadeFile],
) -> Edition:
    """Token files by `token_file`, which makes them or finds them where workers wrote them;
    everything else by the format."""
    settings, layout = plan.settings, cut.streams[0].layout
    fmt, folder = get_format(layout.format), settings.folder_of(layout)
    files: list[DatasetFile] = []
    beside: list[DatasetFile] = []
    splits: list[SplitEntry] = []
    made_shards: MadeShards = {}

    def add(path: str, buffers: Buffers) -> None:
        working = f"{fmt.name}-file-{len(beside):06d}"
        made = maker.make(maker.workspace.name_of(working, folder + path), buffers)
        beside.append(dataset_file(made, folder + path, "sidecar", format=fmt.name))

    for stream, mine in zip(*cut, strict=True):
        for shard in mine:
            made = token_file(shard)
            place = {"split": shard.split, "stream": stream.name, "tokens": shard.tokens}
            place |= {"format": fmt.name, "first_token": shard.first_token}
            files.append(dataset_file(made, folder + shard.path, "tokens", **place))
            made_shards.setdefault(shard.split, []).append((shard, made))
            for path, buffers in fmt.sidecars(shard):
                add(path, buffers)
        splits += _splits(stream, mine)
    for path, content in fmt.whole(settings, layout, plan.fingerprint, made_shards):
        add(path, [content])
    return Edition(files + beside, splits)


def index_tables(files: list[DatasetFile], units: bytes, maker: FileMaker) -> list[DatasetFile]:
    """The tables of units and of all files' pieces. Each is stored as a single piece, because
    the other pieces are found through it."""
    tables = []
    pieces = b"".join(made.pieces.tobytes() for _, made in files)
    for path, content in ((UNITS, units), (PIECES, pieces)):
        working = maker.workspace.name_of(path.replace("/", "-"), path)
        made = maker.put(working, content)
        tables.append(dataset_file(made, path, path.removeprefix("index/")))
    return tables


def _splits(stream: ReframedStream, shards: list[ShardView]) -> list[SplitEntry]:
    names = next(s for s in streams_of(stream.settings.val) if stream_name(s) == stream.name)
    entries = []
    token = 0
    for name in names:
        tokens = sum(shard.tokens for shard in shards if shard.split == name)
        end = None if name == names[-1] else token + tokens
        entries.append(
            SplitEntry(
                name=name,
                format=stream.layout.format,
                stream=stream.name,
                first_token=token,
                tokens=tokens,
                documents=documents_between(stream, token, end),
            )
        )
        token += tokens
    return entries
