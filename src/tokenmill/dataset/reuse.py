"""What a plan can take from a finished dataset, or why nothing: the documents of sources that are
unchanged (`--reuse`), or all documents of its training split (`dataset:DIR` in a mixture)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tokenmill.amounts import counted
from tokenmill.dataset.loader import Dataset, open_dataset
from tokenmill.dataset.verification import encoder_warning, read_run, size_fault
from tokenmill.dataset.views import damaged
from tokenmill.errors import InputError, RefusedError, UsageError
from tokenmill.inputs.find import SourceListing
from tokenmill.inputs.listing import SkippedFile
from tokenmill.inputs.rows.prepared import ID_BYTES, PREPARED
from tokenmill.inputs.source import Source
from tokenmill.output.manifest import MANIFEST
from tokenmill.output.prepared.documents import DocumentStream, trained_on
from tokenmill.output.prepared.reader import FINGERPRINT, checked_store
from tokenmill.planning.mixture.mix_file import DATASET
from tokenmill.planning.plan import Plan
from tokenmill.planning.reuse import (
    REASONS_SHOWN,
    Reuse,
    difference_of_texts,
    match_sources,
    tokenizer_difference,
)
from tokenmill.settings import PlanSettings
from tokenmill.system.buckets.address import is_bucket, parse_address

LEAVE_OUT = "leave --reuse out to encode all of it"


def find_reuse(directory: str, plan: Plan, output: str | os.PathLike[str]) -> Reuse:
    """The sources that need not be encoded. Refuses a dataset that is of no use."""
    if _place(directory) == _place(output):
        raise UsageError(
            f"--reuse {directory}: is the output itself",
            hint="write the new dataset to another folder",
        )
    old = open_dataset(directory)
    manifest = old.manifest
    for entry in manifest.files:
        if fault := size_fault(old.store, entry):
            raise damaged(directory, fault)
    lines = difference_of_texts(manifest.plan, plan)
    run = read_run(old.store) or {}
    if not lines and (told := encoder_warning(old.settings, run)):
        lines = [told]
    if lines:
        raise _useless(directory, "its tokens are not those of this plan", lines)
    found, others = match_sources(plan, manifest.plan, manifest.sources, _times(run))
    if not found:
        reasons = [f"{name}: {why}" for name, why in others.items()]
        raise _useless(directory, "no source is the same", reasons)
    taken = [manifest.sources[number] for number in found.values()]
    return Reuse(
        directory=directory,
        checksum=manifest.checksum,
        sources=found,
        encoded=others,
        documents=sum(entry["documents"] for entry in taken),
        tokens=sum(_text_tokens(old, entry) for entry in taken),
        text_bytes=sum(entry["text_bytes"] for entry in taken),
    )


def find_prepared(path: str, settings: PlanSettings, output: str) -> SourceListing:
    """A prepared dataset as one source of a plan, a row for each document of its training split.
    Refuses a dataset whose ids are not those of the plan's tokenizer."""
    folder = _place(path) if is_bucket(path) else os.path.abspath(path)
    if _place(folder) == _place(output):
        raise UsageError(
            f"{DATASET}{path}: is the output itself", hint="write the mixture to another folder"
        )
    if not is_bucket(folder) and not os.path.isdir(folder):
        raise InputError(f"{DATASET}{path}: no such folder")
    old = open_dataset(folder)
    manifest = old.manifest
    for entry in manifest.files:
        if fault := size_fault(old.store, entry):
            raise damaged(folder, fault)
    lines = _other_ids(old, settings)
    if lines:
        raise RefusedError(
            f"{DATASET}{path}: its tokens do not fit this mixture:",
            lines=lines,
            hint="give the mixture the settings of the dataset, or name the text files that the "
            "dataset was made of",
        )
    store = checked_store(folder, manifest)
    found = trained_on(manifest, store) if "train" in old else None
    if found is None or found.stop <= found.first:
        raise InputError(f"{DATASET}{path}: has no documents to train on")
    stream = DocumentStream(store, found.stream)
    rows = found.stop - found.first
    begin = int(stream.bounds(found.first, found.first + 1)[0])
    end = int(stream.bounds(found.stop - 1, found.stop)[-1])
    stat = None if is_bucket(folder) else os.stat(os.path.join(folder, MANIFEST))
    source = Source(
        number=0,
        name=folder if is_bucket(folder) else os.path.basename(folder),
        path=folder,
        kind=PREPARED.name,
        size=ID_BYTES * (end - begin - rows * stream.frame),
        fingerprint=FINGERPRINT + manifest.checksum,
        mtime_ns=stat.st_mtime_ns if stat else 0,
        ctime_ns=stat.st_ctime_ns if stat else 0,
        inode=stat.st_ino if stat else 0,
        rows=rows,
        as_kind=PREPARED.name,
    )
    return SourceListing((source,), tuple(_left_out(old, path, rows)))


def _place(path: str | os.PathLike[str]) -> str:
    """The same for two names of one folder."""
    name = os.fspath(path)
    return str(parse_address(name)) if is_bucket(name) else os.path.realpath(name)


def _left_out(old: Dataset, path: str, rows: int) -> Iterator[SkippedFile]:
    """Documents of a prepared dataset that are not in its training split, or only in part."""
    for name in (name for name in old if name != "train"):
        count = counted(len(old[name].documents), "document")
        yield SkippedFile(f"{DATASET}{path}", f"its {name} split, {count}, is not trained on")
    if cut := len(old["train"].documents) - rows:
        count = counted(cut, "document")
        yield SkippedFile(f"{DATASET}{path}", f"{count} that a border of its train split cuts")


def _other_ids(old: Dataset, settings: PlanSettings) -> list[str]:
    """Why the ids of a dataset are not those that this plan would make of the same text."""
    before = old.settings
    if not before.text_column:
        return ["it was imported from token files: its documents may lack separators"]
    lines = tokenizer_difference(before, settings)
    if not lines and (told := encoder_warning(before, read_run(old.store) or {})):
        lines.append(told)
    return lines


def _useless(directory: str, what: str, reasons: list[str]) -> RefusedError:
    shown = reasons[:REASONS_SHOWN]
    if len(reasons) > len(shown):
        shown.append(f"... and {len(reasons) - len(shown)} more")
    what = f"--reuse {directory}: nothing of it can be reused, {what}:"
    return RefusedError(what, hint=LEAVE_OUT, lines=shown)


def _text_tokens(old: Dataset, entry: dict[str, Any]) -> int:
    """Tokens of a source without the special ids around its documents."""
    settings = old.settings
    each = int(settings.first.eot != "none") + int(settings.bos_id >= 0)
    return int(entry["tokens"]) - each * int(entry["documents"])


def _times(run: dict[str, Any]) -> dict[str, int]:
    """Modification times of the sources, as run.json has them."""
    sources = run.get("sources")
    if not isinstance(sources, dict):
        return {}
    return {
        name: entry["mtime_ns"]
        for name, entry in sources.items()
        if isinstance(entry, dict) and isinstance(entry.get("mtime_ns"), int)
    }
