"""From segments to a dataset: work on units, give them places, make files, publish.

The steps of the main path (`pipeline`) behind the plan; `finish` (`finishing`) begins in the midst.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tokenmill.amounts import parse_bytes
from tokenmill.engines.events import FilesBegun
from tokenmill.engines.frontier import Frontier, UnorderedUnits
from tokenmill.engines.local.forkserver import start_fork_server
from tokenmill.engines.observer import EventLog
from tokenmill.engines.order.choosing import (
    ChosenDocuments,
    MissingDocuments,
    Passes,
    choose_documents,
)
from tokenmill.engines.order.further import encode_and_choose
from tokenmill.engines.order.order_run import OrderRun, order_documents
from tokenmill.engines.placing.placing_run import PlacingRun
from tokenmill.engines.run import EncodingRun, FilesRun, PlanRun, Run, UnitsRun
from tokenmill.errors import Interrupted, TokenmillError, UsageError
from tokenmill.formats import copies_of
from tokenmill.inputs.opening.access import LOCAL, InputAccess
from tokenmill.output import commit as committing
from tokenmill.output.file_maker import FileMaker, FileTask
from tokenmill.output.file_tasks import FileJob, weight_of
from tokenmill.output.finish.known_units import open_placed
from tokenmill.output.journal import UnitRecord
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.record_table import RecordTable
from tokenmill.output.objects.records import recorded_units
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.prepared.known import refuse_surely_unmet
from tokenmill.output.recovery import JobState
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.make import Proposal
from tokenmill.planning.options import Options
from tokenmill.planning.plan import Plan
from tokenmill.planning.sorted_inputs import sorted_warnings, units_as_parts
from tokenmill.settings import RunSettings
from tokenmill.system.memory import Budget, fit_budget
from tokenmill.system.store import Place
from tokenmill.tokens.counts import State

NOTHING_FINISHED = "no part of the work was finished yet"


def encode(run: EncodingRun) -> dict[str, Any]:
    """Encode and write every unit that is not durable yet; all of them are when this returns."""
    books, decision = run.books, run.prepared.decision
    books.on_durable = run.supply.units_durable
    run.supply.start()
    began = time.monotonic()
    durably(run)
    stats = dict(run.dispatch.stats)
    reused = {
        "from": run.settings.reuse,
        "documents": stats.pop("reused_documents", 0),
        "tokens": stats.pop("reused_tokens", 0),
        "encoded": stats.pop("encoded_documents", 0),
    }
    return {
        "seconds_milling": round(time.monotonic() - began, 3),
        "seconds_starting": round(run.seconds_starting, 3),  # of these, until a worker was ready
        "units_resumed": books.resumed_units,
        "units_encoded": books.encoded_units,
        "encoded_bytes": stats.pop("encoded_bytes", 0),  # of text
        "probes": run.snapshot.probes,
        "encoder_check": run.settings.encoder_check,
        "encoder": {
            "name": decision.encoder,
            "rules": decision.rules,
            "why": decision.why,
            **stats,
        },
        **({"reused": reused} if run.settings.reuse else {}),
    }


def assemble(
    run: EncodingRun, opened: JobState, record: dict[str, Any]
) -> tuple[Manifest, list[str]]:
    """From encoded units to a dataset, and warnings of inputs that are sorted."""
    if not opened.relative:

        def choose() -> ChosenDocuments | None:
            chosen, stats = encode_and_choose(run, opened, durably)
            record["encoded_bytes"] += stats["encoded_bytes"]
            return chosen

        return complete(run, run.dispatch.frontier, opened.ordered, record, choose)
    workspace = run.books.workspace
    if not isinstance(workspace, ObjectWorkspace):
        raise TypeError("units without places are in a store of whole files")
    recorded = recorded_units(run.plan, workspace)
    with placed_units(
        run.plan, run.settings, run.budget, workspace, recorded, run.log, run.check_interrupt
    ) as (placing, ordered):
        choose = functools.partial(choose_of_all, placing, opened.bounds)
        return complete(placing, placing.dispatch.frontier, ordered, record, choose)


def choose_of_all(run: PlanRun, passes: Passes) -> ChosenDocuments | None:
    """What a mixture takes of each source, where all of them are encoded in one pass."""
    chosen = choose_documents(run, passes)
    if isinstance(chosen, MissingDocuments):
        raise TypeError("all documents are encoded, and some are missing")
    return chosen


@contextlib.contextmanager
def placed_units(
    plan: Plan,
    settings: RunSettings,
    budget: Budget,
    workspace: ObjectWorkspace,
    recorded: RecordTable,
    log: EventLog,
    check_interrupt: Callable[[], None],
) -> Iterator[tuple[PlacingRun, list[UnitRecord]]]:
    """Give all units their places; by this process if that is quicker than to start workers. And
    what an earlier run has done of the second half of a shuffled job."""
    read = sum(8 * one.counts.documents for one in recorded.records())
    few = read < settings.make_bytes or plan.settings.by_key
    chosen = msgspec.structs.replace(settings, workers=0) if few else settings
    books, placed, ordered = open_placed(plan, chosen, workspace, recorded, check_interrupt)
    with contextlib.closing(books):
        placing = PlacingRun(plan, budget, books, recorded, placed, log, check_interrupt)
        durably(placing)
        placing.settings = books.run = settings
        yield placing, ordered


def complete(
    run: PlanRun,
    frontier: Frontier | UnorderedUnits,
    ordered: list[UnitRecord],
    record: dict[str, Any],
    choose: Callable[[], ChosenDocuments | None],
) -> tuple[Manifest, list[str]]:
    """From units in their places to a dataset. `choose`: what a mixture takes of them."""
    final = streams_in_order(run, frontier, ordered, record, choose)
    manifest = _commit(run, final, run.books.workspace, record)
    return manifest, _sorted_inputs(run)


def streams_in_order(
    run: PlanRun,
    frontier: Frontier | UnorderedUnits,
    ordered: list[UnitRecord],
    record: dict[str, Any],
    choose: Callable[[], ChosenDocuments | None],
) -> State:
    """Where the streams end, once their documents are in the order of the plan."""
    if run.plan.settings.by_key:
        frontier = _order(run, ordered, record, choose).dispatch.frontier
    return frontier.state


def _order(
    run: PlanRun,
    ordered: list[UnitRecord],
    record: dict[str, Any],
    choose: Callable[[], ChosenDocuments | None],
) -> OrderRun:
    """The second half of a shuffled job: documents to their places, in the order of their keys."""
    began, ledger = time.monotonic(), run.books.ledger
    run.books.on_durable = lambda records: None
    run.log.observer.note("encoded; now bringing the documents into their order")
    chosen = choose()
    last = order_documents(run, ledger, ordered, durably, chosen)
    if chosen is not None:
        ledger.choose(chosen.by_source, chosen.mix_counts)
    record["ordered_resumed"] = last.resumed
    record["seconds_ordering"] = round(time.monotonic() - began, 3)
    return last


def _commit(run: PlanRun, final: State, workspace: WorkArea, record: dict[str, Any]) -> Manifest:
    """Make what no unit wrote, and publish; what that took is added to the record of the run."""
    # Workers have written the first copy of the tokens; the others may take a while.
    others = [layout.format for layout in copies_of(run.plan.settings)[1:]]
    if others:
        run.log.observer.note(f"encoded; now writing {', '.join(others)}")
    began = time.monotonic()
    manifest = committing.commit(
        run.plan,
        run.books.ledger,
        final,
        workspace,
        run.check_interrupt,
        allow_empty=run.settings.allow_empty_split or run.plan.settings.limited,
        make_files=functools.partial(make_files, run.settings, run.log),
        room=run.budget.share,
    )
    if others:
        record["seconds_making"] = round(time.monotonic() - began, 3)
    record |= {"timeline": run.log.timeline, "retries": run.snapshot.retries}
    if run.settings.engine == "ray":
        record |= {"preemptions": run.snapshot.preemptions, "nodes": cluster_figures()}
    return manifest


def _sorted_inputs(run: PlanRun) -> list[str]:
    if run.plan.settings.by_key:
        return []
    _, texts = run.books.ledger.in_order()
    return sorted_warnings(units_as_parts(texts.tolist()))


def make_files(
    settings: RunSettings, log: EventLog, job: FileJob, files: list[FileTask], maker: FileMaker
) -> None:
    """Files of other formats or of another dataset, by all workers; by this process if that is
    quicker than to start them."""
    size = sum(weight_of(job.settings, file) for file in files)
    if not files:
        return
    if size < settings.make_bytes:
        settings = msgspec.structs.replace(settings, workers=0)
    log.add(FilesBegun(len(files), size))
    # Free if the server runs already. It opens no encoder.
    start_fork_server(
        tokenizer="", pattern="", encoder="auto", encoder_check="none",
        workers=settings.workers, start_method=settings.start_method,
    )  # fmt: skip
    run = FilesRun(job, files, settings, log, maker)
    work(run)
    run.report()


def durably(run: UnitsRun) -> None:
    """Work on every unit that is not durable yet; all of them are when this returns."""
    try:
        work(run)
    except (TokenmillError, Interrupted) as error:
        # The error that stopped us is the news, not that syncing fails too.
        books = run.books
        with contextlib.suppress(TokenmillError):
            books.sync_now()  # the units that are written count
        if isinstance(error, Interrupted) and not (books.resumed_units or books.encoded_units):
            error.reword(lambda text: text.replace("finished work is kept", NOTHING_FINISHED))
        raise
    run.books.sync_now()


def work(run: Run) -> None:
    from tokenmill.engines.inline import run_inline
    from tokenmill.engines.local.supervisor import LocalEngine

    if run.settings.workers == 0:
        run_inline(run)
    elif run.settings.engine == "ray":
        from tokenmill.engines.ray.engine import RayEngine
        from tokenmill.engines.ray.session import current

        RayEngine(run, current().pool).work()
    else:
        LocalEngine(run).work()


@contextlib.contextmanager
def on_cluster(
    run: RunSettings | None,
    check_interrupt: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[InputAccess]:
    """With a Ray cluster, if the work is done on one; it is connected when it is first needed. Who
    opens the inputs: the cluster's nodes, or this process."""
    if run is None or run.engine != "ray":
        yield LOCAL
        return
    from tokenmill.engines.ray.session import ray_session

    with ray_session(run, check_interrupt, note) as session:
        yield session.access


