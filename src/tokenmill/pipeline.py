"""The main path on one screen: inputs to a committed dataset.

settings -> sources -> plan -> (lock, recover) -> downloads -> engine -> commit -> run.json
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tokenmill.amounts import counted
from tokenmill.engines.local.forkserver import start_fork_server
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.run import EncodingRun
from tokenmill.engines.supply import Downloads
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats import copies_of
from tokenmill.inputs.hf_dataset import chosen_splits, dataset_files, is_dataset
from tokenmill.inputs.kinds import refuse_changed
from tokenmill.inputs.remote.hub import ListCache
from tokenmill.inputs.stdin import NAME, is_stdin, stdin_file
from tokenmill.output import commit as committing
from tokenmill.output.journal import UnitRecord
from tokenmill.output.recovery import bound_revisions, open_job
from tokenmill.output.result import Result, warnings_of, write_run_record
from tokenmill.output.workspace import WORK, Workspace
from tokenmill.planning.empty_splits import refuse_surely_empty
from tokenmill.planning.hub_tokenizer import tokenizer_address
from tokenmill.planning.make import Proposal, make_plan
from tokenmill.planning.needs import disk_warning, refuse_if_offline
from tokenmill.planning.options import Options, make_options, plan_settings
from tokenmill.system.cache import keep_in_cache, read_from_cache
from tokenmill.system.interrupts import Interrupts, interruptible

DOWNLOAD_TICK_SECONDS = 0.1


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What `download` did: every input is here now."""

    files: int
    bytes: int
    fetched_files: int
    fetched_bytes: int
    seconds: float
    revisions: dict[str, str]


def prepare(
    inputs: Any,
    output: str | os.PathLike[str],
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
    wanted = make_options(options)
    with interruptible() as interrupts, contextlib.ExitStack() as stack:
        if is_dataset(inputs):
            _refuse_early(wanted, output)
            train, held = (
                [
                    file
                    for one in side
                    for file in stack.enter_context(dataset_files(one, output, wanted.text_column))
                ]
                for side in chosen_splits(inputs, wanted.choice)
            )
            inputs, held = train, [*held, *wanted.val_inputs]
            wanted = msgspec.structs.replace(wanted, split="", val_inputs=tuple(held))
        elif is_stdin(inputs):
            if not wanted.input_rules.kind_for(NAME):
                raise UsageError(
                    "-: what standard input holds is not known",
                    hint="say it: --as jsonl, csv, text ...",
                )
            _refuse_early(wanted, output)
            inputs = stack.enter_context(stdin_file(output, sys.stdin.buffer))
        return _prepare(inputs, output, wanted, observer, on_plan, interrupts)


def _prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    wanted: Options,
    observer: Observer,
    on_plan: Callable[[Proposal], None] | None,
    interrupts: Interrupts,
) -> Result:
    began = time.monotonic()
    start_fork_server(**msgspec.structs.asdict(wanted))
    prepared = propose(inputs, output, wanted)
    if prepared.budget.note:
        observer.note(prepared.budget.note)
    if not prepared.run.allow_empty_split:
        refuse_surely_empty(prepared.plan)
    workspace = Workspace(output)
    supply = make_supply(prepared, workspace)
    is_new = not workspace.has(workspace.plan) and not workspace.has(workspace.manifest)
    if is_new:
        prepared = _survey(prepared, supply, note=observer.note)  # refused before work
    with (
        interrupts.deferred(),
        open_job(prepared.plan, prepared.run, workspace, interrupts.check) as opened,
        contextlib.closing(supply),
    ):
        manifest, record = opened.manifest, {}
        if manifest is None:
            if not is_new:
                prepared = _survey(prepared, supply, opened.durable, observer.note)
            (on_plan or no_plan)(prepared)
            resume_note(observer, opened.durable, is_new or prepared.run.overwrite)
            run = EncodingRun(prepared, opened, supply, observer, interrupts.check)
            record = _encode(run)
            for source in prepared.plan.sources:
                refuse_changed(source)
            # Workers have written the first copy of the tokens; the others may take a while.
            others = [layout.format for layout in copies_of(prepared.plan.settings)[1:]]
            if others:
                observer.note(f"encoded; now writing {', '.join(others)}")
            manifest = committing.commit(
                prepared.plan,
                run.books.ledger,
                run.dispatch.frontier.state,
                workspace,
                interrupts.check,
                allow_empty=prepared.run.allow_empty_split or prepared.plan.settings.limited,
            )
        seconds = time.monotonic() - began
        if workspace.has(WORK):
            if record or not workspace.has(workspace.run_record):  # a crash may have come after it
                write_run_record(workspace, prepared, record, seconds)
            workspace.remove_work()
    return Result(
        output=os.fspath(output),
        manifest=manifest,
        already_done=not record,
        seconds=seconds,
        run=record,
        warnings=warnings_of(manifest, prepared.plan.settings, wanted.min_shard_tokens, record),
    )


