"""What crosses a process boundary: small plain data, msgpack, nothing pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.file_maker import FileTask
from tokenmill.output.journal import UnitRecord
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.placement import StreamCounts


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# Coordinator to worker.
class EncodeTask(_Message, frozen=True):
    """Encode a segment into units, without the parts in `skip`."""

    source: Source
    segment: Segment
    skip: list[int]
    aside: dict[int, str]  # rows to quarantine because they end their worker, and how


class PlaceUnits(EncodeTask, frozen=True):
    """Find out what the units of a segment, which are written already, are in their places."""

    records: list[UnitRecord]


class TryRows(_Message, frozen=True):
    """Encode the rows [first_row, stop_row) one by one: does one of them end the worker?"""

    work: EncodeTask
    part: int
    first_row: int
    stop_row: int
    check: bool  # each of them with the reference encoder too


class MakeFile(_Message, frozen=True):
    """Make a file of the output, or a range of one."""

    file: FileTask


class Place(_Message, frozen=True):
    unit: UnitId
    before: State


class Stop(_Message, frozen=True):
    pass


# Worker to coordinator.
class Ready(_Message, frozen=True):
    """The encoder is open; nothing held."""


class Activity(_Message, frozen=True):
    """What the worker is about to do, sent before: so that it is known if the worker dies."""

    step: Literal["read", "encode", "write", "make"]
    part: int
    first_row: int = 0  # of the batch, as the batches of its segment count
    rows: int = 0
    size: int = 0


class UnitSummary(_Message, frozen=True):
    """A unit is encoded; this is enough to give it its place."""

    unit: UnitId
    last: bool
    rows_before: int  # of its segment, in the units before it
    lines: int
    counts: Counts
    streams: tuple[StreamCounts, ...]


class UnitWritten(_Message, frozen=True):
    record: UnitRecord
    stats: dict[str, int]  # of the worker so far: it may be ended after its last unit


class UnitsSynced(_Message, frozen=True):
    """The worker has synced the files of these units, which it wrote."""

    units: list[UnitId]


class TaskDone(_Message, frozen=True):
    """The segment is encoded; or none of the rows ended the worker."""

    stats: dict[str, int]


class FileMade(_Message, frozen=True):
    """The file is made, and its bytes are durable."""

    pieces: list[tuple[int, int]]  # length and digest of each
    info: dict[str, Any]  # what its format notes of it


class Failure(_Message, frozen=True):
    error: list[str]
    step: Literal["task", "place", "sync"] = "task"  # what failed


Task = EncodeTask | PlaceUnits | TryRows | MakeFile
ToWorker = Task | Place | Stop
FromWorker = (
    Ready | Activity | UnitSummary | UnitWritten | UnitsSynced | TaskDone | FileMade | Failure
)


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A message of a worker, with its number: a message that arrives twice is recognised."""

    number: int  # 1, 2, 3 ... for each worker
    message: FromWorker


class ChannelClosed(Exception):  # noqa: N818 - not a fault
    """The engine is gone."""


class Channel(Protocol):
    """How a worker talks to the engine, wherever the engine is. Messages arrive in order."""

    def poll(self) -> bool:
        """Whether a message is there."""

    def receive(self) -> bytes:
        """The next message; waits for it."""

    def send(self, message: bytes) -> None: ...


encode = msgspec.msgpack.Encoder().encode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
decode_report: Callable[[bytes], Report] = msgspec.msgpack.Decoder(Report).decode
