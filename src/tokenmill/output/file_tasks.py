"""Output files as tasks: a file, or a range of one, that any worker can make.

A task is small plain data. It names the file in the work folder, and the tokens that go into it;
what a worker reads these from is told to it once (`FileJob`). A file of a plain format is cut into
ranges, which end where pieces of it end: the checksums are those of the file made in one go.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any

import msgspec

from tokenmill.formats import get_format
from tokenmill.formats.base import Info, itemsize
from tokenmill.output.file_maker import (
    PIECE_BYTES,
    BufferSource,
    FileMaker,
    FileTask,
    write_pieces,
)
from tokenmill.output.files import JobFiles
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.order.reordering import NewOrder, Reorderer
from tokenmill.output.stored import FileStream, StreamFiles
from tokenmill.output.workspace import WorkArea
from tokenmill.settings import PlanSettings
from tokenmill.system.store import Store, store_of
from tokenmill.tokens.reframe import BLOCK_TOKENS, ReframedStream
from tokenmill.tokens.shards import ShardView, tokens_of

RANGE_BYTES = 8 * PIECE_BYTES  # of a large file in one task; whole pieces, so whole MiB too


class FileJob(msgspec.Struct, frozen=True, tag=True):
    """All that a worker needs to know to make files: sent once."""

    settings: PlanSettings
    streams: tuple[StreamFiles, ...]
    source: str  # the store that holds the streams
    output: str
    units: str = ""  # the fingerprint of the plan whose units, as objects, the streams are
    order: NewOrder | None = None  # in which the documents of the streams are brought


# Makes files, by workers or in this process; what is made is noted with the maker of files.
MakeFiles = Callable[[FileJob, list[FileTask], FileMaker], None]


def weight_of(settings: PlanSettings, task: FileTask) -> int:
    """About how many bytes a task writes."""
    return task.stop - task.start or task.tokens * itemsize(settings.layouts[task.layout])


def effort_of(settings: PlanSettings, task: FileTask) -> int:
    """About how long a task takes, beside others."""
    fmt = get_format(settings.layouts[task.layout].format)
    return (1 if task.kind else fmt.effort) * weight_of(settings, task)


def working_name(shard: ShardView) -> str:
    return f"{shard.layout.format}-tokens-{shard.split}-{shard.number:06d}"


def token_file_name(shard: ShardView, workspace: WorkArea) -> str:
    """The name under which a token file is made."""
    path = shard.settings.folder_of(shard.layout) + shard.path
    return workspace.name_of(working_name(shard), path)


def tasks_of(shard: ShardView, stream: int, workspace: WorkArea) -> list[FileTask]:
    """The tasks that make a token file. Only a plain format's is cut, in a folder: where every byte
    of it goes is known before the bytes before it are made."""
    layout, fmt = shard.layout, get_format(shard.layout.format)
    whole = FileTask(
        token_file_name(shard, workspace),
        shard.settings.layouts.index(layout),
        stream,
        shard.split,
        shard.number,
        shard.of,
        shard.first_token,
        shard.tokens,
        shard.first_document,
        shard.documents,
    )
    size = fmt.header_bytes(layout) + shard.tokens * itemsize(layout)
    if fmt.write is not None or size <= RANGE_BYTES or not workspace.has_places:
        return [whole]
    return [
        msgspec.structs.replace(whole, start=at, stop=min(at + RANGE_BYTES, size))
        for at in range(0, size, RANGE_BYTES)
    ]


def range_of(shard: ShardView, start: int, stop: int) -> Generator[Any, None, None]:
    """Bytes [start, stop) of a plain format's token file."""
    layout, size = shard.layout, itemsize(shard.layout)
    header = get_format(layout.format).header(layout, shard.tokens)
    yield header[start:stop]
    start, stop = max(0, start - len(header)), stop - len(header)
    for first in range(start // size, -(-stop // size), BLOCK_TOKENS):
        last = min(first + BLOCK_TOKENS, -(-stop // size))
        tokens = shard.stream.read(shard.first_token + first, shard.first_token + last)
        content = tokens.view("u1")
        yield content[max(0, start - first * size) : stop - first * size]


class FileWorker:
    """Makes files; the same in a worker process and in the caller's."""

    def __init__(
        self, job: FileJob, source: Store | None = None, files: JobFiles | None = None
    ) -> None:
        """`source`, `files`: where only this process can open them."""
        self.job = job
        workspace = open_workspace(job.output)
        self.files = files or workspace.open_files()
        if source is None and job.units:
            source = workspace.grown_files(self.files, job.units)
        self._store = source or store_of(job.source)
        self._stream = functools.lru_cache(maxsize=None)(self._open)

    def _open(self, layout: int, stream: int) -> ReframedStream:
        stored = FileStream(self._store, self.job.streams[stream])
        return ReframedStream(stored, self.job.settings, self.job.settings.layouts[layout])

    @functools.cached_property
    def _reorderer(self) -> Reorderer:
        def stored(stream: int) -> FileStream:
            return FileStream(self._store, self.job.streams[stream])

        assert self.job.order is not None
        opened = functools.lru_cache(maxsize=None)(stored)
        return Reorderer(self.job.order, opened, self._store, self.files)

    def _buffers(self, task: FileTask) -> Iterable[Any]:
        if task.kind:
            return self._reorderer.buffers(task)
        shard = ShardView(
            self._stream(task.layout, task.stream),
            task.split,
            task.number,
            task.of,
            task.first_token,
            task.tokens,
            task.first_document,
            task.documents,
        )
        return range_of(shard, task.start, task.stop) if task.stop else tokens_of(shard)

    def make(
        self, task: FileTask, on_piece: Callable[[int], None]
    ) -> tuple[list[tuple[int, int]], Info]:
        """Make it and sync it; returns its pieces and what its format notes of it. `on_piece` is
        told the size of each piece before it is written."""
        start = task.start if task.stop else None
        size, buffers = (
            weight_of(self.job.settings, task),
            BufferSource(lambda: self._buffers(task)),
        )
        made = write_pieces(self.files, task.working, buffers, on_piece, start=start, size=size)
        self.files.sync(task.working)
        self.files.sync_names("")
        return made

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.files.close()
