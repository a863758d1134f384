"""What crosses a process boundary: small plain data, msgpack, nothing pickled."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.engines.encoded import UnitSummary
from tokenmill.engines.unit import Doing
from tokenmill.manifest import State, UnitRecord
from tokenmill.plan import Segment, UnitId
from tokenmill.sources import Source


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


# coordinator to worker
class Work(_Message, frozen=True):
    source: Source
    segment: Segment
    skip: list[int]
    aside: dict[int, str]


class Probe(_Message, frozen=True):
    """Try the rows [first_row, stop_row) one by one: does one of them end the worker?"""

    source: Source
    segment: Segment
    part: int
    first_row: int
    stop_row: int
    check: bool  # each of them with the reference encoder too
    aside: dict[int, str]


class Place(_Message, frozen=True):
    unit: UnitId
    before: State


class Stop(_Message, frozen=True):
    pass


# worker to coordinator
class Ready(_Message, frozen=True):
    """The encoder is open; nothing held."""


class Progress(_Message, frozen=True):
    doing: Doing


class Encoded(_Message, frozen=True):
    summary: UnitSummary


class Written(_Message, frozen=True):
    record: UnitRecord
    stats: dict[str, int]  # of the worker so far: it may be stopped after its last unit


class SegmentDone(_Message, frozen=True):
    stats: dict[str, int]


class Probed(_Message, frozen=True):
    """None of the rows did."""


class Failed(_Message, frozen=True):
    error: list[str]
    placing: bool = False  # while a unit was written, not while a segment was encoded


ToWorker = Work | Probe | Place | Stop
FromWorker = Ready | Progress | Encoded | Written | SegmentDone | Probed | Failed

encode = msgspec.msgpack.Encoder().encode
_to_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromWorker)


def decode_to_worker(content: bytes) -> ToWorker:
    message: ToWorker = _to_worker.decode(content)
    return message


def decode_from_worker(content: bytes) -> FromWorker:
    message: FromWorker = _from_worker.decode(content)
    return message
