"""Where a dataset came from: its sources found and checked, their segments, and their rows read.

Sources are looked for where run.json says they were, or under another root. Each must have the
size and the fingerprint that the manifest names, or it is not a source of this dataset.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.dataset.loader import Dataset
from tokenmill.dataset.reuse import find_prepared
from tokenmill.dataset.verification import read_run
from tokenmill.errors import InputError, TokenmillError, UsageError
from tokenmill.inputs.batch import Batch
from tokenmill.inputs.download import at_hand_already, copy_fault
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.input_rules import EVERY, InputRules
from tokenmill.inputs.kind import ReadRequest
from tokenmill.inputs.kinds import kind_named, read_segment
from tokenmill.inputs.readers.text import long_document
from tokenmill.inputs.remote.address import is_url, named_file, path_below
from tokenmill.inputs.rows.prepared import PREPARED
from tokenmill.inputs.rows.row_rule import columns_needed
from tokenmill.inputs.segments import Segment, cut_rule
from tokenmill.inputs.source import Source
from tokenmill.output.commit import QUARANTINE
from tokenmill.output.editions import UNITS
from tokenmill.output.manifest import Manifest
from tokenmill.output.prepared.reader import read_prepared
from tokenmill.settings import PlanSettings
from tokenmill.system.cache import cache_folder
from tokenmill.system.store import Store, lines, read_small
from tokenmill.texts import I64, from_bytes


class Problem(msgspec.Struct, frozen=True):
    """What differs, in words and in fields; -1 and '' where a field does not apply."""

    message: str
    kind: str  # file, source, index, border, row, quarantine, token, order, choice, count
    source: str = ""
    row: int = -1
    split: str = ""
    document: int = -1  # in its split, as `inspect` counts
    token: int = -1  # in its document
    expected: int = -1
    found: int = -1


class SegmentTask(msgspec.Struct, frozen=True):
    """A segment of a source: the rows that its units hold."""

    source: int
    segment: int
    first_row: int
    rows: int


def find_origins(
    dataset: Dataset, source_root: str | os.PathLike[str] | None
) -> tuple[dict[int, Source], list[Problem]]:
    """The sources by number, without those that are not what they were; and what is wrong."""
    entries, run = dataset.manifest.sources, read_run(dataset.store)
    paths = [_path_of(entry, run, source_root) for entry in entries]
    missing = [
        path
        for path, entry in zip(paths, entries, strict=True)
        if not (os.path.isdir if is_prepared(entry) else os.path.isfile)(path)
    ]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        what = "not here" if is_url(missing[0]) else "no such file"
        hint = (
            "download it with the command that made the dataset and --download-only, or name a "
            "folder that holds the files with --source-root DIR"
            if is_url(missing[0])
            else "name the folder that holds the inputs with --source-root DIR; below it they "
            f"must be named as in the manifest (the first: {entries[0]['name']})"
        )
        if copied := _removed_copy(missing[0]):
            raise InputError(
                f"{dataset.store.where()}: was made from {copied}, whose copy was removed when the "
                "job was done, so there is nothing to compare with",
                hint="to compare with the sources later, make the dataset from files (a "
                "`datasets.Dataset` after save_to_disk, standard input after writing it to a "
                "file); `tokenmill verify` without --deep compares every byte with the manifest",
            )
        told = f"{missing[0]}{more}: {what}, so there is nothing to compare with"
        raise InputError(told, hint=hint)
    with ThreadPoolExecutor(max_workers=4) as pool:
        check = functools.partial(_source_or_fault, dataset.settings)
        found = list(pool.map(check, itertools.count(), _twins(entries), entries, paths))
    sources = {source.number: source for source in found if isinstance(source, Source)}
    names = [entry["name"] for entry in entries]
    faults = [(name, one) for name, one in zip(names, found, strict=True) if isinstance(one, str)]
    return sources, [Problem(f"{name}: {fault}", "source", name) for name, fault in faults]


def _removed_copy(path: str) -> str:
    """What was copied to the cache for the time of the run, if this is such a copy."""
    folder = Path(path).parent.parent
    if folder == cache_folder() / "datasets":
        return "a `datasets.Dataset` that is not what is on disk (filtered, or in memory)"
    return "standard input" if folder == cache_folder() / "stdin" else ""


def _twins(entries: list[dict[str, Any]]) -> Iterator[int]:
    """Each source's number among those of the same content."""
    seen = Counter[str]()
    for entry in entries:
        yield seen[entry["fingerprint"]]
        seen[entry["fingerprint"]] += 1


