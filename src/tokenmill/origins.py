"""Where a dataset came from: its sources found again and checked, and the pieces they were cut in.

Sources are looked for where run.json says they lay, or under another root; each must have the
size and the fingerprint that the manifest names, or it is no source of this dataset.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.errors import InputError, TokenmillError, UsageError
from tokenmill.fetch import at_hand_already, fault_of
from tokenmill.manifest import Manifest
from tokenmill.plan import cut_rule
from tokenmill.remote.address import is_url, named_file, path_below
from tokenmill.sources import Source, find_sources
from tokenmill.texts import I64


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What differs, in words and in fields; -1 and '' where a field does not apply."""

    message: str
    kind: str  # file, source, index, border, row, quarantine, token, count
    source: str = ""
    row: int = -1
    split: str = ""
    document: int = -1  # in its split, as `inspect` counts
    token: int = -1  # in its document
    expected: int = -1
    found: int = -1


class Task(msgspec.Struct, frozen=True):
    """A segment of a source: the rows that its units hold."""

    source: int
    segment: int
    first_row: int
    rows: int


def find_origins(
    manifest: Manifest,
    run: dict[str, Any] | None,
    source_root: str | os.PathLike[str] | None,
    text_column: str,
) -> tuple[list[Source | None], list[Problem]]:
    """The sources in order, None for one that is not what it was; and what is wrong with these."""
    paths = [_path_of(entry, run, source_root) for entry in manifest.sources]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing and is_url(missing[0]):
        raise InputError(
            f"{missing[0]}{_more(missing)}: not here, so there is nothing to compare with",
            hint="fetch it with the command that made the dataset and --download-only, or name a "
            "folder that holds the files with --source-root DIR",
        )
    if missing:
        raise InputError(
            f"{missing[0]}{_more(missing)}: no such file, so there is nothing to compare with",
            hint="name the folder that holds the inputs with --source-root DIR; below it they "
            f"must lie as the manifest names them (the first: {manifest.sources[0]['name']})",
        )
    with ThreadPoolExecutor(max_workers=4) as pool:
        checked = list(
            pool.map(
                lambda item: _check(item[0], item[1][0], item[1][1], text_column),
                enumerate(zip(manifest.sources, paths, strict=True)),
            )
        )
    return [source for source, _ in checked], [p for _, p in checked if p is not None]


def _more(missing: list[str]) -> str:
    return f" and {len(missing) - 1} more" if len(missing) > 1 else ""


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
        raise InputError(f"{name!r}: the manifest names an input that lies below no folder")
    if source_root is not None:
        return os.path.join(os.fspath(source_root), name)
    try:
        return str((run or {})["sources"][name]["path"])
    except (KeyError, TypeError):
        raise InputError(
            f"{name}: run.json does not say where this input lay",
            hint="name the folder that holds the inputs with --source-root DIR",
        ) from None


def _check(
    number: int, entry: dict[str, Any], path: str, text_column: str
) -> tuple[Source | None, Problem | None]:
    name, size = entry["name"], os.stat(path).st_size
    said = named_file(name, entry["size"], entry["fingerprint"]) if is_url(name) else None
    if said is not None and (found := fault_of(path, said)):
        fault = found
    elif size != entry["size"]:
        fault = f"changed since: {size} bytes, {entry['size']} when the dataset was made"
    else:
        try:
            source = find_sources([path], text_column).sources[0]
        except TokenmillError as error:
            fault = f"cannot be read any more: {error.message}"
        else:
            if said is not None:
                source = msgspec.structs.replace(source, fingerprint=said.fingerprint)
            if source.fingerprint == entry["fingerprint"]:
                return msgspec.structs.replace(source, number=number, name=name), None
            fault = "changed since the dataset was made (same size, other content)"
    return None, Problem(kind="source", source=name, message=f"{name}: {fault}")


def read_tasks(directory: Path, manifest: Manifest) -> tuple[list[Task], list[Problem]]:
    """The segments of every source, from index/units; and where they do not fit together."""
    ours = cut_rule()
    if manifest.plan["cut_rule"] != ours:
        raise UsageError(
            f"{directory}: its sources were cut by another rule ({manifest.plan['cut_rule']}, "
            f"here {ours})",
            hint="use the version of tokenmill that made it (run.json names it)",
        )
    units = np.fromfile(directory / "index/units", "<u8").reshape(-1, 5)
    tasks: list[Task] = []
    problems: list[Problem] = []
    if (np.diff(units[:, 0].astype(np.int64)) < 0).any():
        return [], [Problem(kind="index", message="index/units: sources are not in order")]
    bounds = np.searchsorted(
        np.ascontiguousarray(units[:, 0]), np.arange(len(manifest.sources) + 1, dtype=np.uint64)
    )
    for number, entry in enumerate(manifest.sources):
        mine = units[bounds[number] : bounds[number + 1]].tolist()
        row = 0
        for _, segment, part, first_row, rows in mine:
            last = tasks[-1] if tasks and tasks[-1].source == number else None
            due = (segment, part) if part else (0 if last is None else last.segment + 1, 0)
            if first_row != row or (segment, part) != due:
                problems.append(_unit_problem(entry["name"], segment, part))
                break
            row += rows
            if part and last is not None:
                tasks[-1] = msgspec.structs.replace(last, rows=last.rows + rows)
            else:
                tasks.append(Task(number, segment, first_row, rows))
        if row != entry["rows"]:
            problems.append(
                Problem(
                    kind="index",
                    source=entry["name"],
                    message=f"index/units: {row} rows of {entry['name']}, the manifest says "
                    f"{entry['rows']}",
                )
            )
    return tasks, problems


def _unit_problem(name: str, segment: int, part: int) -> Problem:
    return Problem(
        kind="index",
        source=name,
        message=f"index/units: unit {segment}.{part} of {name} does not follow the one before it",
    )


def quarantined_rows(directory: Path, manifest: Manifest) -> list[I64]:
    """For each source the rows that quarantine.jsonl names, in order."""
    rows: dict[str, list[int]] = {}
    if any(entry.kind == "quarantine" for entry in manifest.files):
        decode = msgspec.json.Decoder(_Quarantined).decode
        with open(directory / "quarantine.jsonl", "rb") as file:
            for line in file:
                record = decode(line)
                rows.setdefault(record.source, []).append(record.row)
    return [np.array(rows.get(entry["name"], []), np.int64) for entry in manifest.sources]


class _Quarantined(msgspec.Struct):
    source: str
    row: int
