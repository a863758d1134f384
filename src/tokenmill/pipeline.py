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
from typing import TYPE_CHECKING, Any

import msgspec

from tokenmill.amounts import counted, parse_bytes, parse_count
from tokenmill.assembly import (
    assemble,
    cluster_settings,
    connect,
    encode,
    make_files,
    on_cluster,
    refuse_export_on_ray,
    refuse_unmet,
    start_engine,
)
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.run import EncodingRun
from tokenmill.errors import RefusedError, UsageError
from tokenmill.inputs.hf_dataset import chosen_splits, dataset_files, is_dataset
from tokenmill.inputs.kinds import refuse_changed
from tokenmill.inputs.opening.access import InputAccess
from tokenmill.inputs.stdin import NAME, is_stdin, stdin_file
from tokenmill.output.journal import UnitRecord
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.part_job import noted_part, open_part
from tokenmill.output.prepared.known import known_amounts
from tokenmill.output.recovery import (
    open_job,
    refuse_output,
)
from tokenmill.output.result import Result, made_with, part_result, warnings_of, write_run_record
from tokenmill.output.workspace import WorkArea
from tokenmill.planning.empty_splits import refuse_surely_empty
from tokenmill.planning.hub_tokenizer import tokenizer_address
from tokenmill.planning.leases import Part, leases_of
from tokenmill.planning.make import Proposal
from tokenmill.planning.mixture.bounds import first_bounds
from tokenmill.planning.options import Options, make_options, plan_settings
from tokenmill.proposals import make_supply, propose, survey, with_needs, with_reuse
from tokenmill.settings import Engine, RunSettings, patient, timer_knobs
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.interrupts import Interrupts, interruptible, keeping_work
from tokenmill.system.memory import fit_budget
from tokenmill.system.store import Place, address_of, place_name
from tokenmill.tokens.counts import Counts

if TYPE_CHECKING:
    from tokenmill.planning.estimate import Estimate

DOWNLOAD_TICK_SECONDS = 0.1


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
    output = address_of(output)
    if not isinstance(output, str | os.PathLike):
        wanted = msgspec.structs.replace(wanted, workers=0)  # no other process could open it
    start_engine(wanted, output)
    with on_cluster(cluster_settings(wanted), interrupts.check, observer.note) as access:
        prepared = propose(inputs, output, wanted, access)
        return _carry_out(prepared, output, wanted, observer, on_plan, interrupts, access, began)


def _carry_out(
    prepared: Proposal,
    output: Place,
    wanted: Options,
    observer: Observer,
    on_plan: Callable[[Proposal], None] | None,
    interrupts: Interrupts,
    access: InputAccess,
    began: float,
) -> Result:
    part = Part.parse(wanted.part) if wanted.part else None
    if prepared.budget.note:
        observer.note(prepared.budget.note)
    if not prepared.run.allow_empty_split:
        refuse_surely_empty(prepared.plan)
    if part is not None:
        return _prepare_part(prepared, output, part, observer, on_plan or no_plan, interrupts)
    on_ray = prepared.run.engine == "ray"
    workspace = open_workspace(output, prepared.run.scratch, shared=on_ray)
    prepared = prepared if workspace.has_places else _patient(prepared)
    supply = make_supply(prepared, workspace, access=access)
    is_new = not workspace.has(workspace.plan) and not workspace.has(workspace.manifest)
    if prepared.run.overwrite or not workspace.has(workspace.manifest):
        prepared = with_reuse(prepared)
    if is_new:
        refuse_unmet(prepared)
        prepared = survey(prepared, supply, note=observer.note)  # refused before work
    bounds = functools.partial(first_bounds, prepared) if workspace.has_places else dict
    connect(prepared.run)
    with (
        interrupts.deferred(),
        open_job(prepared.plan, prepared.run, workspace, interrupts.check, bounds) as opened,
        contextlib.closing(supply),
    ):
        manifest, record, sorted_ones = opened.manifest, {}, list[str]()
        if manifest is None:
            if not is_new:
                prepared = survey(prepared, supply, opened.durable, observer.note)
            (on_plan or no_plan)(prepared)
            resume_note(observer, opened.durable, is_new or prepared.run.overwrite)
            run = EncodingRun(prepared, opened, supply, observer, interrupts.check)
            record = encode(run)
            access.refuse_changed(prepared.plan.sources)
            manifest, sorted_ones = assemble(run, opened, record)
        seconds = time.monotonic() - began
        _end_work(workspace, prepared, record, seconds)
    warnings = warnings_of(manifest, prepared.plan.settings, wanted.min_shard_tokens, record)
    return Result(
        output=place_name(output),
        manifest=manifest,
        already_done=not record,
        seconds=seconds,
        run=record,
        warnings=warnings + sorted_ones,
    )


def _end_work(
    workspace: WorkArea, prepared: Proposal, record: dict[str, Any], seconds: float
) -> None:
    """The dataset is there; what is left over goes. A crash may have come before this."""
    if workspace.has_work():
        if record or not workspace.has(workspace.run_record):
            write_run_record(workspace, prepared, record, seconds)
        workspace.remove_work()


