"""A finished dataset in another format, without encoding again.

The source is verified first, then its documents are read in blocks, framed and cut as the new
format wants them. The token files are those that `prepare` would have written in that format.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec
import numpy as np

from tokenmill.amounts import show_bytes
from tokenmill.dataset.conversion import make_dataset
from tokenmill.dataset.loader import Dataset, open_dataset
from tokenmill.dataset.order.new_order import bring_into_order, split_parts
from tokenmill.dataset.order.one_source import (
    entries_of_one,
    numbers_of,
    refuse_one_source,
    total_counts,
)
from tokenmill.dataset.streams import Stream, open_streams
from tokenmill.dataset.verification import missing_files, read_run, verify
from tokenmill.errors import RefusedError, UsageError, VerificationError
from tokenmill.output.commit import IMPORTED, Content
from tokenmill.output.editions import (
    UNITS,
    DatasetFile,
    cut_edition,
    dataset_file,
    index_tables,
    make_editions,
)
from tokenmill.output.file_maker import BufferSource, FileMaker, FileTask, pieces_of
from tokenmill.output.file_tasks import FileJob, FileWorker, MakeFiles
from tokenmill.output.manifest import Manifest
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.order.reordering import NewOrder
from tokenmill.output.result import Result, warnings_of_splits
from tokenmill.output.stored import FileStream, StreamFiles, TokenFile
from tokenmill.output.workspace import Workspace
from tokenmill.planning.options import Options, formats_of, layout_settings, make_options
from tokenmill.planning.plan import BoundPlan
from tokenmill.settings import Layout, PlanSettings, Reshuffle, Val
from tokenmill.system.buckets.address import is_bucket, parse_address
from tokenmill.system.disk import free_bytes
from tokenmill.system.interrupts import interruptible
from tokenmill.system.memory import NO_LIMIT, MemoryShare
from tokenmill.system.store import FolderStore, Place, Store, place_name, read_small
from tokenmill.tokens.order import order_rule
from tokenmill.tokens.packing import frame_of
from tokenmill.tokens.reframe import BLOCK_DOCUMENTS, ReframedStream, StoredStream

TABLE_BYTES = 80  # of a document, in the ranges and the index of another order
KEPT_OF_RUN = ("sources", "tokenizer", "settings", "encoder")


def export(
    directory: Place,
    output: Place,
    *,
    overwrite: bool = False,
    note: Callable[[str], None] = lambda text: None,
    make_files: MakeFiles | None = None,
    room: MemoryShare = NO_LIMIT,
    shuffle: bool = False,
    seed: int | None = None,
    only: str = "",
    verified: bool = False,
    shared: bool = False,
    **options: Any,
) -> Result:
    """Convert a finished dataset: `export("out", "out-megatron", format="megatron")`.

    `shuffle`: documents in a new order, within each split; another `seed`, another order.
    `only`: the documents of this source alone. `verified`: the dataset was verified just now.
    `shared`: several machines write to the output.
    """
    unknown = sorted(options.keys() - set(Layout.__struct_fields__))
    if unknown:
        raise UsageError(f"export() got an unexpected option: {', '.join(unknown)}")
    if "format" not in options:
        raise UsageError("export() requires format=")
    source = open_dataset(directory)
    if missing := missing_files(source.store, source.manifest):
        what = f"{source.store.where()}: is not complete, so it is not converted:"
        raise VerificationError(what, lines=[f"{name}: missing" for name in missing[:10]])
    if seed is not None and not 0 <= seed < 1 << 64:
        raise UsageError(f"--seed {seed}: must be from 0 to 2**64 - 1")
    if seed is not None and not shuffle:
        raise UsageError("--seed: nothing is drawn without --shuffle", hint="add --shuffle")
    order = seed or 0 if shuffle else None
    plan = _plan(source, make_options(options), place_name(output), order, only)
    workspace = open_workspace(output, shared=shared)
    convert = functools.partial(_convert, source, plan, note, make_files, room)
    with interruptible() as interrupts:
        if overwrite or not workspace.has(workspace.manifest):
            # --overwrite makes room, nobody knows how much.
            if not overwrite and isinstance(workspace, Workspace):
                _refuse_full_disk(plan, source.manifest, workspace)
            note("verifying the source")
            if not verified and (problems := verify(source.store).problems):
                what = f"{source.store.where()}: is damaged, so it is not converted:"
                raise VerificationError(what, lines=problems[:10])
        record = functools.partial(_run_record, source.store)
        result = make_dataset(plan, workspace, interrupts, overwrite, convert, record)
    asked = options.get("min_shard_tokens")
    warnings = warnings_of_splits(result.manifest, plan.settings, asked)
    return msgspec.structs.replace(result, warnings=warnings)


def _plan(
    source: Dataset,
    options: Options,
    output: str,
    seed: int | None,
    only: str = "",
) -> BoundPlan:
    """`seed`: of a new order; None: documents stay in theirs. `only`: the source that is wanted."""
    if _same_place(output, source.store):
        raise UsageError(f"-o {output}: is the dataset itself", hint="give another folder")
    manifest, old = source.manifest, source.settings
    if old.first.eot == "none" and options.eot not in (None, "none"):
        raise UsageError(
            f"--eot {options.eot}: {source.store.where()} has no separators, and export does "
            "not add them",
            hint="run `tokenmill prepare` again",
        )
    if old.first.eot == "none":
        options = msgspec.structs.replace(options, eot="none")
    if options.name is None and old.first.name:
        options = msgspec.structs.replace(options, name=old.first.name)
    formats = formats_of(options.format)
    val = _val(old, options, formats[0].eot, manifest)
    held = old.val.amount or old.first.shard_tokens
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
    if seed is not None:
        of = old.reshuffle.of if old.reshuffle else manifest.checksum
        reshuffle = Reshuffle(seed=seed, of=of)
        settings = msgspec.structs.replace(settings, reshuffle=reshuffle)
    if only:
        refuse_one_source(manifest)
        numbers_of(manifest, only)  # refuses what is not there
        settings = msgspec.structs.replace(settings, only=only)
    if seed is not None or only or any(layout.eot != old.first.eot for layout in settings.layouts):
        _refuse_unframed(source, "documents" if seed is not None or only else "separators")
    bound = {
        **{key: value for key, value in manifest.plan.items() if key != IMPORTED},
        "settings": settings.to_dict(),
        "exported_from": manifest.checksum,
    }
    return BoundPlan(settings=settings, sources=(), bound=bound)


def _same_place(output: str, store: Store) -> bool:
    if is_bucket(output):
        return str(parse_address(output)) == store.where()
    return os.path.realpath(output) == os.path.realpath(store.where())


def _refuse_unframed(source: Dataset, what: str) -> None:
    """An imported stream may begin or end within a document: that one has no separator to move,
    and would be one with the document behind it in another order."""
    eot = source.settings.first.eot
    for stream in open_streams(source):
        if eot == "none" or not stream.tokens:
            continue
        at = 0 if eot == "prepend" else stream.tokens - 1
        if int(stream.read(at, at + 1)[0]) != source.settings.eot_id:
            raise UsageError(
                f"{source.store.where()}: {stream.name} {'begins' if at == 0 else 'ends'} within a "
                f"document, whose separator is not there: {what} cannot be moved",
                hint=f"use --eot {eot}"
                + (" and keep all documents in their order" if what == "documents" else ""),
            )


def _val(old: PlanSettings, options: Options, eot: str, manifest: Manifest) -> Val:
    """The same documents in the validation split: by their number, if tokens count differently."""
    same_frame = (options.eot or eot) != "none" or old.first.eot == "none"
    if old.val.kind not in ("shard", "tokens") or same_frame:
        return old.val
    held = next(s for s in manifest.splits if s.name == "val" and s.format == old.first.format)
    return Val(kind="docs", amount=held.documents) if held.documents else Val(kind="none")


def _refuse_full_disk(plan: BoundPlan, manifest: Manifest, workspace: Workspace) -> None:
    """Before an hour of writing, not after. Only what is sure: a packed format may be shorter."""
    needed = -workspace.bytes_begun()
    for layout in plan.settings.layouts:
        if layout.compression == "none" and layout.format != "parquet":
            framed = _grows(manifest, plan.settings, layout) * manifest.counts["documents"]
            needed += (manifest.counts["tokens"] + framed) * np.dtype(layout.dtype).itemsize
    if plan.settings.only:  # how much of it, the manifest does not tell for every dataset
        return
    if plan.settings.reshuffle is not None:  # runs or files beside ranges, and tables
        needed += manifest.counts["tokens"] * np.dtype(manifest.settings.first.dtype).itemsize
        needed += TABLE_BYTES * manifest.counts["documents"]
    free = free_bytes(workspace.output)
    if 0 <= free < needed:
        raise RefusedError(
            f"{workspace.output}: {show_bytes(free)} are free on its disk, {show_bytes(needed)} "
            "are needed",
            hint="free some space, or write to another disk with -o",
        )


def _grows(manifest: Manifest, settings: PlanSettings, layout: Layout) -> int:
    """Tokens that a document has more in a new frame than in its old one."""
    old = manifest.settings
    before, after = frame_of(old, old.first), frame_of(settings, layout)
    return sum(map(len, after)) - sum(map(len, before))


def _stream_files(stream: Stream) -> StreamFiles:
    """For another process, which reads the same files."""
    return StreamFiles(
        stream.name,
        stream.settings,
        stream.layout,
        stream.tokens,
        stream.documents,
        tuple(TokenFile(file.path, file.first_token, file.tokens) for file in stream.files),
        f"index/{stream.name}.ends",
        f"index/{stream.name}.runs",
        tuple(stream.source_names),
        stream.format.framed,
    )


def _convert(
    source: Dataset,
    plan: BoundPlan,
    note: Callable[[str], None],
    make_files: MakeFiles | None,
    room: MemoryShare,
    maker: FileMaker,
) -> Content:
    """The source's counts and sources, with the tokens that the new frame gives."""
    manifest, settings, opened = source.manifest, plan.settings, open_streams(source)
    about = tuple(map(_stream_files, opened))
    job = FileJob(settings, about, source.store.where(), maker.workspace.address)
    if not isinstance(source.store, FolderStore) and not is_bucket(source.store.where()):
        make_files = None  # no other process could open it
    streams: Sequence[StoredStream] = opened
    new_index: list[DatasetFile] = []
    if (order := _new_order(source, settings, opened)) is not None:
        note("bringing the documents into their order")
        make = functools.partial(_make_order, job, source.store, maker, make_files)
        rows = [entry["rows"] for entry in manifest.sources]
        about, new_index = bring_into_order(source.store, about, order, rows, maker, make)
        streams = [FileStream(maker.files, one) for one in about]
        job = FileJob(settings, about, maker.workspace.made_in, maker.workspace.address)
    note("writing")
    cuts = [cut_edition(plan, layout, streams, room) for layout in settings.layouts]
    editions = make_editions(plan, cuts, job, maker, make_files)
    files = [file for edition in editions for file in edition.files]
    files += _index(source, settings, streams, maker, new_index)
    files += index_tables(files, read_small(source.store, UNITS), maker)
    grows = _grows(manifest, settings, settings.first)
    counts, entries = manifest.counts, manifest.sources
    if order is not None and order.sources:
        entries = entries_of_one(manifest, order.sources)
        counts = total_counts(manifest, entries)

    def counted(counts: dict[str, Any]) -> dict[str, Any]:
        documents = counts["documents"] + counts.get("copies", 0)
        return {**counts, "tokens": counts["tokens"] + grows * documents}

    return Content(
        files=files,
        splits=[split for edition in editions for split in edition.splits],
        counts=counted(counts),
        sources=[counted(one) for one in entries],
        set_aside=manifest.set_aside,
    )


