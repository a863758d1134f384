"""Local copies of files of a bucket: indexes, and token files that are read as a whole.

They are in the user's cache, named by address and version. The oldest ones are removed when all
together are longer than the limit.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import xxhash

from tokenmill.amounts import parse_bytes
from tokenmill.errors import StorageError
from tokenmill.system.cache import GrowingFile, cache_folder
from tokenmill.system.disk import Buffer, remove_file

LIMIT_VARIABLE = "TOKENMILL_BUCKET_CACHE"
LIMIT = "4GB"


def copies_folder() -> Path:
    return cache_folder() / "buckets"


def copy_of(
    where: str, version: str, size: int, content: Callable[[], Iterator[Buffer]]
) -> memoryview:
    """The bytes of a file, mapped. Two processes that make the same copy make the same file."""
    if not size:
        return memoryview(b"")
    name = xxhash.xxh3_128_hexdigest(f"{where}\n{version}\n{size}".encode())
    found = _mapped(copies_folder() / name, size)
    if found is not None:
        return found
    try:
        return _made(copies_folder(), name, where, size, content)
    except StorageError as error:
        if where in error.message:
            raise  # the store's own fault
        folder = Path(tempfile.gettempdir()) / f"tokenmill-{os.getuid()}" / "buckets"
        return _made(folder, name, where, size, content)


def _made(
    folder: Path, name: str, where: str, size: int, content: Callable[[], Iterator[Buffer]]
) -> memoryview:
    with GrowingFile(folder) as file:
        for part in content():
            file.write(part)
        if file.length != size:
            raise StorageError(f"{where}: has another length than a moment ago")
        path = file.finish(name, time.time_ns())
    found = _mapped(path, size)
    _keep_within_limit(folder)
    if found is None:
        raise StorageError(f"{where}: its copy in {folder} was removed while it was read")
    return found


def _mapped(path: Path, size: int) -> memoryview | None:
    """A map stays what it is when its file is removed."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != size:
                return None
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError:
        return None


def _keep_within_limit(folder: Path) -> None:
    limit = parse_bytes(os.environ.get(LIMIT_VARIABLE) or LIMIT, what=LIMIT_VARIABLE)
    files: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            about = path.stat()
            if not path.name.startswith("."):
                files.append((about.st_mtime, about.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            return
        remove_file(path)
        total -= size
