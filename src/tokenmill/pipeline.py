"""The main path on one screen: inputs to a committed dataset.

settings -> sources -> plan -> (lock, recover) -> downloads -> engine -> commit -> run.json
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tokenmill.amounts import counted, parse_bytes, parse_count
from tokenmill.engines.events import FilesBegun
from tokenmill.engines.local.forkserver import start_fork_server
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.order.choosing import choose_documents
from tokenmill.engines.order.order_run import OrderRun, order_documents
from tokenmill.engines.run import EncodingRun, FilesRun, Run, UnitsRun
from tokenmill.engines.supply import Downloads
from tokenmill.errors import Interrupted, TokenmillError, UsageError
from tokenmill.formats import copies_of
from tokenmill.inputs.hf_dataset import chosen_splits, dataset_files, is_dataset
from tokenmill.inputs.kinds import refuse_changed
from tokenmill.inputs.remote.hub import ListCache
from tokenmill.inputs.stdin import NAME, is_stdin, stdin_file
from tokenmill.output import commit as committing
from tokenmill.output.file_maker import FileMaker, FileTask
from tokenmill.output.file_tasks import FileJob, weight_of
from tokenmill.output.journal import UnitRecord
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.recovery import bound_revisions, open_job, refuse_output
from tokenmill.output.result import Result, warnings_of, write_run_record
from tokenmill.output.workspace import WorkArea, Workspace
from tokenmill.planning.empty_splits import refuse_surely_empty
from tokenmill.planning.hub_tokenizer import tokenizer_address
from tokenmill.planning.make import Proposal, make_plan
from tokenmill.planning.needs import disk_warning, refuse_if_offline
from tokenmill.planning.options import Options, make_options, plan_settings, timer_knobs
from tokenmill.planning.sorted_inputs import sorted_warnings, units_as_parts
from tokenmill.settings import RunSettings
from tokenmill.system.cache import keep_in_cache, read_from_cache
from tokenmill.system.interrupts import Interrupts, interruptible, keeping_work
from tokenmill.system.memory import fit_budget
from tokenmill.system.store import ObjectStore, Place, place_name
from tokenmill.tokens.counts import State

if TYPE_CHECKING:
    from tokenmill.planning.estimate import Estimate

DOWNLOAD_TICK_SECONDS = 0.1
NOTHING_FINISHED = "no part of the work was finished yet"


class DownloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `download` did: every input is here now."""

    files: int
    bytes: int
    fetched_files: int
    fetched_bytes: int
    seconds: float
    revisions: dict[str, str]


def prepare(
    inputs: Any,
    output: Place,
    *,
    observer: Observer | None = None,
    on_plan: Callable[[Proposal], None] | None = None,
    **options: Any,
) -> Result:
    """Turn text into token files; the same call resumes after any interruption.

    `inputs`: files, directories, globs or URLs, one or several; a `datasets.Dataset`, or a
    `DatasetDict` with `split="train"`, `val="split"` or `all_splits=True`.

    >>> tokenmill.prepare("data/*.parquet", "out", format="llmc", tokenizer="gpt2")
    """
    observer = observer or Observer()
    wanted, told = make_options(options), place_name(output)
    with interruptible() as interrupts, contextlib.ExitStack() as stack:
        if is_dataset(inputs):
            _refuse_early(wanted, told)
            train, held = (
                [
                    file
                    for one in side
                    for file in stack.enter_context(dataset_files(one, told, wanted.text_column))
                ]
                for side in chosen_splits(inputs, wanted.choice)
            )
            inputs, held = train, [*held, *wanted.val_inputs]
            wanted = msgspec.structs.replace(wanted, split="", val_inputs=tuple(held))
        elif is_stdin(inputs):
            if not wanted.input_rules.kind_for(NAME):
                raise UsageError(
                    "-: the kind of data on standard input is not known",
                    hint="add --as jsonl, --as csv or --as text",
                )
            _refuse_early(wanted, told)
            inputs = stack.enter_context(stdin_file(told, sys.stdin.buffer))
        return _prepare(inputs, output, wanted, observer, on_plan, interrupts)