def _new_order(source: Dataset, settings: PlanSettings, streams: list[Stream]) -> NewOrder | None:
    """The order of the documents, or a part of them; None where all stay as they are."""
    old, new = source.settings, settings
    if (new.reshuffle, new.only) == (old.reshuffle, old.only):
        return None
    _, range_bytes, _ = order_rule()
    return NewOrder(
        tuple(part for number, one in enumerate(streams) for part in split_parts(number, one)),
        range_bytes,
        new.reshuffle.seed if new.reshuffle else 0,
        new.reshuffle.of if new.reshuffle else "",
        tuple(f"index/{stream.name}.numbers" for stream in streams if old.reshuffle),
        numbers_of(source.manifest, new.only) if new.only != old.only else (),
    )


def _make_order(
    job: FileJob,
    store: Store,
    maker: FileMaker,
    make_files: MakeFiles | None,
    order: NewOrder,
    tasks: list[FileTask],
) -> None:
    """Files of another order, by workers, or in this process if only it can read the source."""
    job = msgspec.structs.replace(job, order=order)
    missing = maker.missing(tasks)
    maker.workspace.announce([task.working for task in missing])
    if make_files is not None:
        make_files(job, missing, maker)
        return
    worker = FileWorker(job, store, maker.workspace.open_files())
    with contextlib.closing(worker):
        for task in missing:
            maker.note(task, *worker.make(task, lambda _: maker.check_interrupt()))


