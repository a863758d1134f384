"""A finished dataset in another format, without encoding again.

The source is verified first, then its documents are read in blocks, framed and cut as the new
format wants them. The output goes the way of every output: a work folder, files noted as they are
finished, a commit, the manifest last. The same call resumes; the token files are those that
`prepare` would have written in that format.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.commit import IMPORTED, PIECES, UNITS, Commit, carry_out
from tokenmill.config import PlanSettings, RunSettings, Val, settings_to_dict
from tokenmill.editions import Edition, Named, make_edition, named_table
from tokenmill.errors import RefusedError, UsageError, VerificationError
from tokenmill.inspection import read_run
from tokenmill.interrupts import Interrupts, interruptible
from tokenmill.job import open_job
from tokenmill.loader import open_dataset, settings_of
from tokenmill.manifest import Manifest
from tokenmill.needs import free_bytes
from tokenmill.options import Options, formats_of, layout_settings, make_options
from tokenmill.pack import frame_of
from tokenmill.pipeline import Result, short_shards
from tokenmill.plan import BoundPlan
from tokenmill.production import Production
from tokenmill.shards import BLOCK_DOCUMENTS, Reframed
from tokenmill.steps import explained, read_file, read_piece
from tokenmill.storage import OutputFiles, Workspace
from tokenmill.token_streams import Stream, open_streams
from tokenmill.verification import verify

COPY_BYTES = 8 << 20
# Of the options of `prepare`, those that say how tokens are laid out.
LAYOUT_OPTIONS = (
    "format", "eot", "cut", "shard_tokens", "min_shard_tokens", "last_shard", "compression",
    "name", "dtype",
)  # fmt: skip


def export(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Result:
    """Convert a finished dataset: `export("out", "out-megatron", format="megatron")`."""
    unknown = options.keys() - set(LAYOUT_OPTIONS)
    if unknown or "format" not in options:
        raise UsageError(f"export takes format=, and no {', '.join(sorted(unknown)) or 'less'}")
    source = Path(directory)
    manifest = open_dataset(source).manifest
    plan = _plan(manifest, make_options(options), source, output)
    workspace = Workspace(output)
    run = RunSettings(workers=0, memory=0, overwrite=overwrite)
    with interruptible() as interrupts:
        if overwrite or not workspace.manifest.exists():
            if not overwrite:  # which makes room, nobody knows how much
                _refuse_full_disk(plan, manifest, workspace)
            note("verifying the source")
            _refuse_damaged(source)
        asked = options.get("min_shard_tokens")
        return _export(source, manifest, plan, workspace, run, interrupts, note, asked)


def _export(
    source: Path,
    manifest: Manifest,
    plan: BoundPlan,
    workspace: Workspace,
    run: RunSettings,
    interrupts: Interrupts,
    note: Callable[[str], None],
    asked: str | int | None,
) -> Result:
    began = time.monotonic()
    with (
        interrupts.deferred(),
        open_job(plan, run, workspace, interrupts.check) as opened,
    ):
        made = opened.manifest
        if made is None:
            note("writing")
            made = _convert(source, manifest, plan, workspace, interrupts.check)
        if workspace.work.exists():
            _write_record(workspace, source, time.monotonic() - began)
            workspace.remove_work()
    return Result(
        output=os.fspath(workspace.output),
        manifest=made,
        already_done=opened.manifest is not None,
        seconds=time.monotonic() - began,
        run={},
        warnings=short_shards(made, plan.settings, asked),
    )


def _plan(
    manifest: Manifest, options: Options, source: Path, output: str | os.PathLike[str]
) -> BoundPlan:
    if Path(output).resolve() == source.resolve():
        raise UsageError(f"-o {output}: is the dataset itself", hint="give another folder")
    old = settings_of(manifest)
    if old.eot == "none" and options.eot not in (None, "none"):
        raise UsageError(
            f"--eot {options.eot}: {source} has no separators, and export adds none",
            hint="prepare it anew",
        )
    if old.eot == "none":
        options = msgspec.structs.replace(options, eot="none")
    if options.name is None and old.name:
        options = msgspec.structs.replace(options, name=old.name)
    formats = formats_of(options.format)
    val = _val(old, options, formats[0].eot, manifest)
    held = old.val.amount or old.shard_tokens
    if val.kind == "shard" and not all(fmt.sharded for fmt in formats):
        val = Val(kind="tokens", amount=held)
    settings = layout_settings(
        msgspec.structs.replace(old, val=val, eot_id=-1 if options.eot == "none" else old.eot_id),
        options,
        formats,
        output,
    )
    if val.kind == "shard":
        same = {s.shard_tokens for s in settings.layouts} == {held}
        val = Val(kind="shard", amount=0 if same else held)
        settings = msgspec.structs.replace(settings, val=val)
    if [s.eot for s in settings.layouts] != [old.eot] * len(settings.layouts):
        _refuse_unframed(source, manifest, old)
    bound = {
        **{key: value for key, value in manifest.plan.items() if key != IMPORTED},
        "settings": settings_to_dict(settings),
        "exported_from": manifest.checksum,
    }
    return BoundPlan(settings=settings, sources=(), bound=bound)


def _refuse_unframed(source: Path, manifest: Manifest, old: PlanSettings) -> None:
    """An imported stream may begin or end within a document: that one has no separator to move."""
    for stream in open_streams(source, manifest):
        if old.eot == "none" or not stream.tokens:
            continue
        at = 0 if old.eot == "prepend" else stream.tokens - 1
        if int(stream.read(at, at + 1)[0]) != old.eot_id:
            raise UsageError(
                f"{source}: {stream.name} {'begins' if at == 0 else 'ends'} within a document, "
                "whose separator is not there: separators cannot be moved",
                hint=f"use --eot {old.eot}",
            )


def _val(old: PlanSettings, options: Options, eot: str, manifest: Manifest) -> Val:
    """The same documents held out: where their tokens are counted anew, by their number."""
    same_frame = (options.eot or eot) != "none" or old.eot == "none"
    if old.val.kind not in ("shard", "tokens") or same_frame:
        return old.val
    held = next(s for s in manifest.splits if s.name == "val" and s.format == old.format)
    return Val(kind="docs", amount=held.documents) if held.documents else Val(kind="none")


def _refuse_damaged(source: Path) -> None:
    report = verify(source)
    if report.problems:
        raise VerificationError(
            f"{source}: is damaged, and nothing is made of it:", lines=report.problems[:10]
        )


def _refuse_full_disk(plan: BoundPlan, manifest: Manifest, workspace: Workspace) -> None:
    """Before an hour of writing, not after. Only what is sure: a packed format may be shorter."""
    needed = -workspace.bytes_begun()
    for layout in plan.settings.layouts:
        if layout.compression == "none" and layout.format != "parquet":
            framed = _grows(manifest, layout) * manifest.counts["documents"]
            needed += (manifest.counts["tokens"] + framed) * np.dtype(layout.dtype).itemsize
    free = free_bytes(workspace.output)
    if 0 <= free < needed:
        raise RefusedError(
            f"{workspace.output}: {free / 1e9:.2f} GB are free on its disk, {needed / 1e9:.2f} GB "
            "are needed",
            hint="free some space, or write to another disk with -o",
        )


def _grows(manifest: Manifest, settings: PlanSettings) -> int:
    """Tokens that a document has more in a new frame than in its old one."""
    before, after = frame_of(settings_of(manifest)), frame_of(settings)
    return sum(map(len, after)) - sum(map(len, before))


def _convert(
    source: Path,
    manifest: Manifest,
    plan: BoundPlan,
    workspace: Workspace,
    check_interrupt: Callable[[], None],
) -> Manifest:
    files = OutputFiles(workspace)
    production = Production(workspace, files, plan.fingerprint, check_interrupt)
    with contextlib.closing(files), contextlib.closing(production):
        streams = open_streams(source, manifest)
        editions = [
            make_edition(
                list(streams),
                settings,
                plan.settings.folder_of(settings.format),
                plan.fingerprint,
                production,
            )
            for settings in plan.settings.layouts
        ]
        named = [file for edition in editions for file in edition.files]
        named += _index(source, manifest, plan, streams, production)
        table = b"".join(file.table for file in named)
        named.append(named_table(UNITS, read_file(source / UNITS), production))
        named.append(named_table(PIECES, table, production))
    decision = Commit(
        names={entry.path: working for entry, working, _ in named},
        manifest=_manifest(manifest, plan, named, editions),
    )
    return carry_out(decision, workspace)


def _index(
    source: Path,
    manifest: Manifest,
    plan: BoundPlan,
    streams: list[Stream],
    production: Production,
) -> list[Named]:
    """The index and what was set aside, copied; ends of documents anew where frames differ."""
    by_name = {stream.name: Reframed(stream, plan.settings.layouts[0]) for stream in streams}
    named = []
    for entry in manifest.files:
        if entry.kind not in ("ends", "runs", "quarantine"):
            continue
        working = "-".join(entry.path.split("/"))
        if entry.kind == "ends":
            made = production.make(working, _ends(by_name[entry.stream]))
        else:
            made = production.make(working, _copy(source / entry.path, entry.size))
        new = made.entry(entry.path, entry.kind, stream=entry.stream)
        named.append(Named(new, working, made.table()))
    return named


def _ends(stream: Reframed) -> Generator[Any, None, None]:
    for first in range(0, stream.documents, BLOCK_DOCUMENTS):
        ends = stream.ends(first, min(first + BLOCK_DOCUMENTS, stream.documents))
        yield ends.astype("<u8")


def _copy(path: Path, size: int) -> Generator[bytes, None, None]:
    for at in range(0, size, COPY_BYTES):
        with explained("read", path):
            yield read_piece(path, at, min(COPY_BYTES, size - at))


def _manifest(
    source: Manifest, plan: BoundPlan, named: list[Named], editions: list[Edition]
) -> Manifest:
    """The source's counts and sources, with the tokens that the new frame gives."""
    grows = _grows(source, plan.settings)

    def counted(counts: dict[str, Any]) -> dict[str, Any]:
        return {**counts, "tokens": counts["tokens"] + grows * counts["documents"]}

    return Manifest(
        version=source.version,
        fingerprint=plan.fingerprint,
        plan=plan.to_dict(),
        counts=counted(source.counts),
        splits=[split for edition in editions for split in edition.splits],
        sources=[counted(one) for one in source.sources],
        set_aside=source.set_aside,
        files=[file.entry for file in named],
    ).sealed()


def _write_record(workspace: Workspace, source: Path, seconds: float) -> None:
    """run.json: with what the source's says of its inputs and tokenizer, for `verify --deep`."""
    earlier = read_run(source) or {}
    record: dict[str, Any] = {
        "seconds": round(seconds, 3),
        "exported_from": os.path.abspath(source),
        **{key: earlier[key] for key in ("sources", "tokenizer") if key in earlier},
    }
    workspace.put_run_record(record)
