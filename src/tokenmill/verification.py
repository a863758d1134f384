"""Is a dataset what its manifest says? Every byte of every file, in parallel.

Found are: files missing, longer, shorter or changed, a damaged manifest or index, and files that
are not part of the dataset but would be taken for it: by the trainer's glob, or since they bear a
name of ours. run.json is about the run and not part of the data: it is not looked at.
"""

from __future__ import annotations

import fnmatch
import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.config import PlanSettings, available_cores
from tokenmill.errors import UsageError, VerificationError, printable
from tokenmill.formats import get_format
from tokenmill.manifest import FileEntry, Manifest, checksum_of_digests
from tokenmill.storage import WORK

READ_BYTES = 1 << 20
TASK_BYTES = 64 << 20


class Report(msgspec.Struct, frozen=True, kw_only=True):
    problems: list[str]
    files: int
    bytes: int
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.problems


def no_dataset(root: Path) -> UsageError:
    """Why a path is no dataset."""
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "no such folder"
        return UsageError(f"{root}: {what}", hint="give the folder that was `-o` of `prepare`")
    return UsageError(
        f"{root}: no manifest.json, so no finished dataset",
        hint="an unfinished one is completed by the same `tokenmill prepare` command; "
        "token files that others made are adopted by `tokenmill import`",
    )


def verify(directory: str | os.PathLike[str], *, threads: int | None = None) -> Report:
    """Compare a dataset with its manifest. Problems are returned, not raised."""
    began = time.monotonic()
    root = Path(directory)
    path = root / "manifest.json"
    if not path.is_file():
        if (root / "index").is_dir() and not (root / WORK).exists():
            lost = "manifest.json: missing, although the files of a finished dataset are here"
            return Report(problems=[lost], files=0, bytes=0, seconds=0.0)
        raise no_dataset(root)
    try:
        manifest = Manifest.load(path)
    except VerificationError as error:
        return Report(problems=[error.message], files=0, bytes=0, seconds=0.0)
    problems = _extra_files(root, manifest)
    tasks, found = _tasks(root, manifest)
    problems += found
    sound = {entry.path for entry in manifest.files if not size_fault(root, entry)}
    tasks = [task for task in tasks if task.path in sound]  # a pipe would never be read to its end
    with ThreadPoolExecutor(max_workers=threads or available_cores()) as pool:
        problems += filter(None, pool.map(lambda task: _check_pieces(root, task), tasks))
    return Report(
        problems=problems,
        files=len(manifest.files),
        bytes=sum(entry.size for entry in manifest.files),
        seconds=time.monotonic() - began,
    )


def _extra_files(root: Path, manifest: Manifest) -> list[str]:
    """Files that are not part of the dataset, but that a trainer or a reader would take for it."""
    whole = msgspec.convert(manifest.plan["settings"], PlanSettings)
    ours = {entry.path for entry in manifest.files}
    found: set[str] = set()
    for settings in whole.layouts:
        fmt, folder = get_format(settings.format), whole.folder_of(settings.format)
        for pattern in fmt.trainer_glob(settings):
            extra = set(_matching(root, folder + pattern)) - ours
            found |= {
                name for name in extra if not fmt.is_copy(root / folder, name.removeprefix(folder))
            }
    problems = [
        f"{printable(name)}: not part of this dataset, but the trainer would read it"
        for name in sorted(found)
    ]
    index = root / "index"
    named = [f"index/{name}" for name in sorted(os.listdir(index))] if index.is_dir() else []
    named += ["quarantine.jsonl"] if (root / "quarantine.jsonl").exists() else []
    return problems + [
        f"{name}: not part of this dataset, but bears a name of ours"
        for name in named
        if name not in ours
    ]