def _prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: Place,
    wanted: Options,
    observer: Observer,
    on_plan: Callable[[Proposal], None] | None,
    interrupts: Interrupts,
) -> Result:
    began = time.monotonic()
    if not isinstance(output, str | os.PathLike):
        wanted = msgspec.structs.replace(wanted, workers=0)  # no other process could open it
    start_fork_server(**msgspec.structs.asdict(wanted))
    prepared = propose(inputs, output, wanted)
    if prepared.budget.note:
        observer.note(prepared.budget.note)
    if not prepared.run.allow_empty_split:
        refuse_surely_empty(prepared.plan)
    workspace = open_workspace(output, prepared.run.scratch)
    if prepared.plan.settings.shuffle and not workspace.has_places:
        raise UsageError(
            f"{place_name(output)}: a shuffled dataset cannot be written to such a store yet",
            hint="write to a local folder with -o, and copy it",
        )
    supply = make_supply(prepared, workspace)
    is_new = not workspace.has(workspace.plan) and not workspace.has(workspace.manifest)
    if prepared.run.overwrite or not workspace.has(workspace.manifest):
        prepared = with_reuse(prepared)
    if is_new:
        prepared = _survey(prepared, supply, note=observer.note)  # refused before work
    with (
        interrupts.deferred(),
        open_job(prepared.plan, prepared.run, workspace, interrupts.check) as opened,
        contextlib.closing(supply),
    ):
        manifest, record, sorted_ones = opened.manifest, {}, list[str]()
        if manifest is None:
            if not is_new:
                prepared = _survey(prepared, supply, opened.durable, observer.note)
            (on_plan or no_plan)(prepared)
            resume_note(observer, opened.durable, is_new or prepared.run.overwrite)
            run = EncodingRun(prepared, opened, supply, observer, interrupts.check)
            record = _encode(run)
            for source in prepared.plan.sources:
                refuse_changed(source)
            final = _order(run, opened.ordered, record).dispatch.frontier.state
            manifest, sorted_ones = _commit(run, final, workspace, record), _sorted_inputs(run)
        seconds = time.monotonic() - began
        if workspace.has_work():
            if record or not workspace.has(workspace.run_record):  # a crash may have come after it
                write_run_record(workspace, prepared, record, seconds)
            workspace.remove_work()
    return Result(
        output=place_name(output),
        manifest=manifest,
        already_done=not record,
        seconds=seconds,
        run=record,
        warnings=warnings_of(manifest, prepared.plan.settings, wanted.min_shard_tokens, record)
        + sorted_ones,
    )


def _sorted_inputs(run: EncodingRun) -> list[str]:
    if run.plan.settings.shuffle:
        return []
    return sorted_warnings(units_as_parts(run.books.ledger.in_order()))


def download(
    inputs: Any,
    output: str | os.PathLike[str] = "out",
    *,
    observer: Observer | None = None,
    on_plan: Callable[[Proposal], None] | None = None,
    **options: Any,
) -> DownloadReport:
    """Download the inputs, so that `prepare` with the same arguments finds them on this machine,
    also offline. Writes only to the caches.

    >>> tokenmill.download("hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT")
    """
    began = time.monotonic()
    wanted = make_options({**options, "keep_downloads": True})
    with interruptible() as interrupts:
        prepared = propose(inputs, output, wanted)
        # All files, also for a trial run: which of them it needs is known when it reads them.
        whole = msgspec.structs.replace(prepared.plan.settings, limit_docs=0, limit_tokens=0)
        plan = msgspec.structs.replace(prepared.plan, settings=whole)
        prepared = msgspec.structs.replace(prepared, plan=plan)
        supply, sources = make_supply(prepared, Workspace(output)), plan.sources
        prepared = _survey(prepared, supply)
        (on_plan or no_plan)(prepared)
        log = EventLog(observer or Observer())
        with interrupts.deferred(), keeping_work(), contextlib.closing(supply):
            supply.start()
            for source in sources:
                while supply.here(source) is None:
                    interrupts.check()
                    supply.report(log)
                    time.sleep(DOWNLOAD_TICK_SECONDS)
            supply.report(log)
    return DownloadReport(
        files=len(sources),
        bytes=prepared.plan.input_bytes,
        fetched_files=len(supply.missing),
        fetched_bytes=supply.bytes_total,
        seconds=time.monotonic() - began,
        revisions=prepared.plan.revisions,
    )