def cluster_settings(wanted: Options) -> RunSettings | None:
    """What a cluster must know before there is a plan; None: there is no cluster."""
    if wanted.engine != "ray":
        return None
    memory = None if wanted.memory is None else parse_bytes(wanted.memory, what="--memory")
    budget = fit_budget(wanted.workers, memory)
    return RunSettings(
        workers=budget.workers,
        memory=budget.memory,
        engine=wanted.engine,
        ray_address=wanted.ray_address,
        max_actors=wanted.workers or 0,
    )


def connect(run: RunSettings) -> None:
    """Before a job is begun: an address at which nothing answers is told first."""
    if run.engine == "ray":
        from tokenmill.engines.ray.session import current

        _ = current().pool


def refuse_unmet(prepared: Proposal) -> None:
    """A mixture that inputs say themselves cannot be met."""
    if prepared.run.engine == "ray":
        from tokenmill.engines.ray.session import current

        current().access.refuse_surely_unmet(prepared)
    else:
        refuse_surely_unmet(prepared)


def cluster_figures() -> list[dict[str, Any]]:
    """For run.json: what each node of the cluster did."""
    from tokenmill.engines.ray.session import current

    return [msgspec.to_builtins(one) for one in current().pool.cluster.figures.values()]


def start_engine(wanted: Options, output: Place) -> None:
    """What takes long to start is started first; what the engine cannot do is refused."""
    if wanted.engine == "local":
        start_fork_server(**msgspec.structs.asdict(wanted))
        return
    if wanted.part:
        raise UsageError("--part contradicts --engine ray", hint="leave one of them out")
    _refuse_no_workers(wanted.workers)
    if not isinstance(output, str | os.PathLike):
        raise UsageError("--engine ray: no other process could open this output")


def refuse_export_on_ray(workers: int | None, options: dict[str, Any]) -> None:
    """What `export` cannot do with several machines that write."""
    _refuse_no_workers(workers)
    if options.get("shuffle") or options.get("only"):
        raise UsageError(
            "--engine ray: export with --shuffle, --only or --by-source works on one machine only",
            hint="leave --engine ray out",
        )


def _refuse_no_workers(workers: int | None) -> None:
    if workers == 0:
        raise UsageError("--workers 0 contradicts --engine ray", hint="leave one of them out")
