"""A dataset in one format: its token files, the files beside them, and what the manifest says.

The same code lays out the format that workers wrote (only headers and indexes are missing), each
further format of a run, and what `export` makes of a finished dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tokenmill.formats import get_format
from tokenmill.formats.base import Buffers, MadeFile, MadeShards
from tokenmill.output.file_maker import FileMaker, FileTask, digested, made_file
from tokenmill.output.file_tasks import FileJob, MakeFiles, tasks_of, working_name
from tokenmill.output.manifest import FileEntry, SplitEntry, checksum_of_digests
from tokenmill.planning.plan import BoundPlan, Plan
from tokenmill.settings import Layout
from tokenmill.system.store import PlacedStore
from tokenmill.tokens.placement import CutRule
from tokenmill.tokens.reframe import ReframedStream, StoredStream
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

    @property
    def tasks(self) -> list[list[FileTask]]:
        """For each token file, what is to be done to make it."""
        return [
            tasks_of(shard, number) for number, mine in enumerate(self.shards) for shard in mine
        ]


def cut_edition(
    plan: Plan | BoundPlan, layout: Layout, stored: Sequence[StoredStream]
) -> EditionCut:
    """Where one format's files begin and end, of streams that are stored in another or the same."""
    streams = [ReframedStream(one, plan.settings, layout) for one in stored]
    rules = CutRule.all_of(plan.settings, layout)
    shards = [cuts_of(stream, rule) for stream, rule in zip(streams, rules, strict=True)]
    return checked_cut(EditionCut(streams, shards))


def checked_cut(cut: EditionCut) -> EditionCut:
    """Refuses what the trainer could not read."""
    shards = [shard for mine in cut.shards for shard in mine]
    check_train_shards(shards, get_format(cut.streams[0].layout.format))
    for shard in shards:
        check_shard(shard)
    return cut


def make_edition(plan: Plan | BoundPlan, cut: EditionCut, maker: FileMaker) -> Edition:
    """Every file of one format. Token files that workers have made are found; others are made."""
    tasks = {parts[0].working: parts for parts in cut.tasks}

    def token_file(shard: ShardView) -> MadeFile:
        working = working_name(shard)
        return maker.joined(tasks[working]) or maker.make(working, tokens_of(shard))

    return lay_out_edition(plan, cut, maker, token_file)


def make_editions(
    plan: Plan | BoundPlan,
    cuts: Sequence[EditionCut],
    job: FileJob,
    maker: FileMaker,
    make_files: MakeFiles | None,
) -> list[Edition]:
    """Token files of all formats at once, by all workers; then, format by format, what is made of
    all of them: indexes, and names that hold a total."""
    if make_files is not None:
        tasks = [task for cut in cuts for parts in cut.tasks for task in parts]
        make_files(job, maker.missing(tasks), maker)
    return [make_edition(plan, cut, maker) for cut in cuts]


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
        made = maker.make(f"{fmt.name}-file-{len(beside):06d}", buffers)
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


def index_tables(files: list[DatasetFile], units: bytes, output: PlacedStore) -> list[DatasetFile]:
    """The tables of units and of all files' pieces. Each is stored as a single piece, because
    the other pieces are found through it."""
    tables = []
    pieces = b"".join(made.pieces.tobytes() for _, made in files)
    for path, content in ((UNITS, units), (PIECES, pieces)):
        working = path.replace("/", "-")
        output.truncate(working, 0)
        output.write_at(working, 0, content)
        output.sync(working)
        made = made_file(working, [digested(content)], {})
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
