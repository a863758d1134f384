"""What an actor is asked about input files, and its answers: plain data both ways.

An actor answers beside the work of its worker process, in threads of its own. So the driver opens
no input file, and reads no footer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokenmill.errors import TokenmillError, from_wire
from tokenmill.inputs.download import Download, fetch
from tokenmill.inputs.kinds import refuse_changed, segments_of
from tokenmill.inputs.opening.identify import InputFile, at_hand, identify
from tokenmill.inputs.remote.hub import quiet_hub
from tokenmill.inputs.source import Source
from tokenmill.output.prepared.known import refuse_surely_unmet
from tokenmill.planning.make import Proposal
from tokenmill.settings import Reading

Item = TypeVar("Item")


class _Request(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Identify(_Request, frozen=True):
    """Each file as a source."""

    files: list[InputFile]


class Cut(_Request, frozen=True):
    """The segments of each source."""

    sources: list[Source]
    reading: Reading


class CompareSources(_Request, frozen=True):
    """Is each source what it was when planned?"""

    sources: list[Source]


class CheckMixture(_Request, frozen=True):
    """Do inputs say themselves that the mixture cannot be met?"""

    prepared: Proposal


class Fetch(_Request, frozen=True):
    """Download a remote source into a folder that all nodes see. Two outcomes: its path, and the
    source as it is there."""

    source: Source
    folder: str
    reading: Reading


Request = Identify | Cut | CompareSources | CheckMixture | Fetch


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What was found out about one item of a request, or the error."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    error: list[str] = []

    def read(self, kind: type[Item]) -> Item:
        if self.error:
            raise from_wire(self.error)
        return msgspec.msgpack.decode(self.value, type=kind)


encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Request] = msgspec.msgpack.Decoder(Request).decode
decode_outcomes: Callable[[bytes], list[Outcome]] = msgspec.msgpack.Decoder(list[Outcome]).decode


def answer(content: bytes) -> bytes:
    """Carry out a request: an outcome for each of its items, in order."""
    request = _decode(content)
    match request:
        case Identify(files):
            return encode(_each(files, identify))
        case Cut(sources, reading):
            return encode(_each(sources, lambda source: list(segments_of(source, reading))))
        case CompareSources(sources):
            return encode(_each(sources, refuse_changed))
        case CheckMixture(prepared):
            return encode(_each([prepared], refuse_surely_unmet))
        case Fetch():
            return encode(_fetch(request))


def _fetch(request: Fetch) -> list[Outcome]:
    source, reading = request.source, request.reading
    assert source.remote is not None
    flow = Download(source.remote, threading.Event(), lambda _: None)
    with quiet_hub():
        found = _each([flow], lambda one: fetch(one, Path(request.folder), shared=True))
    if found[0].error:
        return found
    return found + _each([found[0].read(str)], lambda path: at_hand(source, path, reading))


def _each(items: Iterable[Item], action: Callable[[Item], Any]) -> list[Outcome]:
    outcomes = []
    for item in items:
        try:
            outcomes.append(Outcome(msgspec.Raw(encode(action(item)))))
        except TokenmillError as error:
            outcomes.append(Outcome(error=error.to_wire()))
    return outcomes