def open_workspace(output: Place, scratch: str = "") -> WorkArea:
    """The output in a folder, or in a store of whole files."""
    if isinstance(output, str | os.PathLike):
        return Workspace(output, scratch)
    if not hasattr(output, "write_parts"):
        raise UsageError(f"{output.where()}: cannot be written to")
    return ObjectWorkspace(cast("ObjectStore", output), scratch)


def no_plan(_: Proposal) -> None:
    """Nobody wants to see it."""


def resume_note(observer: Observer, durable: Sequence[UnitRecord], is_new: bool) -> None:
    """The first thing that a resumed run says."""
    if is_new:
        return
    documents = sum(record.counts.documents for record in durable)
    tokens = sum(record.counts.tokens for record in durable)
    done = f"{counted(documents, 'document')} ({counted(tokens, 'token')}) are done already"
    done = done if durable else "nothing of it was durable yet"
    observer.note(f"resuming a run that was stopped: {done}")


def _refuse_early(wanted: Options, output: str | os.PathLike[str]) -> None:
    """Wrong options, before anything is copied; a tokenizer of the Hub is not looked for yet."""
    if tokenizer_address(wanted.tokenizer) is None:
        plan_settings(wanted, output)


def make_supply(prepared: Proposal, workspace: WorkArea) -> Downloads:
    run = prepared.run
    return Downloads(prepared.plan, workspace, keep=run.keep_downloads, downloads=run.downloads)


def with_needs(prepared: Proposal) -> Proposal:
    """For `plan`: what would be downloaded; only `prepare` refuses."""
    supply = make_supply(prepared, Workspace(prepared.output))
    supply.survey()
    return msgspec.structs.replace(prepared, needs=supply.needs())


def with_reuse(prepared: Proposal) -> Proposal:
    """What `--reuse` spares; refused where it spares nothing."""
    if not prepared.run.reuse:
        return prepared
    from tokenmill.dataset.reuse import find_reuse

    reuse = find_reuse(prepared.run.reuse, prepared.plan, prepared.output)
    return msgspec.structs.replace(prepared, reuse=reuse)


def forecast(
    inputs: Any, output: str | os.PathLike[str], options: dict[str, Any], *, probe: bool = True
) -> tuple[Proposal, Estimate]:
    """For `plan`: the plan and what it would take. Writes nothing."""
    from tokenmill.dataset.status import finished_work
    from tokenmill.planning.estimate import make_estimate
    from tokenmill.planning.needs import FinishedWork

    wanted = make_options(options)
    least = wanted.min_shard_tokens
    prepared = propose(inputs, output, wanted, keep_listings=False)
    done = FinishedWork()
    if not prepared.run.overwrite:
        refuse_output(prepared.plan, Workspace(output))
        done = finished_work(output)
    prepared = with_reuse(with_needs(prepared))
    minimum = None if least is None else parse_count(least, what="--min-shard-tokens")
    estimate = make_estimate(prepared, probe=probe, min_shard_tokens=minimum, done=done)
    return prepared, estimate


