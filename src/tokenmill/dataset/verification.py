"""Is a dataset what its manifest says? Every byte of every file, in parallel.

This finds files that are missing, longer, shorter or changed, a damaged manifest or index, and
files that are not part of the dataset but would be taken for it: by the trainer's glob, or because
of their name. run.json is about the run and not part of the data: it only serves a warning.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from tokenmill.errors import (
    TokenmillError,
    UsageError,
    VerificationError,
    printable,
    problem,
    warning,
)
from tokenmill.formats import get_format
from tokenmill.output.manifest import MANIFEST, FileEntry, Manifest, checksum_of_digests
from tokenmill.output.workspace import WORK
from tokenmill.settings import PlanSettings
from tokenmill.system.limits import available_cores
from tokenmill.system.store import (
    FolderStore,
    NotAFileError,
    Place,
    Store,
    has_file,
    read_whole,
    store_of,
)
from tokenmill.tokenizer.bundled import ENCODINGS
from tokenmill.tokenizer.encoders.decoding import encoding_of

TASK_BYTES = 64 << 20
TOGETHER_BYTES = 1 << 20
# Versions up to 0.1.0 used the fast encoder also where it is not exact. With these rules it was.
RIGHT_BEFORE = {
    "gpt2", "llama3", "qwen2 NFC", "deepseek",
    "tiktoken gpt2", "tiktoken cl100k", "tiktoken o200k", "tiktoken qwen2",
}  # fmt: skip


class Report(msgspec.Struct, frozen=True, kw_only=True):
    problems: list[str]
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    warnings: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.problems


def no_dataset(store: Store) -> UsageError:
    """Why a store is not a dataset."""
    hint = "give the output folder of `prepare`"
    try:
        any(store.list(""))
    except FileNotFoundError:
        return UsageError(f"{store.where()}: no such folder", hint=hint)
    except NotADirectoryError:
        return UsageError(f"{store.where()}: is not a folder", hint=hint)
    except OSError:
        pass  # a folder may be open to those who know its names only
    return UsageError(
        f"{store.where()}: no manifest.json, so this is not a finished dataset",
        hint="to finish an unfinished dataset, run the same `tokenmill prepare` command again; "
        "for token files of another tool, use `tokenmill import`",
    )


def verify(directory: Place, *, threads: int | None = None) -> Report:
    """Compare a dataset with its manifest. Problems are returned, not raised."""
    began = time.monotonic()
    store = store_of(directory)
    if not has_file(store, MANIFEST):
        names = _names(store, "")
        if "index" in names and WORK not in names:
            lost = "manifest.json: missing, although the files of a finished dataset are here"
            return Report(problems=[problem(lost)])
        raise no_dataset(store)
    try:
        manifest = Manifest.load(store)
    except VerificationError as error:
        return Report(problems=[error.message])
    tasks, found = _tasks(store, manifest)
    problems = _extra_files(store, manifest) + _links_outside(store, manifest) + found
    # No checksum tells of wrong ids.
    told = encoder_warning(manifest.settings, read_run(store) or {})
    with ThreadPoolExecutor(max_workers=threads or available_cores()) as pool:
        problems += filter(None, pool.map(lambda task: _check_pieces(store, task), tasks))
    return Report(
        problems=problems,
        files=len(manifest.files),
        bytes=sum(entry.size for entry in manifest.files),
        seconds=time.monotonic() - began,
        warnings=[told] if told else [],
    )


def missing_files(store: Store, manifest: Manifest) -> list[str]:
    """Files of a dataset that are not there."""
    return [entry.path for entry in manifest.files if not has_file(store, entry.path)]


def _links_outside(store: Store, manifest: Manifest) -> list[str]:
    """Files that are links out of the folder: who copies or removes the folder loses them. Where
    the manifest is a link too, the folder is a view of another one, as in the Hub's cache."""
    if not isinstance(store, FolderStore) or (store.path / MANIFEST).is_symlink():
        return []
    inside = os.path.join(os.path.realpath(store.path), "")
    found = []
    for entry in manifest.files:
        target = os.path.realpath(store.path / entry.path)
        if not target.startswith(inside) and os.path.exists(target):
            found.append(
                problem(
                    f"{entry.path}: is a link to a file outside of the folder, "
                    f"{printable(target)}; put the file itself in its place"
                )
            )
    return found


def encoder_warning(settings: PlanSettings, run: dict[str, Any]) -> str:
    """Whether an earlier version may have encoded a dataset wrongly; '': no.

    `run` is its run.json, which has named the encoder ever since the encoder is proven exact.
    """
    made_with = run.get("settings")
    if not isinstance(made_with, dict) or settings.tokenizer in ENCODINGS:
        return ""  # imported, without any record; or bundled, which was always right
    encoder, choice = run.get("encoder"), made_with.get("encoder")
    if choice == "reference" or (isinstance(encoder, dict) and "name" in encoder):
        return ""
    try:
        encoding = encoding_of(settings, run)
    except TokenmillError:
        why = "its file is not here, so that it cannot be told whether the fast encoder is exact"
    else:
        if encoding.rules in RIGHT_BEFORE and not encoding.guarded:
            return ""
        why = encoding.why_slow or "earlier versions were not exact for it"
    return warning(
        f"an earlier version encoded this dataset with {settings.tokenizer}: {why}. Some ids may "
        "differ from the library's: `tokenmill verify DIR --deep` compares them"
    )


def read_run(store: Store) -> dict[str, Any] | None:
    """run.json, if it is there and can be read: it is about the run, not part of the data."""
    try:
        record = msgspec.json.decode(read_whole(store, "run.json"))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _names(store: Store, folder: str) -> list[str]:
    """What is in a folder, with the folder's name; nothing where it cannot be listed."""
    try:
        return [f"{folder}/{name}" if folder else name for name in store.list(folder)]
    except OSError:
        return []


