"""What a worker does: it carries out orders from a channel, and answers through it.

The channel may be a pipe to another process, or the engine itself (`--workers 0`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tokenmill.engines import messages
from tokenmill.engines.messages import Channel
from tokenmill.engines.order.order_worker import OrderWorker
from tokenmill.engines.placing.place_worker import PlaceWorker
from tokenmill.engines.unit import UnitWorker
from tokenmill.engines.writing.encoded_unit import EncodedUnit
from tokenmill.inputs.segments import UnitId
from tokenmill.output.file_tasks import FileWorker
from tokenmill.output.journal import UnitRecord
from tokenmill.system.spill import SpillFolder

SPILL_SHARE = 4  # units that wait for their place may take 1/4 of this worker's memory


class StopRequest(Exception):  # noqa: N818 - not a fault
    pass


class WorkerLoop:
    def __init__(self, channel: Channel, spill: SpillFolder | None) -> None:
        """`spill`: the folder for units that wait; None: every unit is placed at once."""
        self.channel, self.spill = channel, spill
        self.held: dict[UnitId, EncodedUnit] = {}
        self._sent, self._sending = 0, threading.Lock()
        self.worker: UnitWorker | OrderWorker | PlaceWorker
        self.maker: FileWorker
        self.after_writing: Callable[[UnitRecord], None] = lambda record: None

    def run(self, worker: UnitWorker | OrderWorker | PlaceWorker | FileWorker) -> None:
        """Until the engine says stop."""
        if isinstance(worker, FileWorker):
            self.maker = worker
        else:
            self.worker = worker
            worker.spill_held = self._spill_held
        self.send(messages.Ready())
        with contextlib.suppress(StopRequest):
            while True:
                self.carry_out(messages.decode_to_worker(self.channel.receive()))

    def carry_out(self, order: messages.ToWorker) -> None:
        match order:
            case messages.EncodeTask():
                self._encode(order)
                self.send(messages.TaskDone(self.worker.session.stats))
            case messages.TryRows() if isinstance(self.worker, UnitWorker):
                self.worker.try_rows(order, self._progress)
                self.send(messages.TaskDone(self.worker.session.stats))
            case messages.MakeFile():
                self.send(messages.FileMade(*self.maker.make(order.file, self._making)))
            case messages.Place():
                self._place(order)
            case messages.Stop():
                raise StopRequest

    def _encode(self, work: messages.EncodeTask) -> None:
        for encoded in self.worker.encode_segment(work, self._progress):
            if isinstance(self.worker, UnitWorker) and self.worker.job.relative:
                self.send(messages.Activity("write", encoded.summary.unit.part))
                self._written(self.worker.write_relative(encoded))
                self._drain()
                continue
            self.held[encoded.summary.unit] = encoded
            held_bytes = sum(unit.held_bytes for unit in self.held.values())
            if self.spill is not None and held_bytes > self.worker.memory // SPILL_SHARE:
                encoded.spill(self.spill)
            self.send(encoded.summary)
            self._drain()

    def _spill_held(self) -> None:
        for encoded in self.held.values():
            if self.spill is not None:
                encoded.spill(self.spill)

    def _progress(self, doing: messages.Activity) -> None:
        self._drain()  # first: then what is announced is really next
        self.send(doing)

    def _making(self, size: int) -> None:
        self._progress(messages.Activity("make", 0, size=size))

    def _place(self, place: messages.Place) -> None:
        self.send(messages.Activity("write", place.unit.part))
        encoded = self.held.pop(place.unit)
        record = self.worker.place(encoded, place.before)
        encoded.forget_spilled()
        self._written(record)

    def _written(self, record: UnitRecord) -> None:
        self.send(messages.UnitWritten(record, self.worker.session.stats))
        self.after_writing(record)

    def _drain(self) -> None:
        """Write what has got its place meanwhile."""
        while self.channel.poll():
            self.carry_out(messages.decode_to_worker(self.channel.receive()))

    def send(self, message: messages.FromWorker) -> None:
        with self._sending:  # a thread that syncs reports, too
            self._sent += 1
            self.channel.send(messages.encode(messages.Report(self._sent, message)))