def download(
    inputs: Any,
    output: str | os.PathLike[str] = "out",
    *,
    observer: Observer | None = None,
    on_plan: Callable[[Proposal], None] | None = None,
    **options: Any,
) -> Fetched:
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
        with interrupts.deferred(), contextlib.closing(supply):
            supply.start()
            for source in sources:
                while supply.here(source) is None:
                    interrupts.check()
                    supply.report(log)
                    time.sleep(DOWNLOAD_TICK_SECONDS)
            supply.report(log)
    return Fetched(
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


def make_supply(prepared: Proposal, workspace: Workspace) -> Downloads:
    run = prepared.run
    return Downloads(prepared.plan, workspace, keep=run.keep_downloads, downloads=run.downloads)


def with_needs(prepared: Proposal) -> Proposal:
    """For `plan`: what would be downloaded; only `prepare` refuses."""
    supply = make_supply(prepared, Workspace(prepared.output))
    supply.survey()
    return msgspec.structs.replace(prepared, needs=supply.needs())


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
    inputs: Any, output: str | os.PathLike[str], options: Options, *, keep_listings: bool = True
) -> Proposal:
    """The plan of a job, bound to the same commits of the Hub if the job is unfinished.

    `keep_listings`: in the cache, so that the inputs are found again without a request.
    """
    shelf = ListCache(read_from_cache)
    prepared = make_plan(inputs, output, options, shelf, lambda: bound_revisions(Workspace(output)))
    for name, content in shelf.new.items() if keep_listings else ():
        with contextlib.suppress(TokenmillError):  # then the Hub is asked again
            keep_in_cache(name, content)
    return prepared


def _encode(run: EncodingRun) -> dict[str, Any]:
    """Encode and write every unit that is not durable yet; all of them are when this returns."""
    from tokenmill.engines.inline import run_inline
    from tokenmill.engines.local.supervisor import LocalEngine

    books, decision = run.books, run.prepared.decision
    books.on_durable = run.supply.units_durable
    run.supply.start()
    began = time.monotonic()
    try:
        if run.settings.workers == 0:
            run_inline(run)
        else:
            LocalEngine(run).work()
    except TokenmillError:
        # The error that stopped us is the news, not that syncing fails too.
        with contextlib.suppress(TokenmillError):
            books.sync_now()  # the units that are written count
        raise
    books.sync_now()
    return {
        "seconds_milling": round(time.monotonic() - began, 3),
        "seconds_starting": round(run.seconds_starting, 3),  # of these, until a worker was ready
        "units_resumed": books.resumed_units,
        "units_encoded": books.encoded_units,
        "retries": run.snapshot.retries,
        "probes": run.snapshot.probes,
        "timeline": run.log.timeline,
        "encoder_check": run.settings.encoder_check,
        "encoder": {
            "name": decision.encoder,
            "rules": decision.rules,
            "why": decision.why,
            **run.dispatch.stats,
        },
    }
