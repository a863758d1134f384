"""Is a dataset what its manifest says? Every byte of every file, in parallel.

Found are: files missing, longer, shorter or changed, a damaged manifest or index, and files that
are not ours but that the trainer's glob would pick up.
"""

from __future__ import annotations

import fnmatch
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from tokenmill.commit import PIECES
from tokenmill.config import PlanSettings, available_cores
from tokenmill.errors import UsageError, VerificationError
from tokenmill.formats import get_format
from tokenmill.manifest import FileEntry, Manifest, checksum_of_digests

READ_BYTES = 1 << 20


class Report(msgspec.Struct, frozen=True, kw_only=True):
    problems: list[str]
    files: int
    bytes: int
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(directory: str | os.PathLike[str], *, threads: int | None = None) -> Report:
    """Compare a dataset with its manifest. Problems are returned, not raised."""
    began = time.monotonic()
    root = Path(directory)
    path = root / "manifest.json"
    if not path.exists():
        raise UsageError(
            f"{root}: no manifest.json, so no finished dataset",
            hint="an unfinished one is completed by the same `tokenmill prepare` command",
        )
    try:
        manifest = Manifest.load(path)
    except VerificationError as error:
        return Report(problems=[error.message], files=0, bytes=0, seconds=0.0)
    problems = _extra_files(root, manifest)
    pieces, fault = _piece_table(root, manifest)
    if fault:
        problems.append(fault)
    with ThreadPoolExecutor(max_workers=threads or available_cores()) as pool:
        for problem in pool.map(lambda item: _check_file(root, *item), pieces):
            if problem:
                problems.append(problem)
    return Report(
        problems=problems,
        files=len(manifest.files),
        bytes=sum(entry.size for entry in manifest.files),
        seconds=time.monotonic() - began,
    )


def _extra_files(root: Path, manifest: Manifest) -> list[str]:
    """Files that the trainer would read although they are not part of the dataset."""
    settings = msgspec.convert(manifest.plan["settings"], PlanSettings)
    patterns = get_format(settings.format).trainer_glob(settings)
    ours = {entry.path for entry in manifest.files}
    return [
        f"{name}: not part of this dataset, but the trainer would read it"
        for name in sorted(os.listdir(root))
        if name not in ours and any(fnmatch.fnmatchcase(name, p) for p in patterns)
    ]


def _piece_table(
    root: Path, manifest: Manifest
) -> tuple[list[tuple[FileEntry, np.ndarray | None]], str]:
    """Each file with the lengths and digests of its pieces; None where there is but one."""
    entry = next(entry for entry in manifest.files if entry.path == PIECES)
    fault = _check_file(root, entry, None)
    tabled = [f for f in manifest.files if f.kind not in ("pieces", "units")]
    single: list[tuple[FileEntry, np.ndarray | None]] = [
        (f, None) for f in manifest.files if f.kind == "units"
    ]
    if fault:
        # Without the table only sizes can be compared; the fault itself is the finding.
        return single, fault
    table = np.fromfile(root / PIECES, "<u8").reshape(-1, 2)
    position = 0
    for file in tabled:
        single.append((file, table[position : position + file.pieces]))
        position += file.pieces
    return single, ""


def _check_file(root: Path, entry: FileEntry, pieces: np.ndarray | None) -> str:
    """What is wrong with one file; '' when nothing is."""
    try:
        with open(root / entry.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.size:
                what = "truncated" if size < entry.size else "too long"
                return f"{entry.path}: {what}: {size} bytes, should be {entry.size}"
            lengths = [entry.size] if pieces is None else pieces[:, 0].tolist()
            digests = bytearray()
            offset = 0
            for number, length in enumerate(lengths):
                digest = _digest(file, length)
                if pieces is not None and digest != int(pieces[number, 1]):
                    return f"{entry.path}: changed in bytes {offset} to {offset + length - 1}"
                digests += digest.to_bytes(8, "little")
                offset += length
    except FileNotFoundError:
        return f"{entry.path}: missing"
    except OSError as error:
        return f"{entry.path}: cannot be read: {error.strerror or error}"
    if checksum_of_digests(bytes(digests)) != entry.checksum:
        return f"{entry.path}: changed (checksum differs)"
    return ""


def _digest(file: object, length: int) -> int:
    """xxh3 of the next `length` bytes, read into one buffer that stays in the cache."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(min(length, READ_BYTES)))
    while length:
        got = file.readinto(buffer[: min(length, READ_BYTES)])  # type: ignore[attr-defined]
        if not got:
            break
        digest.update(buffer[:got])
        length -= got
    return digest.intdigest()
