"""The user's cache folder: files that can be made or downloaded again."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import xxhash

from tokenmill.errors import StorageError
from tokenmill.system import disk as steps


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tokenmill"


def read_from_cache(name: str) -> bytes | None:
    try:
        return (cache_folder() / name).read_bytes()
    except OSError:
        return None


def keep_in_cache(name: str, content: bytes, folder: Path | None = None) -> Path:
    """Threads of a process, and machines that share a home, may write the same file at once."""
    path = (folder or cache_folder()) / name
    with steps.explained("create", path.parent):
        steps.make_folder(path.parent)
    writer = f"{os.uname().nodename}-{os.getpid()}-{threading.get_ident()}"
    steps.write_atomic(path, content, path.with_name(f".{path.name}.{writer}.tmp"))
    return path


def _last_resort() -> Path:
    """For a home that cannot be written, as on many clusters."""
    return Path(tempfile.gettempdir()) / f"tokenmill-{os.getuid()}"


def find_kept(name: str, folder: str = "") -> Path | None:
    """A file of the cache; `folder` is where it was once put, by a process of another cache."""
    places = [Path(folder)] if folder else []
    places += [cache_folder(), _last_resort()]
    return next((place / name for place in places if (place / name).is_file()), None)


def keep_anywhere(name: str, content: bytes) -> Path:
    """In the cache, or in the temporary folder if the cache cannot be written. Others may write
    there too: compare the SHA-256 when you read it back."""
    try:
        return keep_in_cache(name, content)
    except StorageError:
        return keep_in_cache(name, content, _last_resort())


class GrowingFile:
    """A file written piece by piece and named, by its content if need be, when it is complete."""

    closed = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.length = 0
        self._digest = xxhash.xxh3_128()
        with steps.explained("write to", folder):
            steps.make_folder(folder)
            self._temporary, self._fd = steps.locked_file(folder)

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())

    def write(self, buffer: steps.Buffer) -> int:
        with steps.explained("write", self._temporary, len(buffer)):
            written = steps.write_all(self._fd, buffer, self.length)
        self._digest.update(buffer)
        self.length += written
        return written

    def flush(self) -> None:
        pass

    def finish(self, name: str, mtime_ns: int) -> Path:
        target = self.folder / name
        with steps.explained("write", target):
            os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            steps.disk.fsync(self._fd)
            steps.disk.replace(self._temporary, target)
            steps.sync_directory(self.folder)
        return target

    def close(self) -> None:
        """For writers that close what they write to: the file stays open until it is left."""

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(self, *_: object) -> None:
        steps.disk.close(self._fd)
        steps.remove_file(self._temporary)
