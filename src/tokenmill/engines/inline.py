"""`--workers 0`: everything in this process, in order. For debuggers and notebooks."""

from __future__ import annotations

import contextlib
import time

from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.run import EncodingRun
from tokenmill.engines.unit import EncodedUnit, UnitWorker

WAIT_SECONDS = 0.05


def run_inline(run: EncodingRun) -> None:
    worker = UnitWorker(run.job)
    run.snapshot.workers = 1
    with contextlib.closing(worker.files):
        while not run.finished:
            segment = run.next_segment()
            if segment is not None:
                _encode(run, worker, segment)
            else:
                _place(run, worker)
                run.keep_up()
                if not run.finished:  # the next input is being downloaded
                    time.sleep(WAIT_SECONDS)
            run.report()
    run.stats.update(worker.session.stats)


def _encode(run: EncodingRun, worker: UnitWorker, segment: SegmentProgress) -> None:
    for encoded in worker.encode_segment(segment.work, lambda _: run.check_interrupt()):
        run.frontier.encoded(encoded.summary)
        _place(run, worker, encoded)
        run.books.sync_if_due()
        if run.frontier.done:
            return


def _place(run: EncodingRun, worker: UnitWorker, encoded: EncodedUnit | None = None) -> None:
    """Units are encoded in order: the one that is ready, if any, is the one just encoded."""
    for unit, before in run.frontier.ready():
        if encoded is None or encoded.summary.unit != unit:
            raise RuntimeError(f"{unit} is ready, and was not the one just encoded")
        run.written(worker.place(encoded, before))