def _matching(root: Path, pattern: str) -> list[str]:
    """Files by a trainer's glob, whose folders are plain names."""
    folder, _, last = pattern.rpartition("/")
    try:
        names = os.listdir(root / folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{folder}/{n}".lstrip("/") for n in names if fnmatch.fnmatchcase(n, last)]


class _Task(NamedTuple):
    """A run of pieces of one file: large files are checked by several threads."""

    path: str
    offset: int
    pieces: list[tuple[int, int]]  # length and digest


def _tasks(root: Path, manifest: Manifest) -> tuple[list[_Task], list[str]]:
    """What there is to read, and what is wrong before reading: names, sizes, the table itself."""
    problems = [problem for entry in manifest.files if (problem := size_fault(root, entry))]
    table, fault = _piece_table(root, manifest)
    if fault:
        return [], problems or [fault]
    tasks: list[_Task] = []
    position = 0
    for entry in manifest.files:
        if entry.kind == "pieces":
            continue
        count = 0 if entry.kind == "units" else entry.pieces
        rows = table[position : position + count]
        position += count
        if entry.kind == "units":  # one piece, whose digest is the checksum's only input
            digest = _digest_of(root / entry.path)
            if digest is not None and checksum_of_digests(digest) != entry.checksum:
                problems.append(f"{entry.path}: changed (checksum differs)")
        elif checksum_of_digests(np.ascontiguousarray(rows[:, 1]).tobytes()) != entry.checksum:
            problems.append(f"{entry.path}: its pieces are not those of the manifest")
        else:
            tasks += _runs(entry.path, rows)
    return tasks, problems


def _runs(path: str, rows: npt.NDArray[np.uint64]) -> list[_Task]:
    tasks: list[_Task] = []
    offset = start = 0
    pieces: list[tuple[int, int]] = []
    for length, digest in rows.tolist():
        pieces.append((length, digest))
        offset += length
        if offset - start >= TASK_BYTES:
            tasks.append(_Task(path, start, pieces))
            start, pieces = offset, []
    return [*tasks, _Task(path, start, pieces)] if pieces else tasks


def _piece_table(root: Path, manifest: Manifest) -> tuple[npt.NDArray[np.uint64], str]:
    entry = next(entry for entry in manifest.files if entry.kind == "pieces")
    digest = _digest_of(root / entry.path)
    if digest is None or checksum_of_digests(digest) != entry.checksum:
        return np.zeros((0, 2), np.uint64), f"{entry.path}: changed (checksum differs)"
    return np.fromfile(root / entry.path, "<u8").reshape(-1, 2), ""


def _digest_of(path: Path) -> bytes | None:
    try:
        if not path.is_file():
            return None
        return xxhash.xxh3_64_intdigest(path.read_bytes()).to_bytes(8, "little")
    except OSError:
        return None


def size_fault(root: Path, entry: FileEntry) -> str:
    """What is wrong with a file before it is read; '' when nothing is."""
    try:
        found = os.stat(root / entry.path)
    except FileNotFoundError:
        return f"{entry.path}: missing"
    except OSError as error:
        return f"{entry.path}: cannot be read: {error.strerror or error}"
    size = found.st_size
    if not S_ISREG(found.st_mode):
        return f"{entry.path}: not a regular file"
    if size == entry.size:
        return ""
    what = "truncated" if size < entry.size else "too long"
    return f"{entry.path}: {what}: {size} bytes, should be {entry.size}"


def _check_pieces(root: Path, task: _Task) -> str:
    """What is wrong with a run of pieces; '' when nothing is, or the file's size says it all."""
    offset = task.offset
    try:
        with open(root / task.path, "rb", buffering=0) as file:
            file.seek(offset)
            for length, expected in task.pieces:
                if _digest(file, length) != expected:
                    return f"{task.path}: changed in bytes {offset} to {offset + length - 1}"
                offset += length
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{task.path}: cannot be read: {error.strerror or error}"
    return ""


def _digest(file: io.FileIO, length: int) -> int:
    """xxh3 of the next `length` bytes, read into one buffer that stays in the cache."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(min(length, READ_BYTES)))
    while length:
        got = file.readinto(buffer[: min(length, READ_BYTES)])
        if not got:
            break
        digest.update(buffer[:got])
        length -= got
    value: int = digest.intdigest()
    return value