def _path_of(
    entry: dict[str, Any], run: dict[str, Any] | None, source_root: str | os.PathLike[str] | None
) -> str:
    name = entry["name"]
    if is_url(name):  # in a cache, or nowhere; the URL itself says that
        file = named_file(name, entry["size"], entry["fingerprint"])
        if source_root is None:
            return at_hand_already(file) or name
        name = path_below(name)
    if os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
        raise InputError(f"{name!r}: the manifest names an input that is not below a folder")
    if source_root is not None:
        return os.path.join(os.fspath(source_root), name)
    try:
        return str((run or {})["sources"][name]["path"])
    except (KeyError, TypeError):
        raise InputError(
            f"{name}: run.json does not say where this input was",
            hint="name the folder that holds the inputs with --source-root DIR",
        ) from None


def is_prepared(entry: dict[str, Any]) -> bool:
    """Whether a source of a manifest is a prepared dataset."""
    return entry.get("as") == PREPARED.name


def _prepared_or_fault(settings: PlanSettings, entry: dict[str, Any], path: str) -> Source | str:
    """A prepared dataset that was an input, or what is wrong with it."""
    try:
        source = find_prepared(path, settings, os.devnull).sources[0]
    except TokenmillError as error:
        return f"cannot be read any more: {error.message}"
    if source.fingerprint != entry["fingerprint"]:
        return "changed since the dataset was made (it has another manifest)"
    return source


def _source_or_fault(
    settings: PlanSettings, number: int, twin: int, entry: dict[str, Any], path: str
) -> Source | str:
    """The source as it was, or what is wrong with it."""
    if is_prepared(entry):
        found = _prepared_or_fault(settings, entry, path)
        if isinstance(found, str):
            return found
        return msgspec.structs.replace(found, number=number, name=entry["name"], twin=twin)
    reading = settings.reading
    name, fingerprint, size = entry["name"], entry["fingerprint"], os.stat(path).st_size
    if is_url(name) and (fault := copy_fault(path, named_file(name, entry["size"], fingerprint))):
        return fault
    if size != entry["size"]:
        return f"changed since: {size} bytes, {entry['size']} when the dataset was made"
    try:
        column, kind = entry.get("text_column", ""), entry.get("as", "")
        rules = InputRules(
            kinds=((EVERY, kind),) if kind else (),
            columns=((EVERY, column),) if column else (),
            needed=columns_needed(reading),
        )
        source = find_sources([path], reading.text_column, rules=rules).sources[0]
    except TokenmillError as error:
        return f"cannot be read any more: {error.message}"
    if not is_url(name) and source.fingerprint != fingerprint:
        return "changed since the dataset was made (same size, other content)"
    changes = {"number": number, "name": name, "fingerprint": fingerprint, "twin": twin}
    return msgspec.structs.replace(source, **changes, split=entry.get("split", ""))


