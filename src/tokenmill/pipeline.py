"""The main path on one screen: inputs to a committed dataset.

settings -> sources -> plan -> (lock, recover) -> engine -> commit -> run.json
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from tokenmill import commit as committing
from tokenmill.config import (
    DEFAULT_START_METHOD,
    START_METHODS,
    Budget,
    PlanSettings,
    RunSettings,
    Val,
    fit_budget,
    parse_bytes,
    parse_count,
)
from tokenmill.documents import refuse_changed
from tokenmill.engines.forkserver import start_fork_server
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.engines.unit import Job
from tokenmill.errors import Interrupted, TokenmillError, UsageError
from tokenmill.formats import get_format
from tokenmill.gap_cache import LIBRARY, gap_for
from tokenmill.job import Opened, open_job
from tokenmill.manifest import Manifest
from tokenmill.plan import Plan
from tokenmill.sources import Found, find_sources
from tokenmill.storage import Workspace, write_atomic
from tokenmill.tokenizer import Encoding
from tokenmill.vocabulary_files import find_encoding, settled_id, special_id

DEFAULT_SHARD_TOKENS = 100_000_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may ask for; None means the format's or the machine's default."""

    text_column: str = "text"
    tokenizer: str = "gpt2"
    pattern: str = ""
    eot_token: str | int | None = None
    bos_token: str | int | None = None
    dtype: str | None = None
    format: str = "nanogpt"
    eot: str | None = None
    cut: str | None = None
    shard_tokens: str | int | None = None
    name: str | None = None
    val: str | float | None = None
    seed: int = 0
    drop_empty: bool = False
    workers: int | None = None
    memory: str | int | None = None
    start_method: str = DEFAULT_START_METHOD
    encoder: str = "auto"
    encoder_check: bool = True
    on_bad_row: str = "stop"
    overwrite: bool = False


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


def prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    observer: Observer | None = None,
    on_plan: Callable[[Prepared], None] | None = None,
    **options: Any,
) -> Result:
    """Turn text into token files; the same call resumes after any interruption.

    >>> tokenmill.prepare("data/*.parquet", "out", format="llmc", tokenizer="gpt2")
    """
    began = time.monotonic()
    observer = observer or Observer()
    wanted = make_options(options)
    warm_up(wanted)
    prepared = make_plan(inputs, output, wanted)
    if prepared.budget.note:
        observer.note(prepared.budget.note)
    workspace = Workspace(output)
    with open_job(prepared.plan, prepared.run, workspace) as opened, _signals() as interrupt:
        manifest, run = opened.manifest, {}
        if manifest is None:
            if on_plan:
                on_plan(prepared)
            run = _mill(prepared, opened, observer, interrupt)
            books = opened.books
            assert books is not None
            for source in prepared.plan.sources:
                refuse_changed(source)
            manifest = committing.commit(
                prepared.plan, books.ledger, books.frontier.state, workspace
            )
    seconds = time.monotonic() - began
    if run:
        _write_run_record(workspace, prepared, run, seconds)
    return Result(
        output=os.fspath(output),
        manifest=manifest,
        already_done=not run,
        seconds=seconds,
        run=run,
        warnings=_warnings(manifest, prepared.plan.settings),
    )


def make_options(options: dict[str, Any]) -> Options:
    try:
        wanted = Options(**options)
        msgspec.convert(msgspec.to_builtins(wanted), Options)  # a Struct's own call checks no types
    except (TypeError, msgspec.ValidationError) as error:
        raise UsageError(str(error).replace("Unexpected", "unexpected")) from None
    if not 0 <= wanted.seed < 1 << 64:
        raise UsageError(f"--seed {wanted.seed}: must be from 0 to 2**64 - 1")
    return wanted


def make_plan(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: Options,
) -> Prepared:
    """Validate everything and look at the inputs. Writes nothing."""
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    encoding = find_encoding(options.tokenizer, options.pattern)
    settings = plan_settings(options, output, encoding)
    budget = fit_budget(
        options.workers,
        None if options.memory is None else parse_bytes(options.memory, what="--memory"),
    )
    found = find_sources(inputs, settings.text_column, exclude=output)
    return Prepared(
        plan=Plan(settings=settings, sources=found.sources),
        encoding=encoding,
        found=found,
        run=_run_settings(options, budget, encoding),
        budget=budget,
        output=os.fspath(output),
    )