def _index(
    source: Dataset,
    settings: PlanSettings,
    streams: Sequence[StoredStream],
    maker: FileMaker,
    new: list[DatasetFile],
) -> list[DatasetFile]:
    """The index and the quarantine, copied; ends of documents made again where frames differ.
    `new`: what goes with another order in place of the old one."""
    by_name = {stream.name: ReframedStream(stream, settings, settings.first) for stream in streams}
    copied = ("quarantine",) if new else ("runs", "rows", "numbers", "quarantine")
    files: list[DatasetFile] = []
    for entry in source.manifest.files:
        working = maker.workspace.name_of("-".join(entry.path.split("/")), entry.path)
        if entry.kind == "ends" and by_name[entry.stream].documents:
            ends = functools.partial(_ends, by_name[entry.stream])
            made = maker.make(working, BufferSource(ends))
        elif entry.kind in copied:
            copied_pieces = functools.partial(pieces_of, source.store, entry.path, entry.size)
            made = maker.make(working, BufferSource(copied_pieces))
        else:
            continue
        files.append(dataset_file(made, entry.path, entry.kind, stream=entry.stream))
    return files + new


def _ends(stream: ReframedStream) -> Generator[Any, None, None]:
    for first in range(0, stream.documents, BLOCK_DOCUMENTS):
        ends = stream.ends(first, min(first + BLOCK_DOCUMENTS, stream.documents))
        yield ends.astype("<u8")


def _run_record(source: Store, seconds: float) -> dict[str, Any]:
    """With the source's entries about inputs and tokenizer, for `verify --deep`."""
    earlier = read_run(source) or {}
    kept = {key: earlier[key] for key in KEPT_OF_RUN if key in earlier}
    where = source.where()
    where = where if is_bucket(where) else os.path.abspath(where)
    return {"seconds": round(seconds, 3), "exported_from": where, **kept}