def read_tasks(store: Store, manifest: Manifest) -> tuple[list[SegmentTask], list[Problem]]:
    """The segments of every source, from index/units; and where they do not fit together."""
    ours = cut_rule()
    if manifest.plan["cut_rule"][: len(ours)] != ours:  # of a shuffled one, its ranges follow
        raise UsageError(
            f"{store.where()}: its sources were cut by another rule ({manifest.plan['cut_rule']}, "
            f"here {ours})",
            hint="use the version of tokenmill that made it (run.json names it)",
        )
    units = np.frombuffer(read_small(store, UNITS), "<u8").reshape(-1, 5).astype(np.int64)
    tasks: list[SegmentTask] = []
    problems: list[Problem] = []
    if (np.diff(units[:, 0]) < 0).any():
        return [], [Problem("index/units: sources are not in order", "index")]
    bounds = np.searchsorted(units[:, 0], np.arange(len(manifest.sources) + 1))
    for number, entry in enumerate(manifest.sources):
        name, row, mine = entry["name"], 0, units[bounds[number] : bounds[number + 1]]
        for _, segment, part, first_row, rows in mine.tolist():
            last = tasks[-1] if tasks and tasks[-1].source == number else None
            due = (segment, part) if part else (0 if last is None else last.segment + 1, 0)
            if first_row != row or (segment, part) != due:
                unit = f"index/units: unit {segment}.{part} of {name}"
                problems.append(Problem(f"{unit} does not follow the one before it", "index", name))
                break
            row += rows
            if part and last is not None:
                tasks[-1] = msgspec.structs.replace(last, rows=last.rows + rows)
            else:
                tasks.append(SegmentTask(number, segment, first_row, rows))
        if row != entry["rows"]:
            message = f"index/units: {row} rows of {name}, the manifest says {entry['rows']}"
            problems.append(Problem(message, "index", name))
    return tasks, problems


class _QuarantinedRow(msgspec.Struct):
    source: str
    row: int
    rows: int = 1


def quarantined_rows(store: Store, manifest: Manifest) -> list[I64]:
    """For each source the rows that quarantine.jsonl names, in order."""
    rows: dict[str, list[int]] = {}
    if any(entry.kind == "quarantine" for entry in manifest.files):
        decode = msgspec.json.Decoder(_QuarantinedRow).decode
        for record in map(decode, lines(store, QUARANTINE)):
            named = range(record.row, record.row + record.rows)
            rows.setdefault(record.source, []).extend(named)
    return [np.array(rows.get(entry["name"], []), np.int64) for entry in manifest.sources]


def read_again(
    source: Source,
    segment: Segment,
    settings: PlanSettings,
    task: SegmentTask,
    *,
    ranges: bool = False,
) -> Iterator[Batch]:
    """Whole documents, rows counted from the source's first; under a limit only the rows that were
    taken."""
    done = shift = 0
    for batch in _whole(source, segment, settings, ranges):
        if done == 0 and batch.first_row == 0:  # its rows count from the segment's first
            shift = task.first_row
        if settings.limited:
            if done >= task.rows:
                return
            batch = batch.until(batch.first_row + task.rows - done)  # noqa: PLW2901
        done += batch.row_count
        yield batch._replace(
            rows=batch.rows + shift,
            first_row=batch.first_row + shift,
            bad=[bad._replace(row=bad.row + shift) for bad in batch.bad],
        )


def _whole(
    source: Source, segment: Segment, settings: PlanSettings, ranges: bool
) -> Iterator[Batch]:
    if kind_named(source.kind).holds_ids:
        reading = msgspec.structs.replace(settings.reading, may_cut=False)
        yield from read_prepared(ReadRequest(source, segment, reading))
        return
    pieces: list[bytes] | None = None  # of a document whose beginning was read here
    for batch in read_segment(source, segment, settings.reading, whole=True, ranges=ranges):
        if batch.fragment is None:
            yield batch
            continue
        if batch.fragment.first:
            pieces = []
        if pieces is not None:
            pieces.append(batch.texts.document(0))
        if batch.fragment.last:
            if pieces is None:
                position = int(batch.positions[0])
                pieces = [long_document(source, segment, settings.reading, position)]
            yield batch._replace(texts=from_bytes([b"".join(pieces)]), fragment=None)
            pieces = None