def plan_settings(
    options: Options, output: str | os.PathLike[str], encoding: Encoding | None = None
) -> PlanSettings:
    """The format's defaults under what was asked for, and what cannot be refused."""
    encoding = encoding or find_encoding(options.tokenizer, options.pattern)
    if os.fsencode(output).decode(errors="ignore") != os.fspath(output):
        raise UsageError(f"{output!r}: not a name in UTF-8")
    if any(letter in options.text_column for letter in '"\\') or not options.text_column:
        raise UsageError(f"--text-column {options.text_column!r}: cannot be a column's name")
    fmt = get_format(options.format)
    eot = _one_of("--eot", options.eot or fmt.eot, ("append", "prepend", "none"))
    cut = _one_of("--cut", options.cut or fmt.cut, ("exact", "document"))
    val = Val.parse(fmt.val if options.val is None else options.val)
    if not fmt.sharded:
        if options.cut or options.shard_tokens is not None:
            raise UsageError(
                f"--format {fmt.name} is one file per split: it takes no --cut or --shard-tokens",
                hint="use --format llmc for shards",
            )
        if val.kind == "shard":
            raise UsageError(
                f"--val shard: {fmt.name} has no shards",
                hint="use --val 0.0005, docs:N, tokens:N or none",
            )
    shard_tokens = 0
    if fmt.sharded:
        asked = DEFAULT_SHARD_TOKENS if options.shard_tokens is None else options.shard_tokens
        shard_tokens = parse_count(asked, what="--shard-tokens")
        if shard_tokens < 1:
            raise UsageError("--shard-tokens must be at least 1")
    name = options.name or Path(output).resolve().name
    if not name or "/" in name or name.startswith(".") or "\0" in name:
        raise UsageError(f"--name {name!r} cannot begin a file name", hint="give a plain --name")
    eot_id, bos_id = _special_ids(options, encoding, eot)
    vocab_size = max(encoding.vocab_size, eot_id + 1, bos_id + 1)
    settings = PlanSettings(
        text_column=options.text_column,
        tokenizer=encoding.name,
        tokenizer_sha256=encoding.sha256,
        pattern=encoding.pattern if encoding.path else "",
        eot_id=eot_id,
        bos_id=bos_id,
        vocab_size=vocab_size,
        format=fmt.name,
        dtype=_dtype(options, vocab_size),  # type: ignore[arg-type]
        eot=eot,  # type: ignore[arg-type]
        cut=cut,  # type: ignore[arg-type]
        shard_tokens=shard_tokens,
        val=val,
        seed=options.seed,
        # A name that is in no file's name must not bind the output.
        name=name if fmt.sharded else "",
        drop_empty=options.drop_empty,
    )
    limit = fmt.max_shard_tokens(settings)
    if limit is not None and shard_tokens > limit:
        raise UsageError(
            f"--shard-tokens {shard_tokens}: {fmt.name} reads at most {limit} tokens in one file"
        )
    return settings


def _special_ids(options: Options, encoding: Encoding, eot: str) -> tuple[int, int]:
    """The ids that separate and begin documents: named by the user, or settled by the file."""
    eot_id = bos_id = -1
    if options.eot_token is not None:
        eot_id = special_id(encoding, str(options.eot_token), "--eot-token")
    elif eot != "none":
        eot_id = settled_id(encoding, encoding.eot_candidates, "--eot-token")
    if options.bos_token == "auto":
        bos_id = settled_id(encoding, encoding.bos_candidates, "--bos-token")
    elif options.bos_token is not None:
        bos_id = special_id(encoding, str(options.bos_token), "--bos-token")
    return eot_id if eot != "none" else -1, bos_id


def _dtype(options: Options, vocab_size: int) -> str:
    if options.dtype is None:
        return "uint16" if vocab_size <= 1 << 16 else "uint32"
    dtype = _one_of("--dtype", options.dtype, ("uint16", "uint32"))
    if dtype == "uint16" and vocab_size > 1 << 16:
        raise UsageError(
            f"--dtype uint16: holds ids up to 65535, the tokenizer has ids up to {vocab_size - 1}",
            hint="leave --dtype out, or use --dtype uint32",
        )
    return dtype


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"{what} {value!r}: must be one of {', '.join(allowed)}")
    return value