def _extra_files(store: Store, manifest: Manifest) -> list[str]:
    """Files that are not part of the dataset, but that a trainer or a reader would take for it."""
    settings = manifest.settings
    ours = {entry.path for entry in manifest.files}
    found: set[str] = set()
    for layout in settings.layouts:
        fmt, folder = get_format(layout.format), settings.folder_of(layout)
        for pattern in fmt.trainer_glob(layout):
            names = _names(store, (folder + pattern).rpartition("/")[0])
            extra = set(fnmatch.filter(names, folder + pattern)) - ours
            found |= {name for name in extra if not fmt.is_copy(store, name)}
    problems = [
        problem(f"{printable(name)}: not part of this dataset, but the trainer would read it")
        for name in sorted(found)
    ]
    named = _names(store, "index")
    named += [name for name in _names(store, "") if name == "quarantine.jsonl"]
    return problems + [
        problem(f"{name}: not part of this dataset, but has the name of a file of tokenmill")
        for name in named
        if name not in ours
    ]


_Pieces = list[tuple[int, int]]  # length and digest


class _Task(NamedTuple):
    """A run of pieces of one file: large files are checked by several threads."""

    path: str
    offset: int
    pieces: _Pieces


def _tasks(store: Store, manifest: Manifest) -> tuple[list[_Task], list[str]]:
    """What there is to read, and what is wrong before reading: names, sizes, the table itself."""
    faults = {entry.path: fault for entry in manifest.files if (fault := size_fault(store, entry))}
    problems = list(faults.values())
    pieces = next(entry for entry in manifest.files if entry.kind == "pieces")
    content, fault = _table(store, pieces)
    if fault:
        return [], problems or [fault]
    table = np.frombuffer(content, "<u8").reshape(-1, 2)
    tasks: list[_Task] = []
    position = 0
    for entry in manifest.files:
        if entry.kind == "units":
            fault = "" if entry.path in faults else _table(store, entry)[1]
            if fault:
                problems.append(fault)
        elif entry.kind != "pieces":
            rows = table[position : position + entry.pieces]
            position += entry.pieces
            if checksum_of_digests(np.ascontiguousarray(rows[:, 1]).tobytes()) != entry.checksum:
                problems.append(problem(f"{entry.path}: its pieces are not those of the manifest"))
            elif entry.path not in faults:  # a pipe would never be read to its end
                starts = (np.cumsum(rows[:, 0]) - rows[:, 0]).astype(np.int64)
                runs = np.flatnonzero(np.diff(starts // TASK_BYTES, prepend=-1))
                tasks += [
                    _Task(entry.path, int(starts[first]), rows[first:stop].tolist())
                    for first, stop in itertools.pairwise([*runs.tolist(), len(rows)])
                ]
    return tasks, problems


def _table(store: Store, entry: FileEntry) -> tuple[bytes, str]:
    """A table of the index, and what is wrong with it: it is one piece, whose digest alone gives
    its checksum."""
    try:
        content = read_whole(store, entry.path)
    except OSError as error:
        return b"", _unreadable(entry.path, error)
    digest = xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")
    if checksum_of_digests(digest) != entry.checksum:
        return b"", problem(f"{entry.path}: changed (checksum differs)")
    return content, ""


def size_fault(store: Store, entry: FileEntry) -> str:
    """What is wrong with a file before it is read; '' when nothing is."""
    try:
        size = store.size(entry.path)
    except OSError as error:
        if isinstance(error, NotAFileError):
            return f"{entry.path}: not a regular file"
        return _unreadable(entry.path, error)
    if size is None:
        return f"{entry.path}: missing"
    if size == entry.size:
        return ""
    what = "truncated" if size < entry.size else "too long"
    return f"{entry.path}: {what}: {size} bytes, should be {entry.size}"


def _unreadable(name: str, error: OSError) -> str:
    return problem(f"{name}: cannot be read: {error.strerror or error}")


def _check_pieces(store: Store, task: _Task) -> str:
    """What is wrong with a run of pieces; '' when nothing is."""
    offset = task.offset
    try:
        for group in _groups(task.pieces):
            for (length, expected), digest in zip(
                group, _digests(store, task.path, offset, group), strict=True
            ):
                if digest != expected:
                    changed = f"changed in bytes {offset} to {offset + length - 1}"
                    return problem(f"{task.path}: {changed}")
                offset += length
    except OSError as error:
        return _unreadable(task.path, error)
    return ""


def _groups(pieces: _Pieces) -> Iterator[_Pieces]:
    """Runs of small pieces, to be read at once: to open a file takes longer than to read 10 KB."""
    group: _Pieces = []
    room = TOGETHER_BYTES
    for piece in pieces:
        if piece[0] > room and group:
            yield group
            group, room = [], TOGETHER_BYTES
        group.append(piece)
        room -= piece[0]
    if group:
        yield group


def _digests(store: Store, name: str, offset: int, group: _Pieces) -> Iterator[int]:
    if len(group) == 1:
        yield _digest(store, name, offset, group[0][0])
        return
    content = memoryview(store.read(name, offset, sum(length for length, _ in group)))
    for length, _ in group:
        yield xxhash.xxh3_64_intdigest(content[:length])
        content = content[length:]


def _digest(store: Store, name: str, offset: int, length: int) -> int:
    digest = xxhash.xxh3_64()
    for content in store.stream(name, offset, length):
        digest.update(content)
    value: int = digest.intdigest()
    return value
