"""A worker process: encodes the segments it is given, writes units to the places it is given.

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

from tokenmill.engines import messages
from tokenmill.engines.unit import EncodedUnit, UnitWorker, WorkerJob
from tokenmill.errors import TokenmillError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.workspace import Workspace
from tokenmill.settings import EncoderChoice
from tokenmill.system import failpoints
from tokenmill.system.disk import remove_file
from tokenmill.system.interrupts import forget_signals
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.awkward_stand_in import use_stand_in
from tokenmill.tokenizer.encoders.exact import ExactEncoder

SPILL_SHARE = 4  # units that wait for their place may take 1/4 of this worker's memory
PIPE_CLOSED = (EOFError, BrokenPipeError, ConnectionResetError)  # the coordinator is gone
# Filled by `preload` in the fork server, before any worker exists: children share its memory.
_preloaded: dict[tuple[str, str, str], ExactEncoder] = {}


class _StopRequest(Exception):  # noqa: N818 - not a fault
    pass


def run_worker(connection: Any, job: bytes, inherited: list[Any]) -> None:
    for other in inherited:  # under fork: or a dead coordinator's pipes would never close
        other.close()
    use_stand_in()
    forget_signals()
    _die_with_parent()
    failpoints.enter("worker")
    with contextlib.suppress(*PIPE_CLOSED, _StopRequest):
        _Loop(connection, msgspec.msgpack.decode(job, type=WorkerJob)).run()
    # No clean-up of other people's state: a forked child must not run the parent's exit handlers.
    os._exit(0)


class _Loop:
    def __init__(self, connection: Connection, job: WorkerJob) -> None:
        self.connection = connection
        self.job = job
        self.held: dict[UnitId, EncodedUnit] = {}
        self.spill = Workspace(job.output).spill
        self.worker: UnitWorker

    def run(self) -> None:
        if not self._guarded(self._open):
            return
        self._send(messages.Ready())
        while True:
            self._handle(messages.decode_to_worker(self.connection.recv_bytes()))

    def _open(self) -> None:
        encoder = _preloaded.get(_key(self.job.encoding, self.job.run.encoder))
        self.worker = UnitWorker(self.job, encoder)
        self.worker.spill_held = self._spill_held

    def _handle(self, message: messages.ToWorker) -> None:
        match message:
            case messages.EncodeTask():
                if self._guarded(self._work, message):
                    self._send(messages.SegmentDone(self.worker.session.stats))
            case messages.TryRows():
                if self._guarded(self.worker.try_rows, message, self._progress):
                    self._send(messages.RowsSurvived())
            case messages.Place():
                self._guarded(self._place, message, placing=True)
            case messages.Stop():
                raise _StopRequest

    def _work(self, work: messages.EncodeTask) -> None:
        for encoded in self.worker.encode_segment(work, self._progress):
            self.held[encoded.summary.unit] = encoded
            held_bytes = sum(unit.held_bytes for unit in self.held.values())
            if held_bytes > self.worker.memory // SPILL_SHARE:
                encoded.spill(self.spill)
            self._send(encoded.summary)
            self._drain()

    def _spill_held(self) -> None:
        for encoded in self.held.values():
            encoded.spill(self.spill)

    def _progress(self, doing: messages.Activity) -> None:
        self._drain()  # first: then what is announced is really next
        self._send(doing)

    def _place(self, place: messages.Place) -> None:
        self._send(messages.Activity("write", place.unit.part))
        encoded = self.held.pop(place.unit)
        record = self.worker.place(encoded, place.before)
        if encoded.spilled is not None:
            remove_file(encoded.spilled)
        self._send(messages.UnitWritten(record, self.worker.session.stats))

    def _drain(self) -> None:
        """Write what has got its place meanwhile."""
        while self.connection.poll(0):
            self._handle(messages.decode_to_worker(self.connection.recv_bytes()))

    def _send(self, message: messages.FromWorker) -> None:
        self.connection.send_bytes(messages.encode(message))

    def _guarded(self, action: Any, *args: Any, placing: bool = False) -> bool:
        """Run a step; every error in it is sent to the coordinator as plain text."""
        try:
            action(*args)
        except (*PIPE_CLOSED, _StopRequest, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in native code is no Exception
            told = error if isinstance(error, TokenmillError) else _bug(error)
            self._send(messages.Failure(told.to_wire(), placing))
            return False
        return True


def _bug(error: BaseException) -> TokenmillError:
    detail = "".join(traceback.format_exception(error)[-3:]).strip().splitlines()
    return TokenmillError(
        f"in a worker: {type(error).__name__}: {error}",
        hint="this is a bug of tokenmill",
        lines=[line.removeprefix("  ") for line in detail],
    )


def preload(encoding: Encoding, encoder: EncoderChoice, reference: bool) -> None:
    """Open an encoder in the fork server, so that its children have it at once."""
    opened = ExactEncoder(encoding, encoder)
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
