"""What a driver does for 100 TB in 6 million units with 1,000 workers: without the text.

Real: `Plan`, leases, `Dispatch`, messages (encoded and decoded), the log of records, opening them
again, places, the index and the manifest. Simulated: the workers. They report what workers would,
in the time that these would take. No token is written, and nothing is synced.

    python benchmarks/cluster_simulation.py                    # all steps, 6 million units
    python benchmarks/cluster_simulation.py --units 60000      # the same, smaller

Each step is a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill import finishing
from tokenmill.engines import messages
from tokenmill.engines.dispatch import Dispatch
from tokenmill.engines.frontier import SegmentProgress
from tokenmill.engines.hunt import WorkerEnd
from tokenmill.engines.messages import Activity, Report, TaskDone, UnitSummary, UnitWritten
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.placing.placing_run import PlacingRun
from tokenmill.formats.base import MadeFile
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output import commit as committing
from tokenmill.output.durability import UnitLog
from tokenmill.output.file_maker import PIECE_BYTES, FileMaker, FileTask
from tokenmill.output.file_tasks import FileJob
from tokenmill.output.finish.known_units import open_placed
from tokenmill.output.journal import PieceRecord, UnitRecord
from tokenmill.output.objects.part_job import bound_to
from tokenmill.output.objects.shared_folder import SharedFolder
from tokenmill.output.objects.units import object_name
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.recovery import binding, recover
from tokenmill.output.workspace import CUTS, JOURNAL, RECORDS, WORK
from tokenmill.planning.leases import leases_of
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.planning.plan import Plan
from tokenmill.planning.sorted_inputs import sorted_warnings, units_as_parts
from tokenmill.settings import RunSettings
from tokenmill.system import disk
from tokenmill.system.memory import fit_budget
from tokenmill.system.store import Store
from tokenmill.tokenizer.files import find_encoding
from tokenmill.tokens.counts import Counts, State
from tokenmill.tokens.placement import CutRule, NeedStarts, StreamCounts, StreamState
from tokenmill.tokens.splits import WorkingFile

UNIT_BYTES = 16_666_667  # 100 TB / 6 million
UNITS_OF_A_SOURCE = 64  # a file of 1 GB
SPEED = 60e6  # bytes of text per second and worker
TOKENS = 4_000_000  # of a unit
DOCUMENTS = 4_000
NODE = 16  # workers that die together
HEADER = 1024  # of a file of llm.c
BATCHES = 4  # that a worker announces for each unit
STEPS = ("plan", "encode", "resume", "finish", "files")


class NoSync:
    """The os module, but nothing waits for the disk."""

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name in ("fsync", "fdatasync") else getattr(os, name)


def make_the_plan(units: int) -> Plan:
    options = make_options({"format": "llmc", "shard_tokens": "1G", "val": "docs:10000"})
    settings = plan_settings(options, "out", find_encoding("gpt2", ""))
    count = -(-units // UNITS_OF_A_SOURCE)
    sources = tuple(
        Source(
            number=n,
            name=f"CC-MAIN-2024-{n % 100:02}/part_{n:06}.parquet",
            path=f"/shared/corpus/CC-MAIN-2024-{n % 100:02}/part_{n:06}.parquet",
            kind="parquet",
            size=UNIT_BYTES * UNITS_OF_A_SOURCE,
            fingerprint=f"xxh3-sampled:{n:032x}",
            mtime_ns=1_700_000_000_000_000_000 + n,
        )
        for n in range(count)
    )
    return Plan(settings=settings, sources=sources)


def segments_of(source: int) -> list[Segment]:
    return [Segment(source, k, k, k + 1, UNIT_BYTES) for k in range(UNITS_OF_A_SOURCE)]


def digest(*values: int) -> int:
    return hash((*values, 17)) & (1 << 64) - 1


def record_of(unit: UnitId, rng: random.Random) -> UnitRecord:
    """As a worker records a unit before its place is known."""
    tokens, documents = TOKENS + rng.randrange(-9999, 9999), DOCUMENTS + rng.randrange(-99, 99)
    counts = Counts(rows=documents, documents=documents, tokens=tokens, text_bytes=UNIT_BYTES)
    number = unit.source * UNITS_OF_A_SOURCE + unit.segment
    pieces = tuple(
        PieceRecord(f"all.{kind}", 0, size, digest(number, k))
        for k, (kind, size) in enumerate(
            (("tokens", tokens * 2), ("ends", documents * 8), ("runs", 24))
        )
    )
    nothing = State(streams=())
    return UnitRecord(
        unit, True, documents, counts, nothing, nothing, pieces,
        streams=(StreamCounts(tokens, documents, 1),),
    )  # fmt: skip


class Cluster:
    """Simulated workers, with a clock of their own, that report to a real `Dispatch`."""

    def __init__(self, dispatch: Dispatch, keep_up: Callable[[], None], workers: int) -> None:
        self.dispatch, self.keep_up, self.workers = dispatch, keep_up, workers
        self.rng = random.Random(1)
        self.clock, self.turn = 0.0, 0
        self.messages = 0
        self.agenda: list[tuple[float, int, int, Any]] = []
        self.reports: dict[int, int] = {}
        self.most = workers

    def send(self, worker: int, message: Any) -> None:
        """Through msgpack and back, as over a channel."""
        self.reports[worker] = number = self.reports[worker] + 1
        content = messages.encode(Report(number, message))
        self.dispatch.received(worker, messages.decode_report(content))
        self.messages += 1

    def join(self, worker: int) -> None:
        self.dispatch.joined(worker)
        self.reports[worker] = 0
        self.send(worker, messages.Ready())

    def hand_out(self) -> None:
        for worker, sent in self.dispatch.orders():
            order = messages.decode_to_worker(messages.encode(sent))
            self.messages += 1
            self.turn += 1
            seconds = UNIT_BYTES / SPEED * self.rng.uniform(0.7, 1.3)
            heapq.heappush(self.agenda, (self.clock + seconds, self.turn, worker, order))

    def run(self, work: Callable[[int, Any], None], die_at: int) -> dict[str, float]:
        """`die_at`: after so many tasks, a node is lost."""
        for worker in range(1, self.workers + 1):
            self.join(worker)
        self.hand_out()
        done, lost, gone = 0, 0, set[int]()
        ticks = 0.0
        while not self.dispatch.finished:
            self.clock, _, worker, order = heapq.heappop(self.agenda)
            if worker in gone:
                continue
            work(worker, order)
            done += 1
            self.hand_out()
            if done == die_at:
                lost = self._lose_a_node(gone)
            if self.clock > ticks:
                ticks = self.clock + 0.2
                self.keep_up()
        return {"simulated_seconds": round(self.clock, 1), "tasks_lost_with_a_node": lost}

    def _lose_a_node(self, gone: set[int]) -> int:
        node = sorted(self.dispatch.workers)[:NODE]
        busy = sum(self.dispatch.workers[one].task is not None for one in node)
        for worker in node:
            self.dispatch.died(worker, WorkerEnd("is gone", "lost", "was lost"))
            gone.add(worker)
        for _ in node:
            self.most += 1
            self.join(self.most)
        self.hand_out()
        return busy


def in_segments(plan: Plan) -> Iterator[SegmentProgress]:
    for source in plan.sources:
        for segment in segments_of(source.number):
            yield SegmentProgress(segment, source)


def step_plan(units: int, workspace: ObjectWorkspace, workers: int) -> dict[str, Any]:
    began = time.monotonic()
    plan = make_the_plan(units)
    made = time.monotonic()
    leases = sum(1 for _ in leases_of(plan.sources))
    leased = time.monotonic()
    fingerprint = plan.work_fingerprint
    content = msgspec.json.encode(binding(plan, workspace, {}))
    workspace.bind(content)
    bound = time.monotonic()
    folder = Path(workspace.where(CUTS))
    folder.mkdir(parents=True, exist_ok=True)
    for source in plan.sources:
        (folder / str(source.number)).write_bytes(msgspec.json.encode(segments_of(source.number)))
    return {
        "sources": len(plan.sources),
        "leases": leases,
        "seconds_of_making_leases": round(leased - made, 2),
        "seconds_of_binding": round(bound - leased, 2),
        "seconds_of_making_sources": round(made - began, 2),
        "plan_json_mb": round(len(content) / 1e6, 1),
        "fingerprint": fingerprint[:8],
    }


def step_encode(units: int, workspace: ObjectWorkspace, workers: int) -> dict[str, Any]:
    plan, settings = make_the_plan(units), RunSettings(workers=workers, memory=1 << 31)
    books = UnitLog(plan, settings, workspace, [], 0, {}, RECORDS)
    log = EventLog(Observer(), plan.input_bytes)
    dispatch = Dispatch(
        plan.settings, settings, in_segments(plan), (), books,
        on_event=log.add, ordered=False,
    )  # fmt: skip
    cluster = Cluster(dispatch, books.sync_if_due, workers)

    def work(worker: int, order: messages.EncodeTask) -> None:
        part = UnitId(order.segment.source, order.segment.number, 0)
        cluster.send(worker, Activity("read", 0))
        for batch in range(BATCHES):
            cluster.send(worker, Activity("encode", 0, batch * 1000, 1000, UNIT_BYTES // BATCHES))
        cluster.send(worker, Activity("write", 0))
        cluster.send(worker, UnitWritten(record_of(part, cluster.rng), {"fast": 1}))
        cluster.send(worker, messages.UnitsSynced([part]))
        cluster.send(worker, TaskDone({"fast": 1}))

    began = time.monotonic()
    told = cluster.run(work, units // 2)
    books.sync_now()
    seconds = time.monotonic() - began
    alone = UNIT_BYTES * units / SPEED / workers
    files = list(Path(workspace.where(f"{WORK}/{RECORDS}")).iterdir())
    books.close()
    return {
        **told,
        "seconds_lost_to_a_node": round(told["tasks_lost_with_a_node"] * UNIT_BYTES / SPEED, 1),
        "simulated_seconds_without_waiting": round(alone, 1),
        "driver_seconds": round(seconds, 1),
        "messages": cluster.messages,
        "messages_per_second": round(cluster.messages / seconds),
        "units_per_second": round(units / seconds),
        "units_per_second_needed": round(workers * SPEED / UNIT_BYTES),
        "record_files": len(files),
        "records_mb": round(sum(file.stat().st_size for file in files) / 1e6, 1),
    }


def step_resume(units: int, workspace: ObjectWorkspace, workers: int) -> dict[str, Any]:
    """Everything is recorded, and the driver was killed."""
    plan, settings = make_the_plan(units), RunSettings(workers=workers, memory=1 << 31)
    workspace.is_whole = lambda record: True  # type: ignore[method-assign]
    began = time.monotonic()
    bound = binding(plan, workspace, {})
    books, durable, _ = recover(plan, settings, workspace, bound, lambda: None)
    seconds = time.monotonic() - began
    books.close()
    return {"seconds": round(seconds, 1), "units": len(durable)}


def placed(record: UnitRecord, before: State, rules: list[CutRule]) -> UnitRecord:
    """As `PlaceWorker.place` does, without reading."""
    stream, counts = before.streams[0], record.streams[0]
    laid, after = lay_out(rules[0], stream, counts)
    number = record.unit.source * UNITS_OF_A_SOURCE + record.unit.segment
    places = [
        (WorkingFile(one.split, one.file).name, HEADER + one.at * 2, (one.stop - one.start) * 2)
        for one in laid
    ]
    places.append(("all.ends", stream.documents * 8, counts.documents * 8))
    places.append(("all.runs", stream.runs * 24, 24))
    return msgspec.structs.replace(
        record,
        before=before,
        after=State(
            streams=(after,),
            source=before.source,
            rows=before.rows + record.counts.rows,
            lines=before.lines + record.lines,
        ),
        pieces=tuple(PieceRecord(*place, digest(number, k, 1)) for k, place in enumerate(places)),
        streams=(),
        object=object_name("", record)[1:],
    )


def lay_out(rule: CutRule, stream: StreamState, counts: StreamCounts) -> tuple[Any, StreamState]:
    try:
        return rule.lay_out(stream, counts, None)
    except NeedStarts:
        each = counts.tokens // counts.documents
        return rule.lay_out(stream, counts, np.arange(counts.documents) * each)


class FakeFiles(Store):
    """In place of the files that units are: sizes, and where documents end."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes

    def where(self, name: str = "") -> str:
        return name

    def size(self, name: str) -> int | None:
        return self.sizes.get(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        numbers = np.arange(offset // 8, (offset + length) // 8, dtype=np.uint64) + np.uint64(1)
        return (numbers * np.uint64(TOKENS // DOCUMENTS)).astype("<u8").tobytes()


def place_all(run: PlacingRun, workers: int) -> Cluster:
    rules = CutRule.all_of(run.plan.settings, run.plan.settings.first)
    cluster = Cluster(run.dispatch, run.books.sync_if_due, workers)
    held: dict[UnitId, UnitRecord] = {}

    def work(worker: int, order: Any) -> None:
        if isinstance(order, messages.PlaceUnits):
            for one in order.records:
                held[one.unit] = one
                cluster.send(worker, Activity("read", one.unit.part))
                summary = UnitSummary(
                    one.unit, one.last, one.before.rows, one.lines, one.counts, one.streams
                )
                cluster.send(worker, summary)
            cluster.send(worker, TaskDone({}))
            return
        record = placed(held.pop(order.unit), order.before, rules)
        cluster.send(worker, Activity("write", record.unit.part))
        cluster.send(worker, UnitWritten(record, {}))
        cluster.send(worker, messages.UnitsSynced([record.unit]))

    cluster.run(work, -1)
    run.books.sync_now()
    return cluster


def step_finish(units: int, workspace: ObjectWorkspace, workers: int) -> dict[str, Any]:
    plan, settings = bound_to(workspace), RunSettings(workers=workers, memory=1 << 31)
    told, began = dict[str, Any](), time.monotonic()

    def lap(what: str) -> None:
        nonlocal began
        told[f"seconds_of_{what}"] = round(time.monotonic() - began, 1)
        told[f"peak_mb_after_{what}"] = peak_mb()
        began = time.monotonic()

    recorded = finishing._refuse_incomplete(plan, workspace)
    lap("reading_records")
    books, done, _ = open_placed(plan, settings, workspace, recorded, lambda: None)
    log = EventLog(Observer())
    budget = fit_budget(2, 1 << 31)
    run = PlacingRun(plan, budget, books, recorded, done, log, lambda: None)
    cluster = place_all(run, workers)
    lap("placing")
    told["messages"] = cluster.messages
    told["messages_per_second"] = round(cluster.messages / told["seconds_of_placing"])
    final = run.dispatch.frontier.state
    sizes = books.ledger.sizes()
    source = FakeFiles(sizes)
    workspace.grown_files = lambda *_: source  # type: ignore[method-assign, assignment]
    make = FileMaker.make

    def pretend(maker: FileMaker, working: str, buffers: Any) -> MadeFile:
        if working.startswith("index/"):
            return MadeFile(working, np.zeros((0, 2), "<u8"), {})
        return make(maker, working, buffers)

    FileMaker.make = pretend  # type: ignore[method-assign]
    published = dict[str, int]()

    def publish(names: dict[str, str], decision: bytes, manifest: bytes) -> None:
        published["manifest"] = len(manifest)

    workspace.publish = publish  # type: ignore[method-assign]
    committing.commit(plan, books.ledger, final, workspace, make_files=pretend_to_make)
    lap("committing")
    for name in ("units", "pieces"):
        told[f"index_{name}_mb"] = round((workspace.store.size(f"index/{name}") or 0) / 1e6, 1)
    told["manifest_mb"] = round(published["manifest"] / 1e6, 1)
    told["index_ends_gb"] = round(sizes["all.ends"] / 1e9, 1)
    warned = sorted_warnings(units_as_parts(books.ledger.in_order()[1].tolist()))
    lap("looking_for_sorted_inputs")
    told["warnings"] = len(warned)
    journal = list(Path(workspace.where(f"{WORK}/{JOURNAL}")).iterdir())
    told["journal_mb"] = round(sum(file.stat().st_size for file in journal) / 1e6, 1)
    books.close()
    return told


def step_files(units: int, workspace: ObjectWorkspace, workers: int) -> dict[str, Any]:
    """What every process that makes files opens: where each piece of a unit is."""
    plan, began = bound_to(workspace), time.monotonic()
    before = peak_mb()
    joined = workspace.grown_files(workspace.open_files(), plan.work_fingerprint)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "files": len(list(joined.list(""))),
        "peak_mb_before": before,
    }


def pretend_to_make(job: FileJob, files: list[FileTask], maker: FileMaker) -> None:
    for task in files:
        size = HEADER + task.tokens * 2
        whole, rest = divmod(size, PIECE_BYTES)
        pieces = [(PIECE_BYTES, 1)] * whole + [(rest, 1)] * bool(rest)
        maker.note(task, pieces, {})


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=6_000_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/tokenmill-simulation"))
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--only", default=",".join(STEPS))
    given = parser.parse_args()
    if given.step is None:
        for step in given.only.split(","):
            if step == STEPS[0]:
                shutil.rmtree(given.folder, ignore_errors=True)
            words = [f"--{k}={v}" for k, v in vars(given).items() if k not in ("step", "only")]
            subprocess.run([sys.executable, __file__, *words, f"--step={step}"], check=True)
        return
    disk.disk = NoSync()
    workspace = ObjectWorkspace(SharedFolder(given.folder), str(given.folder / "scratch"))
    began, used = time.monotonic(), time.process_time()
    told = globals()[f"step_{given.step}"](given.units, workspace, given.workers)
    told |= {
        "seconds_in_all": round(time.monotonic() - began, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        "peak_mb": peak_mb(),
    }
    print(json.dumps({given.step: told}, indent=1), flush=True)


if __name__ == "__main__":
    main()
