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
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, Literal

import msgspec

from tokenmill.engines import messages
from tokenmill.engines.loop import StopRequest, WorkerLoop
from tokenmill.engines.order.order_worker import OrderJob, OrderWorker
from tokenmill.engines.placing.place_worker import PlaceJob, PlaceWorker
from tokenmill.engines.run import Job
from tokenmill.engines.unit import UnitWorker, WorkerJob
from tokenmill.errors import TokenmillError
from tokenmill.inputs.segments import UnitId
from tokenmill.output.durability import WorkerSync
from tokenmill.output.file_tasks import FileJob, FileWorker
from tokenmill.output.objects.opening import open_workspace
from tokenmill.settings import EncoderChoice
from tokenmill.system import failpoints
from tokenmill.system.allocator import keep_freed_memory, without_huge_pages
from tokenmill.system.buckets.environment import set_bucket_variables
from tokenmill.system.interrupts import forget_signals
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.awkward_stand_in import use_stand_in
from tokenmill.tokenizer.encoders.exact import ExactEncoder

# Filled by `preload` in the fork server, before any worker exists: children share its memory.
_preloaded: dict[tuple[str, str, str], ExactEncoder] = {}
# Made in the fork server too: it looks at the types of every field.
_decode_job: Callable[[bytes], Job] = msgspec.msgpack.Decoder(Job).decode


class PipeChannel:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def poll(self) -> bool:
        with _closing_noticed():
            return self.connection.poll(0)

    def receive(self) -> bytes:
        with _closing_noticed():
            return self.connection.recv_bytes()

    def send(self, message: bytes) -> None:
        with _closing_noticed():
            self.connection.send_bytes(message)


@contextlib.contextmanager
def _closing_noticed() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise messages.ChannelClosed from None


def run_worker(
    connection: Any, job: bytes, inherited: list[Any], variables: dict[str, str]
) -> None:
    for other in inherited:  # under fork: or a dead coordinator's pipes would never close
        other.close()
    set_bucket_variables(variables)
    keep_freed_memory()
    without_huge_pages()
    use_stand_in()
    forget_signals()
    _die_with_parent()
    failpoints.enter("worker")
    with contextlib.suppress(messages.ChannelClosed):
        task = _decode_job(job)
        channel = PipeChannel(connection)
        (_FileLoop(channel, task) if isinstance(task, FileJob) else _Loop(channel, task)).begin()
    # No clean-up of other people's state: a forked child must not run the parent's exit handlers.
    os._exit(0)


class _Loop(WorkerLoop):
    """In a process of its own: every error is sent to the coordinator as plain text."""

    def __init__(self, channel: messages.Channel, job: WorkerJob | OrderJob | PlaceJob) -> None:
        workspace = open_workspace(job.output, job.run.scratch)
        super().__init__(channel, workspace.spill)
        self.job = job
        self.after_writing = WorkerSync(
            workspace, job.run, self._report_sync, self._report_failed_sync
        ).written

    def begin(self) -> None:
        try:
            worker = self._open()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._report(error)
        else:
            self.run(worker)

    def _open(self) -> UnitWorker | OrderWorker | PlaceWorker | FileWorker:
        if isinstance(self.job, OrderJob):
            return OrderWorker(self.job)
        if isinstance(self.job, PlaceJob):
            return PlaceWorker(self.job)
        encoder = _preloaded.get(_key(self.job.encoding, self.job.run.encoder))
        return UnitWorker(self.job, encoder)

    def carry_out(self, order: messages.ToWorker) -> None:
        try:
            super().carry_out(order)
        except (messages.ChannelClosed, StopRequest, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in native code is no Exception
            self._report(error, "place" if isinstance(order, messages.Place) else "task")

    def _report_sync(self, units: list[UnitId]) -> None:
        self.send(messages.UnitsSynced(units))

    def _report_failed_sync(self, error: BaseException) -> None:
        with contextlib.suppress(messages.ChannelClosed):
            if not isinstance(error, messages.ChannelClosed):
                self._report(error, "sync")

    def _report(
        self, error: BaseException, step: Literal["task", "place", "sync"] = "task"
    ) -> None:
        told = error if isinstance(error, TokenmillError) else _bug(error)
        self.send(messages.Failure(told.to_wire(), step))


class _FileLoop(_Loop):
    """Of a worker that makes files, and opens no encoder."""

    def __init__(self, channel: messages.Channel, job: FileJob) -> None:
        WorkerLoop.__init__(self, channel, None)
        self._file_job = job

    def _open(self) -> FileWorker:
        return FileWorker(self._file_job)


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
