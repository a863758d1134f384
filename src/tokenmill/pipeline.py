"""The main path on one screen: inputs to a committed dataset.

settings -> sources -> plan -> (lock, recover) -> supply -> engine -> commit -> run.json
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import msgspec

from tokenmill import commit as committing
from tokenmill.config import (
    Budget,
    PlanSettings,
    RunSettings,
    fit_budget,
    parse_bytes,
    parse_count,
)
from tokenmill.documents import refuse_changed
from tokenmill.engines.forkserver import start_fork_server
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.engines.unit import Job
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.formats import get_format
from tokenmill.gap_cache import LIBRARY, gap_for
from tokenmill.hf_dataset import dataset_files, is_dataset
from tokenmill.interrupts import Interrupts, interruptible
from tokenmill.job import Opened, bound_revisions, open_job
from tokenmill.manifest import Manifest, UnitRecord
from tokenmill.needs import Needs, needs_of, refuse_if_offline
from tokenmill.options import Options, make_options, plan_settings, run_settings
from tokenmill.plan import Plan
from tokenmill.remote.address import is_url
from tokenmill.remote.hub import Shelf
from tokenmill.sources import Found, find_sources
from tokenmill.storage import Workspace, keep_in_cache, read_from_cache
from tokenmill.supply import Supply, Watched
from tokenmill.tokenizer import Encoding
from tokenmill.vocabulary_files import find_encoding

TICK_SECONDS = 0.1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did; `manifest` is what it made."""

    output: str
    manifest: Manifest
    already_done: bool
    seconds: float
    run: dict[str, Any]
    warnings: list[str]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and how it would be run: what `tokenmill plan` shows."""

    plan: Plan
    encoding: Encoding
    found: Found
    run: RunSettings
    budget: Budget
    output: str
    needs: Needs | None = None  # where inputs are elsewhere


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
    on_plan: Callable[[Prepared], None] | None = None,
    **options: Any,
) -> Result:
    """Turn text into token files; the same call resumes after any interruption.

    `inputs`: files, directories, globs or URLs, one or several; or a `datasets.Dataset`.

    >>> tokenmill.prepare("data/*.parquet", "out", format="llmc", tokenizer="gpt2")
    """
    observer = observer or Observer()
    wanted = make_options(options)
    with interruptible() as interrupts:
        if not is_dataset(inputs):
            return _prepare(inputs, output, wanted, observer, on_plan, interrupts)
        plan_settings(wanted, output)  # what is wrong with them is said before anything is copied
        with dataset_files(inputs, output, wanted.text_column) as files:
            return _prepare(files, output, wanted, observer, on_plan, interrupts)


def _prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    wanted: Options,
    observer: Observer,
    on_plan: Callable[[Prepared], None] | None,
    interrupts: Interrupts,
) -> Result:
    began = time.monotonic()
    warm_up(wanted)
    shelf = Shelf(read_from_cache)
    prepared = make_plan(inputs, output, wanted, shelf)
    keep_listings(shelf)
    if prepared.budget.note:
        observer.note(prepared.budget.note)
    workspace = Workspace(output)
    supply = make_supply(prepared, workspace)
    if not workspace.plan.exists() and not workspace.manifest.exists():
        prepared = _survey(prepared, supply, workspace)  # refused before anything is made
    with (
        interrupts.deferred(),
        open_job(prepared.plan, prepared.run, workspace, interrupts.check) as opened,
        contextlib.closing(supply),
    ):
        manifest, run = opened.manifest, {}
        if manifest is None:
            if not supply.surveyed:
                prepared = _survey(prepared, supply, workspace, opened.durable)
            if on_plan:
                on_plan(prepared)
            run = _mill(prepared, opened, supply, Watched(observer, supply), interrupts)
            books = opened.books
            assert books is not None
            for source in prepared.plan.sources:
                refuse_changed(source)
            made_later = formats_made_later(prepared.plan.settings)
            if made_later:
                observer.note(f"encoded; now writing {', '.join(made_later)}")
            manifest = committing.commit(
                prepared.plan,
                books.ledger,
                books.frontier.state,
                workspace,
                interrupts.check,
            )
        seconds = time.monotonic() - began
        if workspace.work.exists():
            if run or not workspace.run_record.exists():  # a crash may have come after it
                _write_run_record(workspace, prepared, run, seconds)
            workspace.remove_work()
    return Result(
        output=os.fspath(output),
        manifest=manifest,
        already_done=not run,
        seconds=seconds,
        run=run,
        warnings=_warnings(manifest, prepared.plan.settings, wanted.min_shard_tokens),
    )


def download(
    inputs: Any,
    output: str | os.PathLike[str] = "out",
    *,
    observer: Observer | None = None,
    on_plan: Callable[[Prepared], None] | None = None,
    **options: Any,
) -> Fetched:
    """Fetch the inputs that are elsewhere, so that `prepare` with the same arguments finds them
    here, also offline. Writes only to the caches.

    >>> tokenmill.download("hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT")
    """
    began = time.monotonic()
    wanted = make_options({**options, "keep_downloads": True})
    shelf, workspace = Shelf(read_from_cache), Workspace(output)
    with interruptible() as interrupts:
        prepared = make_plan(inputs, output, wanted, shelf)
        keep_listings(shelf)
        # All files, also for a trial: which of them it will need is known when it reads them.
        whole = msgspec.structs.replace(prepared.plan.settings, limit_docs=0, limit_tokens=0)
        plan = msgspec.structs.replace(prepared.plan, settings=whole)
        prepared = msgspec.structs.replace(prepared, plan=plan)
        supply, sources = make_supply(prepared, workspace), plan.sources
        prepared = _survey(prepared, supply, workspace)
        if on_plan:
            on_plan(prepared)
        watched, snapshot = Watched(observer or Observer(), supply), Snapshot()
        with interrupts.deferred(), contextlib.closing(supply):
            supply.start()
            for source in sources:
                while supply.here(source) is None:
                    interrupts.check()
                    watched.update(snapshot)
                    time.sleep(TICK_SECONDS)
            watched.update(snapshot)
    return Fetched(
        files=len(sources),
        bytes=prepared.plan.input_bytes,
        fetched_files=len(supply.missing),
        fetched_bytes=supply.bytes_total,
        seconds=time.monotonic() - began,
        revisions=prepared.plan.revisions,
    )


def make_supply(prepared: Prepared, workspace: Workspace) -> Supply:
    run = prepared.run
    return Supply(prepared.plan, workspace, keep=run.keep_downloads, downloads=run.downloads)


def with_needs(prepared: Prepared) -> Prepared:
    """For `plan`: what would be fetched; it is for `prepare` to refuse."""
    workspace = Workspace(prepared.output)
    supply = make_supply(prepared, workspace)
    supply.survey()
    return msgspec.structs.replace(prepared, needs=needs_of(prepared.plan, supply, workspace))


def _survey(
    prepared: Prepared, supply: Supply, workspace: Workspace, durable: Sequence[UnitRecord] = ()
) -> Prepared:
    """What is to be fetched, and whether it fits; raises where it does not."""
    supply.survey(durable)
    written = sum(piece.length for record in durable for piece in record.pieces)
    needs = needs_of(prepared.plan, supply, workspace, written)
    if needs is not None:
        refuse_if_offline(supply.missing)
        needs.refuse_if_short()
    return msgspec.structs.replace(prepared, needs=needs)


def keep_listings(shelf: Shelf) -> None:
    """So that the same inputs are found again without a request, also offline."""
    for name, content in shelf.new.items():
        with contextlib.suppress(TokenmillError):  # nothing is lost but time
            keep_in_cache(name, content)


def formats_made_later(settings: PlanSettings) -> list[str]:
    """Formats whose files are made when all is encoded: that may take a while."""
    first, *others = settings.layouts
    names = [first.format] if get_format(first.format).framed else []
    return names + [layout.format for layout in others]


def make_plan(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: Options,
    shelf: Shelf | None = None,
) -> Prepared:
    """Validate everything and look at the inputs. Writes nothing."""
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or not all(
        isinstance(i, str | os.PathLike) for i in inputs
    ):
        raise UsageError(f"inputs are paths, not {type(inputs).__name__}")
    encoding = find_encoding(options.tokenizer, options.pattern)
    settings = plan_settings(options, output, encoding)
    budget = fit_budget(
        options.workers,
        None if options.memory is None else parse_bytes(options.memory, what="--memory"),
    )
    pins: dict[str, str] = {}
    if not options.overwrite and any(is_url(os.fspath(one)) for one in inputs):
        pins = bound_revisions(Workspace(output))
    found = find_sources(
        inputs,
        settings.text_column,
        exclude=output,
        pins=pins,
        shelf=shelf or Shelf(read_from_cache),
    )
    if settings.text_separator and all(source.kind != "text" for source in found.sources):
        raise UsageError("--text-separator: none of the inputs is a text file")
    return Prepared(
        plan=Plan(settings=settings, sources=found.sources, revisions=found.revisions),
        encoding=encoding,
        found=found,
        run=run_settings(options, budget, encoding),
        budget=budget,
        output=os.fspath(output),
    )


def warm_up(options: Options) -> None:
    """Let the fork server open the encoder while this process looks at the inputs."""
    if options.workers == 0 or options.start_method != "forkserver":
        return
    start_fork_server(options.tokenizer, options.encoder, options.encoder_check, options.pattern)


def _mill(
    prepared: Prepared,
    opened: Opened,
    supply: Supply,
    observer: Observer,
    interrupts: Interrupts,
) -> dict[str, Any]:
    """Encode and write every unit that is not durable yet; all of them are when this returns."""
    from tokenmill.engines.inline import run_inline
    from tokenmill.engines.local import LocalEngine
    from tokenmill.engines.segments import segment_jobs

    plan, run, books = prepared.plan, prepared.run, opened.books
    assert books is not None
    with interrupts.at_once():
        gap = gap_for(prepared.encoding, observer.note) if run.encoder != "reference" else ()
    job = Job(
        settings=plan.settings,
        encoding=prepared.encoding,
        output=prepared.output,
        gap=gap or (),
        encoder=run.encoder if gap is not None else "reference",
        encoder_check=run.encoder_check,
        on_bad_row=run.on_bad_row,
        memory=prepared.budget.worker_bytes,
        workers=prepared.budget.wanted,
    )
    snapshot = Snapshot(bytes_total=plan.input_bytes)
    jobs = segment_jobs(plan, opened.durable, opened.aside, supply)
    books.on_durable = supply.units_durable
    supply.start()
    began, starting = time.monotonic(), 0.0
    try:
        if run.workers == 0:
            stats = run_inline(plan, job, books, jobs, observer, snapshot, interrupts.check)
        else:
            engine = LocalEngine(plan, job, run, books, observer, snapshot, interrupts.check)
            stats = engine.run(jobs)
            starting = engine.seconds_starting
    except TokenmillError:
        # What stopped us is the news, not that syncing fails too.
        with contextlib.suppress(TokenmillError):
            books.sync_now()  # what is written counts
        raise
    books.sync_now()
    return {
        "seconds_milling": round(time.monotonic() - began, 3),
        "seconds_starting": round(starting, 3),  # of these, until a worker was ready
        "units_resumed": books.resumed_units,
        "units_encoded": books.encoded_units,
        "retries": snapshot.retries,
        "probes": snapshot.probes,
        "encoder": stats,
    }


def _write_run_record(
    workspace: Workspace, prepared: Prepared, run: dict[str, Any], seconds: float
) -> None:
    """run.json: what the manifest must not hold, since it differs from run to run."""
    packages = ("tokenmill", "gigatoken", LIBRARY[prepared.encoding.kind], "pyarrow", "numpy")
    record = {
        "seconds": round(seconds, 3),
        **run,
        "settings": msgspec.to_builtins(prepared.run),
        "sources": {
            s.name: {"path": s.path or s.name, "mtime_ns": s.mtime_ns}
            for s in prepared.plan.sources
        },
        "tokenizer": prepared.encoding.path or prepared.encoding.name,
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
    }
    workspace.put_run_record(record)


def short_shards(manifest: Manifest, settings: PlanSettings, asked: str | int | None) -> list[str]:
    """Warnings for the shards that a trainer will find too short."""
    lines: list[str] = []
    for layout in settings.layouts:
        minimum, whose = get_format(layout.format).min_shard_tokens, "of a usual batch"
        if asked is not None:
            minimum, whose = parse_count(asked), "of --min-shard-tokens"
        files = [f for f in manifest.files if f.kind == "tokens" and f.format == layout.format]
        shards = Counter(file.split for file in files)
        lines += [
            f"{file.path} holds {file.tokens:,} tokens, fewer than the {minimum:,} {whose}: the "
            "trainer may refuse it"
            + (" (--last-shard merge would not leave it so)" if shards[file.split] > 1 else "")
            for file in files
            if file.tokens < minimum <= layout.shard_tokens
        ]
    return lines


def _warnings(manifest: Manifest, settings: PlanSettings, asked: str | int | None) -> list[str]:
    remedy = {
        "val": "; a larger --val, such as 0.05 or docs:100, holds something out",
        "train": "; a smaller --shard-tokens, or --val 0.05, leaves it something",
    }
    lines = [
        f"the {split.name} split is empty: no file was written for it{remedy.get(split.name, '')}"
        for split in manifest.splits
        if split.tokens == 0 and split.format == settings.format
    ]
    lines += short_shards(manifest, settings, asked)
    specials = manifest.counts["special_strings"]
    if specials:
        lines.append(
            f"{specials} special-token strings (such as <|endoftext|>) stood in documents; they "
            "were encoded as the text they are"
        )
    if manifest.set_aside:
        lines.append(
            f"{len(manifest.set_aside)} of the rows set aside are text, but encoding them killed "
            "or hung a worker (manifest.json names them)"
        )
    return lines