def _run_settings(options: Options, budget: Budget, encoding: Encoding) -> RunSettings:
    if options.encoder == "gigatoken" and encoding.gigatoken_scheme is None:
        raise UsageError(
            f"--encoder gigatoken cannot load {encoding.name}", hint="use --encoder auto"
        )
    return RunSettings(
        workers=budget.workers,
        memory=budget.memory,
        start_method=_one_of("--start-method", options.start_method, START_METHODS),
        encoder=_one_of(  # type: ignore[arg-type]
            "--encoder", options.encoder, ("auto", "gigatoken", "reference")
        ),
        encoder_check=options.encoder_check,
        on_bad_row=_one_of(  # type: ignore[arg-type]
            "--on-bad-row", options.on_bad_row, ("stop", "quarantine")
        ),
        overwrite=options.overwrite,
        **_test_knobs(),
    )


def _test_knobs() -> dict[str, Any]:
    """Timers that tests shorten; a user has no reason to."""
    knobs = {}
    for name in ("sync_seconds", "stuck_seconds"):
        value = os.environ.get(f"TOKENMILL_{name.upper()}")
        if value and value.replace(".", "", 1).isdigit():
            knobs[name] = float(value)
    return knobs


def warm_up(options: Options) -> None:
    """Let the fork server open the encoder while this process looks at the inputs."""
    if options.workers == 0 or options.start_method != "forkserver":
        return
    start_fork_server(options.tokenizer, options.encoder, options.encoder_check, options.pattern)


def _mill(
    prepared: Prepared, opened: Opened, observer: Observer, interrupt: Callable[[], None]
) -> dict[str, Any]:
    """Encode and write every unit that is not durable yet; all of them are when this returns."""
    from tokenmill.engines.inline import run_inline
    from tokenmill.engines.local import LocalEngine
    from tokenmill.engines.segments import segment_jobs

    plan, run, books = prepared.plan, prepared.run, opened.books
    assert books is not None
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
    )
    snapshot = Snapshot(bytes_total=plan.input_bytes)
    jobs = segment_jobs(plan, opened.durable, opened.aside)
    began = time.monotonic()
    try:
        if run.workers == 0:
            stats = run_inline(plan, job, books, jobs, observer, snapshot, interrupt)
        else:
            engine = LocalEngine(plan, job, run, books, observer, snapshot, interrupt)
            stats = engine.run(jobs)
    except TokenmillError:
        with suppress(TokenmillError):  # what stopped us is the news, not that syncing fails too
            books.sync_now()  # what is written counts
        raise
    books.sync_now()
    return {
        "seconds_milling": round(time.monotonic() - began, 3),
        "units_resumed": books.resumed_units,
        "units_encoded": books.encoded_units,
        "retries": snapshot.retries,
        "probes": snapshot.probes,
        "encoder": stats,
    }


@contextmanager
def _signals() -> Iterator[Callable[[], None]]:
    """Ctrl-C and SIGTERM set a flag; the returned function raises when it is set."""
    received: list[int] = []

    def check() -> None:
        if received:
            name = signal.Signals(received[0]).name
            raise Interrupted(
                f"stopped by {name}; what is durable is kept",
                hint="run the same command again to resume",
                signal_number=received[0],
            )

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {
        number: signal.signal(number, lambda n, _: received.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_run_record(
    workspace: Workspace, prepared: Prepared, run: dict[str, Any], seconds: float
) -> None:
    """run.json: what the manifest must not hold, since it differs from run to run."""
    packages = ("tokenmill", "gigatoken", LIBRARY[prepared.encoding.kind], "pyarrow", "numpy")
    record = {
        "version": 1,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 3),
        **run,
        "settings": msgspec.to_builtins(prepared.run),
        "sources": {
            s.name: {"path": s.path, "mtime_ns": s.mtime_ns} for s in prepared.plan.sources
        },
        "tokenizer": prepared.encoding.path or prepared.encoding.name,
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
    }
    content = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    write_atomic(workspace.output / "run.json", content)


def _warnings(manifest: Manifest, settings: PlanSettings) -> list[str]:
    lines = [
        f"the {split.name} split is empty: no file was written for it"
        for split in manifest.splits
        if split.tokens == 0
    ]
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