def _survey(
    prepared: Proposal,
    supply: Downloads,
    durable: Sequence[UnitRecord] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Proposal:
    """What is to be downloaded; raises if it does not fit on the disk, or if we are offline."""
    supply.survey(durable)
    written = sum(piece.length for record in durable for piece in record.pieces)
    needs = supply.needs(written)
    if needs is None:
        if short := disk_warning(prepared.plan, prepared.output, written):
            note(short)
    else:
        refuse_if_offline(supply.missing)
        needs.refuse_if_short()
    return msgspec.structs.replace(prepared, needs=needs)


def propose(
    inputs: Any, output: Place, options: Options, *, keep_listings: bool = True
) -> Proposal:
    """The plan of a job, bound to the same commits of the Hub if the job is unfinished.

    `keep_listings`: in the cache, so that the inputs are found again without a request.
    """
    shelf = ListCache(read_from_cache)
    revisions = functools.partial(bound_revisions, open_workspace(output))
    prepared = make_plan(inputs, place_name(output), options, shelf, revisions)
    for name, content in shelf.new.items() if keep_listings else ():
        with contextlib.suppress(TokenmillError):  # then the Hub is asked again
            keep_in_cache(name, content)
    return prepared


def _commit(
    run: EncodingRun, final: State, workspace: WorkArea, record: dict[str, Any]
) -> Manifest:
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
        make_files=functools.partial(_make_files, run.settings, run.log),
        room=run.prepared.budget.share,
    )
    if others:
        record["seconds_making"] = round(time.monotonic() - began, 3)
    record |= {"timeline": run.log.timeline, "retries": run.snapshot.retries}
    return manifest


def export(
    directory: Place,
    output: str | os.PathLike[str],
    *,
    workers: int | None = None,
    memory: str | int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Result:
    """Convert a finished dataset: `export("out", "out-megatron", format="megatron")`.

    `workers` and `memory` as for `prepare`; few bytes are written by this process alone.
    """
    from tokenmill.dataset import export as converting

    if workers is None and multiprocessing.current_process().daemon:
        workers = 0  # it may not start any
    parsed = None if memory is None else parse_bytes(memory, what="--memory")
    budget = fit_budget(workers, parsed)
    run = RunSettings(workers=budget.workers, memory=budget.memory, **timer_knobs())
    if budget.note and observer:
        observer.note(budget.note)
    make_files = functools.partial(_make_files, run, EventLog(observer or Observer()))
    return converting.export(
        directory,
        output,
        overwrite=overwrite,
        note=note,
        make_files=make_files,
        room=budget.share,
        **options,
    )


def _make_files(
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
    _work(run)
    run.report()


def _work(run: Run) -> None:
    from tokenmill.engines.inline import run_inline
    from tokenmill.engines.local.supervisor import LocalEngine

    if run.settings.workers == 0:
        run_inline(run)
    else:
        LocalEngine(run).work()


def _durably(run: UnitsRun) -> None:
    """Work on every unit that is not durable yet; all of them are when this returns."""
    try:
        _work(run)
    except (TokenmillError, Interrupted) as error:
        # The error that stopped us is the news, not that syncing fails too.
        books = run.books
        with contextlib.suppress(TokenmillError):
            books.sync_now()  # the units that are written count
        if isinstance(error, Interrupted) and not (books.resumed_units or books.encoded_units):
            error.reword(lambda text: text.replace("finished work is kept", NOTHING_FINISHED))
        raise
    run.books.sync_now()


def _order(
    run: EncodingRun, ordered: list[UnitRecord], record: dict[str, Any]
) -> EncodingRun | OrderRun:
    """The second half of a shuffled job: documents to their places, in the order of their keys."""
    if not run.plan.settings.shuffle:
        return run
    began, ledger = time.monotonic(), run.books.ledger
    run.books.on_durable = lambda records: None
    run.log.observer.note("encoded; now bringing the documents into their order")
    chosen = choose_documents(run)
    last = order_documents(run, ledger, ordered, _durably, chosen)
    if chosen is not None:
        ledger.choose(chosen.by_source, chosen.mix_counts)
    record["seconds_ordering"] = round(time.monotonic() - began, 3)
    return last


def _encode(run: EncodingRun) -> dict[str, Any]:
    """Encode and write every unit that is not durable yet; all of them are when this returns."""
    books, decision = run.books, run.prepared.decision
    books.on_durable = run.supply.units_durable
    run.supply.start()
    began = time.monotonic()
    _durably(run)
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
