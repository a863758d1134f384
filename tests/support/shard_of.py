"""A few documents as a shard of any format, without a disk: for golden bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tokenmill.formats import get_format
from tokenmill.output.file_maker import digested, made_file
from tokenmill.planning.options import Options, plan_settings
from tokenmill.settings import PlanSettings
from tokenmill.tokens.reframe import ReframedStream
from tokenmill.tokens.shards import ShardView, tokens_of

# Three documents with their separators; where those stand is not asked.
GOLDEN = ([50256, 1, 2], [50256, 3], [50256, 4, 5, 6])


class InMemory:
    """A stream that is an array (`reframe.StoredStream`)."""

    name = "train"

    def __init__(self, documents: Sequence[Sequence[int]], settings: PlanSettings) -> None:
        self.settings, self.layout = settings, settings.first
        self.array = np.array([t for d in documents for t in d], self.layout.dtype)
        self.all_ends = np.cumsum([len(d) for d in documents], dtype=np.int64)
        self.tokens, self.documents = len(self.array), len(documents)

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        return self.array[start:stop]

    def ends_of(self, first: int, stop: int) -> np.ndarray[Any, Any]:
        return self.all_ends[first:stop]

    def origins_of(self, first: int, stop: int) -> Any:
        rows = np.arange(first, stop)
        return ["/data/a.jsonl.gz"], np.zeros_like(rows), rows


def settings_for(format: str, **options: Any) -> PlanSettings:
    return plan_settings(Options(format=format, name="x", **options), "out")


def shard_of(format: str, documents: Sequence[Sequence[int]] = GOLDEN, **options: Any) -> ShardView:
    settings = settings_for(format, **options)
    stored = InMemory(documents, settings)
    stream = ReframedStream(stored, settings, settings.first)
    return ShardView(stream, "train", 0, 1, 0, stored.tokens, 0, stored.documents)


def files_of(shard: ShardView) -> dict[str, bytes]:
    """Every file that a format makes of one shard."""
    fmt = get_format(shard.layout.format)
    parts, info = [], {}
    buffers = tokens_of(shard)
    while True:
        try:
            parts.append(bytes(memoryview(next(buffers)).cast("B")))
        except StopIteration as stop:
            info = stop.value
            break
    content = b"".join(parts)
    files = {shard.path: content}
    for path, more in fmt.sidecars(shard):
        files[path] = b"".join(bytes(memoryview(part).cast("B")) for part in more)
    info = msgspec.json.decode(msgspec.json.encode(info or {}))
    made = made_file("", [digested(content)], info)
    shards = {shard.split: [(shard, made)]}
    return files | dict(fmt.whole(shard.settings, shard.layout, "f" * 32, shards))
