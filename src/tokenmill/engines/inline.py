"""`--workers 0`: everything in this process, in order. For debuggers and notebooks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tokenmill.engines.books import Books
from tokenmill.engines.frontier import SegmentJob
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.engines.unit import Doing, Job, UnitWorker
from tokenmill.plan import Plan

WAIT_SECONDS = 0.05


def run_inline(
    plan: Plan,
    job: Job,
    books: Books,
    jobs: Iterator[SegmentJob | None],
    observer: Observer,
    snapshot: Snapshot,
    check_interrupt: Callable[[], None],
) -> dict[str, int]:
    worker = UnitWorker(job)
    with contextlib.closing(worker.files):
        _run(worker, plan, books, jobs, observer, snapshot, check_interrupt)
    return {
        "reference_documents": worker.stats.reference_documents,
        "reference_failures": worker.stats.reference_failures,
        "checked_documents": worker.stats.checked_documents,
        "checked_bytes": worker.stats.checked_bytes,
        "reopened": worker.reopened,
    }


def _run(
    worker: UnitWorker,
    plan: Plan,
    books: Books,
    jobs: Iterator[SegmentJob | None],
    observer: Observer,
    snapshot: Snapshot,
    check_interrupt: Callable[[], None],
) -> None:
    snapshot.workers = 1
    for segment_job in jobs:
        if segment_job is None:  # the next input is on its way
            check_interrupt()
            books.sync_if_due()
            observer.update(snapshot)
            time.sleep(WAIT_SECONDS)
            continue
        books.frontier.add_segment(segment_job)
        segment = segment_job.segment
        if not segment_job.complete:
            source = segment_job.source

            def progress(doing: Doing) -> None:
                check_interrupt()

            for encoded in worker.encode_segment(
                source, segment, segment_job.written, segment_job.aside, progress
            ):
                list(books.frontier.ready())  # pass what is durable in front of it
                books.frontier.encoded(encoded.summary)
                for _, before in books.frontier.ready():
                    record = worker.place(encoded, before)
                    books.written(record)
                    segment_job.note_written(record.unit, record.last)
                    snapshot.add_unit(record.counts)
                books.sync_if_due()
                if books.frontier.done:
                    break
        list(books.frontier.ready())
        snapshot.bytes_done += segment.size
        observer.update(snapshot)
        if books.frontier.done:
            break
