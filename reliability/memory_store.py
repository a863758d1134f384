"""A store in memory: files by name and nothing else, as a bucket has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenmill.errors import RefusedError
from tokenmill.system.disk import Buffer
from tokenmill.system.store import ObjectStore


class MemoryStore(ObjectStore):
    """Knows no folder, no place in a file, no append, no rename and no lock."""

    address = ""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {} if files is None else files

    @classmethod
    def copy_of(cls, folder: Path) -> MemoryStore:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return cls({str(path.relative_to(folder)): path.read_bytes() for path in paths})

    def where(self, name: str = "") -> str:
        return f"memory:{name}"

    def size(self, name: str) -> int | None:
        return len(self.files[name]) if name in self.files else None

    def read(self, name: str, offset: int, length: int) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name][offset : offset + length]

    def write_whole(self, name: str, content: bytes) -> None:
        self.files[name] = content

    def write_parts(self, name: str, parts: Iterable[Buffer], size: int = 0) -> None:
        self.files[name] = b"".join(bytes(memoryview(part).cast("B")) for part in parts)

    def names(self, prefix: str) -> Iterator[str]:
        return iter(sorted(name for name in self.files if name.startswith(prefix)))

    def create(self, name: str, content: bytes) -> None:
        if self.files.setdefault(name, content) is not content:
            raise RefusedError(f"{self.where(name)}: exists already")

    def remove(self, name: str) -> bool:
        return self.files.pop(name, None) is not None

    def list(self, folder: str) -> Iterator[str]:
        prefix = f"{folder}/" if folder else ""
        inside = (name.removeprefix(prefix) for name in self.files if name.startswith(prefix))
        return iter(sorted({name.partition("/")[0] for name in inside}))
