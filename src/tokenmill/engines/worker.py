"""A worker process: receives segments, encodes them, writes units where it is told.

It opens its own encoder once and keeps it. It ignores Ctrl-C (the coordinator decides) and ends
when the coordinator's end of the pipe closes, however the coordinator ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from tokenmill import failpoints
from tokenmill.config import EncoderChoice
from tokenmill.encoders import ExactEncoder
from tokenmill.encoders.arrays import use_stand_in
from tokenmill.engines import messages
from tokenmill.engines.encoded import EncodedUnit, spill_path
from tokenmill.engines.messages import (
    Encoded,
    Failed,
    Place,
    Probe,
    Probed,
    Progress,
    Ready,
    SegmentDone,
    Work,
    Written,
)
from tokenmill.engines.unit import Doing, Job, UnitWorker
from tokenmill.errors import TokenmillError
from tokenmill.interrupts import forget_signals
from tokenmill.plan import UnitId
from tokenmill.storage import Workspace
from tokenmill.tokenizer import Encoding

SPILL_SHARE = 4  # of this worker's memory, units that wait for their place may take one part
# Filled by `preload` in the fork server, before any worker exists: children share its memory.
_preloaded: dict[tuple[str, str, str], ExactEncoder] = {}


class _Stopped(Exception):  # noqa: N818 - not a fault
    pass


def main(connection: Any, job: bytes, inherited: list[Any]) -> None:
    """Entry point of a worker process."""
    for other in inherited:  # under fork: or a dead coordinator's pipes would never close
        other.close()
    use_stand_in()
    forget_signals()
    _die_with_parent()
    failpoints.enter("worker")
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, _Stopped):
        _Loop(connection, msgspec.msgpack.decode(job, type=Job)).run()
    # No clean-up of other people's state: a forked child must not run the parent's exit handlers.
    os._exit(0)


class _Loop:
    def __init__(self, connection: Connection, job: Job) -> None:
        self.connection = connection
        self.job = job
        self.held: dict[UnitId, EncodedUnit] = {}
        self.spill = Workspace(job.output).spill
        self.worker: UnitWorker

    def run(self) -> None:
        if not self._guarded(self._open):
            return
        self._send(Ready())
        while True:
            self._handle(messages.decode_to_worker(self.connection.recv_bytes()))

    def _open(self) -> None:
        encoder = _preloaded.get(_key(self.job.encoding, self.job.encoder))
        if encoder is not None:
            encoder.use_gap(self.job.gap)
        self.worker = UnitWorker(self.job, encoder)
        self.worker.spill_held = self._spill_held

    def _handle(self, message: messages.ToWorker) -> None:
        match message:
            case Work():
                if self._guarded(self._work, message):
                    self._send(SegmentDone(self._stats()))
            case Probe():
                if self._guarded(self._probe, message):
                    self._send(Probed())
            case Place():
                self._guarded(self._place, message, placing=True)
            case _:
                raise _Stopped

    def _work(self, work: Work) -> None:
        for encoded in self.worker.encode_segment(
            work.source, work.segment, work.skip, work.aside, self._progress
        ):
            self.held[encoded.summary.unit] = encoded
            if sum(unit.held_bytes for unit in self.held.values()) > self.job.memory // SPILL_SHARE:
                self._spill(encoded)
            self._send(Encoded(encoded.summary))
            self._drain()

    def _spill(self, encoded: EncodedUnit) -> None:
        encoded.spill(spill_path(self.spill, encoded.summary.unit, os.getpid()))

    def _spill_held(self) -> None:
        for encoded in self.held.values():
            self._spill(encoded)

    def _probe(self, probe: Probe) -> None:
        rows = range(probe.first_row, probe.stop_row)
        part = probe.part
        for batch in self.worker.read(
            probe.source, probe.segment, part, probe.aside, self._progress
        ):
            if batch.first_row >= probe.stop_row:
                return
            self.worker.try_rows(probe.source, part, batch, rows, probe.check, self._progress)

    def _progress(self, doing: Doing) -> None:
        self._drain()  # first: what is said to be under way is then really next
        self._send(Progress(doing))

    def _place(self, place: Place) -> None:
        self._send(Progress(Doing("write", place.unit.part)))
        encoded = self.held.pop(place.unit)
        record = self.worker.place(encoded, place.before)
        encoded.forget()
        self._send(Written(record, self._stats()))

    def _stats(self) -> dict[str, int]:
        return {**msgspec.to_builtins(self.worker.stats), "reopened": self.worker.reopened}

    def _drain(self) -> None:
        """Write what has got its place meanwhile."""
        while self.connection.poll(0):
            self._handle(messages.decode_to_worker(self.connection.recv_bytes()))

    def _send(self, message: messages.FromWorker) -> None:
        self.connection.send_bytes(messages.encode(message))

    def _guarded(self, action: Any, *args: Any, placing: bool = False) -> bool:
        """Run a step; whatever goes wrong in it reaches the coordinator as plain text."""
        try:
            action(*args)
        except (_Stopped, EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except TokenmillError as error:
            self._send(Failed(error.to_wire(), placing))
            return False
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in native code is no Exception
            detail = "".join(traceback.format_exception(error)[-3:]).strip().splitlines()
            told = TokenmillError(
                f"in a worker: {type(error).__name__}: {error}",
                hint="this is a bug of tokenmill",
                lines=[line.removeprefix("  ") for line in detail],
            )
            self._send(Failed(told.to_wire(), placing))
            return False
        return True


def preload(encoding: Encoding, encoder: EncoderChoice, reference: bool) -> None:
    """Open an encoder in the fork server, so that its children have it at once."""
    opened = ExactEncoder(encoding, encoder, ())
    if reference:
        _ = opened.reference
    _preloaded[_key(encoding, encoder)] = opened


def _key(encoding: Encoding, encoder: str) -> tuple[str, str, str]:
    """Path included: what was loaded was read from there, and its SHA-256 compared."""
    return encoding.path or encoding.name, encoding.sha256 + encoding.pattern, encoder


def _die_with_parent() -> None:
    """On Linux, ask the kernel to end this process when its parent ends.

    A fork server ends when the last holder of a pipe does. We are to end with it, not it with us:
    a worker that is stopped would keep both for ever.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None and server._forkserver_pid is None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