def _patient(prepared: Proposal) -> Proposal:
    return msgspec.structs.replace(prepared, run=patient(prepared.run))


def _prepare_part(
    prepared: Proposal,
    output: Place,
    part: Part,
    observer: Observer,
    on_plan: Callable[[Proposal], None],
    interrupts: Interrupts,
) -> Result:
    """The leases of one part of a job: its units are recorded, and `finish` makes files of them."""
    began, plan = time.monotonic(), prepared.plan
    refuse_in_parts(prepared, output)
    workspace = open_workspace(output, prepared.run.scratch, shared=True)
    prepared = _patient(prepared)
    leases = part.of_leases(leases_of(plan.sources))
    sources = {number for lease in leases for number in range(lease.first, lease.stop)}
    supply = make_supply(prepared, workspace, sources)
    prepared = with_reuse(prepared)
    with (
        interrupts.deferred(),
        open_part(plan, prepared.run, workspace, part, leases, interrupts.check) as opened,
        contextlib.closing(supply),
    ):
        if opened.books is None:
            raise RefusedError(
                f"{workspace.where()}: is finished already", hint="`tokenmill verify` compares it"
            )
        prepared = survey(prepared, supply, opened.durable, observer.note)
        on_plan(prepared)
        resume_note(observer, opened.durable, not opened.durable)
        with noted_part(workspace, part, made_with(prepared)) as noted:
            run = EncodingRun(prepared, opened, supply, observer, interrupts.check)
            record = encode(run)
            noted["encoder"] = record["encoder"]
            for number in sources:
                refuse_changed(plan.sources[number])
    counts = Counts()
    for one in run.books.ledger.by_source:
        counts.add(one)
    seconds = time.monotonic() - began
    return part_result(plan, place_name(output), part, counts, seconds, record)


def refuse_in_parts(prepared: Proposal, output: Place) -> None:
    if prepared.plan.settings.reads_part:
        raise UsageError(
            "--part: --limit-docs and --limit-tokens read the inputs in order, which parts cannot",
            hint="leave --part out; with --shuffle a limit works in parts, too",
        )
    if prepared.run.overwrite:
        raise UsageError(
            "--part: cannot be used with --overwrite: one part would remove what others have done",
            hint=f"remove {place_name(output)} before the first part begins",
        )
    if not isinstance(output, str | os.PathLike):
        raise UsageError("--part: no other process could open this output")


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
        supply, sources = make_supply(prepared, open_workspace(output)), plan.sources
        prepared = survey(prepared, supply)
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
        refuse_output(prepared.plan, open_workspace(output))
        done = finished_work(output)
    prepared = with_reuse(with_needs(prepared))
    minimum = None if least is None else parse_count(least, what="--min-shard-tokens")
    known = known_amounts(prepared.plan)
    estimate = make_estimate(
        prepared, probe=probe, min_shard_tokens=minimum, done=done, known=known
    )
    return prepared, estimate


def export(
    directory: Place,
    output: str | os.PathLike[str],
    *,
    workers: int | None = None,
    memory: str | int | None = None,
    engine: Engine = "local",
    ray_address: str = "",
    observer: Observer | None = None,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Result:
    """Convert a finished dataset: `export("out", "out-megatron", format="megatron")`.

    `workers`, `memory` and `engine` as for `prepare`; few bytes are written by this process alone.
    """
    from tokenmill.dataset import export as converting

    if workers is None and multiprocessing.current_process().daemon:
        workers = 0  # it may not start any
    parsed = None if memory is None else parse_bytes(memory, what="--memory")
    budget = fit_budget(workers, parsed)
    if on_ray := engine == "ray":
        refuse_export_on_ray(workers, options)
    run = RunSettings(workers=budget.workers, memory=budget.memory, engine=engine, **timer_knobs())
    run = msgspec.structs.replace(run, ray_address=ray_address, max_actors=workers or 0)
    run = patient(run) if on_ray or is_bucket(output) else run
    if budget.note and observer:
        observer.note(budget.note)
    making = functools.partial(make_files, run, EventLog(observer or Observer()))
    with on_cluster(run):
        connect(run)
        return converting.export(
            directory,
            output,
            overwrite=overwrite,
            note=note,
            make_files=making,
            room=budget.share,
            shared=on_ray,
            **options,
        )


def export_by_source(
    directory: Place, output: str | os.PathLike[str], *, name: str | None = None, **options: Any
) -> dict[str, Result]:
    """A dataset for each source of a mixture, or for each input file, in folders of their names."""
    from tokenmill.dataset.loader import open_dataset
    from tokenmill.dataset.order.one_source import folder_names

    workspace = open_workspace(output)
    if workspace.has(workspace.manifest):
        raise UsageError(
            f"-o {output}: holds a dataset, and --by-source writes a folder for each source",
            hint="give a new folder",
        )
    results: dict[str, Result] = {}
    for source, folder in folder_names(open_dataset(directory).manifest).items():
        results[source] = export(
            directory,
            os.path.join(output, folder),
            only=source,
            name=f"{name}_{folder}" if name else folder,
            verified=any(not result.already_done for result in results.values()),
            **options,
        )
    return results
