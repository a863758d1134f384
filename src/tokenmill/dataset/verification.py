"""Is a dataset what its manifest says? Every byte of every file, in parallel.

This finds files that are missing, longer, shorter or changed, a damaged manifest or index, and
files that are not part of the dataset but would be taken for it: by the trainer's glob, or because
of their name. run.json is about the run and not part of the data: it only serves a warning.
"""

from __future__ import annotations

import glob
import io
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from tokenmill.errors import TokenmillError, UsageError, VerificationError, printable
from tokenmill.formats import get_format
from tokenmill.output.manifest import FileEntry, Manifest, checksum_of_digests
from tokenmill.output.workspace import WORK
from tokenmill.settings import PlanSettings
from tokenmill.system.limits import available_cores
from tokenmill.tokenizer.bundled import ENCODINGS
from tokenmill.tokenizer.encoders.decoding import encoding_of

VERIFY_READ_BYTES = 1 << 20
TASK_BYTES = 64 << 20
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


def no_dataset(root: Path) -> UsageError:
    """Why a path is not a dataset."""
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
            return Report(problems=[lost])
        raise no_dataset(root)
    try:
        manifest = Manifest.load(path)
    except VerificationError as error:
        return Report(problems=[error.message])
    tasks, found = _tasks(root, manifest)
    problems = _extra_files(root, manifest) + _links_outside(root, manifest) + found
    # No checksum tells of wrong ids.
    warning = _encoder_warning(manifest.settings, read_run(root) or {})
    with ThreadPoolExecutor(max_workers=threads or available_cores()) as pool:
        problems += filter(None, pool.map(lambda task: _check_pieces(root, task), tasks))
    return Report(
        problems=problems,
        files=len(manifest.files),
        bytes=sum(entry.size for entry in manifest.files),
        seconds=time.monotonic() - began,
        warnings=[warning] if warning else [],
    )


def missing_files(root: Path, manifest: Manifest) -> list[str]:
    """Files of a dataset that are not there."""
    return [entry.path for entry in manifest.files if not (root / entry.path).is_file()]


def _links_outside(root: Path, manifest: Manifest) -> list[str]:
    """Files that are links out of the folder: who copies or removes the folder loses them. Where
    the manifest is a link too, the folder is a view of another one, as in the Hub's cache."""
    if (root / "manifest.json").is_symlink():
        return []
    inside = os.path.join(os.path.realpath(root), "")
    found = []
    for entry in manifest.files:
        target = os.path.realpath(root / entry.path)
        if not target.startswith(inside) and os.path.exists(target):
            found.append(
                f"{entry.path}: is a link out of the folder, to {printable(target)}; "
                "put the file itself in its place"
            )
    return found


def _encoder_warning(settings: PlanSettings, run: dict[str, Any]) -> str:
    """Whether an earlier version may have encoded a dataset wrongly; '': no.

    `run` is its run.json, which has named the encoder ever since the encoder is proven exact.
    """
    if "settings" not in run or settings.tokenizer in ENCODINGS:
        return ""  # imported, without any record; or bundled, which was always right
    encoder, choice = run.get("encoder"), run["settings"].get("encoder")
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
    return (
        f"an earlier version encoded this dataset with {settings.tokenizer}: {why}. Some ids may "
        "differ from the library's: `tokenmill verify DIR --deep` compares them"
    )


def read_run(directory: Path) -> dict[str, Any] | None:
    """run.json, if it is there and can be read: it is about the run, not part of the data."""
    path = directory / "run.json"
    try:
        # A pipe or a device in its place would be read for ever.
        record = msgspec.json.decode(path.read_bytes()) if path.is_file() else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _extra_files(root: Path, manifest: Manifest) -> list[str]:
    """Files that are not part of the dataset, but that a trainer or a reader would take for it."""
    settings = manifest.settings
    ours = {entry.path for entry in manifest.files}
    found: set[str] = set()
    for layout in settings.layouts:
        fmt, folder = get_format(layout.format), settings.folder_of(layout)
        for pattern in fmt.trainer_glob(layout):
            extra = set(glob.glob(folder + pattern, root_dir=root, include_hidden=True)) - ours
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


class _Task(NamedTuple):
    """A run of pieces of one file: large files are checked by several threads."""

    path: str
    offset: int
    pieces: list[tuple[int, int]]  # length and digest


def _tasks(root: Path, manifest: Manifest) -> tuple[list[_Task], list[str]]:
    """What there is to read, and what is wrong before reading: names, sizes, the table itself."""
    faults = {entry.path: fault for entry in manifest.files if (fault := size_fault(root, entry))}
    problems = list(faults.values())
    pieces = next(entry for entry in manifest.files if entry.kind == "pieces")
    if not _is_whole(root, pieces):
        return [], problems or [f"{pieces.path}: changed (checksum differs)"]
    table = np.fromfile(root / pieces.path, "<u8").reshape(-1, 2)
    tasks: list[_Task] = []
    position = 0
    for entry in manifest.files:
        if entry.kind == "units":
            if entry.path not in faults and not _is_whole(root, entry):
                problems.append(f"{entry.path}: changed (checksum differs)")
        elif entry.kind != "pieces":
            rows = table[position : position + entry.pieces]
            position += entry.pieces
            if checksum_of_digests(np.ascontiguousarray(rows[:, 1]).tobytes()) != entry.checksum:
                problems.append(f"{entry.path}: its pieces are not those of the manifest")
            elif entry.path not in faults:  # a pipe would never be read to its end
                starts = (np.cumsum(rows[:, 0]) - rows[:, 0]).astype(np.int64)
                runs = np.flatnonzero(np.diff(starts // TASK_BYTES, prepend=-1))
                tasks += [
                    _Task(entry.path, int(starts[first]), rows[first:stop].tolist())
                    for first, stop in itertools.pairwise([*runs.tolist(), len(rows)])
                ]
    return tasks, problems


def _is_whole(root: Path, entry: FileEntry) -> bool:
    """Whether a table is unchanged: it is one piece, whose digest alone gives its checksum."""
    try:
        content = (root / entry.path).read_bytes() if (root / entry.path).is_file() else b""
    except OSError:
        return False
    digest = xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")
    return checksum_of_digests(digest) == entry.checksum


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
    """What is wrong with a run of pieces; '' when nothing is."""
    offset = task.offset
    try:
        with open(root / task.path, "rb", buffering=0) as file:
            file.seek(offset)
            for length, expected in task.pieces:
                if _digest(file, length) != expected:
                    return f"{task.path}: changed in bytes {offset} to {offset + length - 1}"
                offset += length
    except OSError as error:
        return f"{task.path}: cannot be read: {error.strerror or error}"
    return ""


def _digest(file: io.FileIO, length: int) -> int:
    """xxh3 of the next `length` bytes, read into one buffer that stays in the cache."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(min(length, VERIFY_READ_BYTES)))
    while length:
        got = file.readinto(buffer[: min(length, VERIFY_READ_BYTES)])
        if not got:
            break
        digest.update(buffer[:got])
        length -= got
    value: int = digest.intdigest()
    return value
