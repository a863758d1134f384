"""Power loss: a job's operations are written down, then what a disk may have kept is made again.

Two models of a file system, both without any promise about what was not synced:

- `ext4`: names change in one order, and a sync of anything makes all changes of names before it
  durable. Bytes written since their file's last sync may be there, gone, torn or garbled.
- `strict`: a name is durable when its folder was synced, each by itself: of a rename between two
  folders either half may be kept without the other. Bytes as above.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reliability.small_job import using
from tokenmill.system import failpoints
from tokenmill.system.failpoints import Operation, WatchedDisk

Trace = list[tuple[str, Operation]]  # role and operation, in the order in which they were made
MODELS = ("ext4", "strict")


class Recorder(WatchedDisk):
    """Writes every operation down after it was made, from all processes into one file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)

    def perform(self, operation: Operation, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        made = operation._replace(data=bytes(operation.data))
        if made.kind == "write":
            made = made._replace(data=made.data[:result], size=result)
        line = msgspec.msgpack.encode([failpoints._role, *made])
        os.write(self._log, len(line).to_bytes(4, "little") + line)
        return result


def record(action: Callable[[], Any], log: Path) -> Trace:
    with using(Recorder(log)):
        action()
    content, at, trace = log.read_bytes(), 0, []
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        role, *fields = msgspec.msgpack.decode(content[at + 4 : at + 4 + length])
        trace.append((role, Operation(*fields)))
        at += 4 + length
    return trace


# --- what is on the disk, and what may be lost of it ------------------------------------------


@dataclass
class File:
    """Its synced content, and the writes and truncations since, in order."""

    synced: bytes = b""
    since: list[tuple[str, int, bytes]] = field(default_factory=list)

    def sync(self) -> None:
        self.synced, self.since = self.content(self.since), []

    def content(self, changes: list[tuple[str, int, bytes]]) -> bytes:
        content = bytearray(self.synced)
        for kind, at, data in changes:
            if kind == "truncate":
                content = content[:at].ljust(at, b"\0")
            else:
                content = content.ljust(at, b"\0")
                content[at : at + len(data)] = data
        return bytes(content)


FOLDER = -1
Names = dict[str, int]  # path to file number, or FOLDER
State = dict[str, tuple[int, bytes]]  # and its content


class Disk:
    """The state of a disk under a model, operation by operation."""

    def __init__(self, model: str, root: Path, start: dict[str, bytes]) -> None:
        self.model, self.root = model, str(root)
        self.files: list[File] = []
        self.names: Names = {"": FOLDER}
        for path, content in start.items():
            for folder in list(Path(path).parents)[::-1]:
                self.names["" if str(folder) == "." else str(folder)] = FOLDER
            self.names[path] = self._new(content)
        self.durable = dict(self.names)
        self.changes: list[tuple[str, int | None]] = []  # of names, since they were durable

    def _new(self, content: bytes = b"") -> int:
        self.files.append(File(content))
        return len(self.files) - 1

    def _local(self, path: str) -> str | None:
        """Relative to the root; None for what lies elsewhere."""
        if path == self.root:
            return ""
        inside = path.startswith(self.root + "/")
        return path[len(self.root) + 1 :] if inside else None

    def _change(self, path: str, value: int | None) -> None:
        if value is None:
            self.names.pop(path, None)
        else:
            self.names[path] = value
        self.changes.append((path, value))

    def apply(self, operation: Operation) -> None:
        path, target = self._local(operation.path), self._local(operation.target)
        if path is None:
            return
        match operation.kind:
            case "create":
                self._change(path, self._new())
            case "truncate":
                self.files[self.names[path]].since.append(("truncate", operation.size, b""))
            case "write":
                change = ("write", operation.offset, operation.data)
                self.files[self.names[path]].since.append(change)
            case "link" | "rename" if target is not None:
                self._change(target, self.names[path])
                if operation.kind == "rename":
                    self._change(path, None)
            case "mkdir":
                self._change(path, FOLDER)
            case "unlink" | "rmdir":
                self._change(path, None)
            case "sync":
                self.files[self.names[path]].sync()
                if self.model == "ext4":
                    self._names_durable(lambda _: True)
            case "sync-folder":
                whole = self.model == "ext4"
                self._names_durable(lambda name: whole or os.path.dirname(name) == path)

    def _names_durable(self, which: Callable[[str], bool]) -> None:
        for path, value in self.changes:
            if which(path):
                _set(self.durable, path, value)
        self.changes = [change for change in self.changes if not which(change[0])]

    # --- a state that a power cut may leave ---------------------------------------------------

    def after_power_loss(self, rng: random.Random) -> State:
        """Drawn from all that the model allows."""
        style = rng.choice(("nothing", "everything", "names", "bytes", "some", "some", "last"))
        names = dict(self.durable)
        for path, value in self._kept_names(rng, style):
            _set(names, path, value)
        state: State = {}
        contents: dict[int, bytes] = {}
        for path, value in sorted(names.items()):
            if not all(names.get(folder) == FOLDER for folder in _above(path)):
                continue  # its folder is lost, and it with it
            if value != FOLDER and value not in contents:
                contents[value] = _kept_content(self.files[value], rng, style)
            state[path] = value, contents.get(value, b"")
        return state

    def _kept_names(self, rng: random.Random, style: str) -> Iterator[tuple[str, int | None]]:
        if self.model == "ext4":
            count = {"nothing": 0, "bytes": 0}.get(style, len(self.changes))
            if style in ("some", "last"):
                count = rng.randint(0, len(self.changes))
            yield from self.changes[:count]
            return
        cut = {"nothing": 0.0, "bytes": 0.0, "everything": 1.0, "names": 1.0}.get(style)
        kept = dict.fromkeys((path for path, _ in self.changes), 0)
        for path in kept:  # of each name's changes a beginning, whatever the others do
            own = sum(changed == path for changed, _ in self.changes)
            kept[path] = rng.randint(0, own) if cut is None else int(own * cut)
        for path, value in self.changes:
            if kept[path]:
                kept[path] -= 1
                yield path, value


def _set(names: Names, path: str, value: int | None) -> None:
    if value is None:
        names.pop(path, None)
    else:
        names[path] = value


def _above(path: str) -> Iterator[str]:
    while path:
        path = os.path.dirname(path)
        yield path


def _kept_content(file: File, rng: random.Random, style: str) -> bytes:
    if style in ("nothing", "names"):
        return file.synced
    if style in ("everything", "bytes"):
        return file.content(file.since)
    kept: list[tuple[str, int, bytes]] = []
    for number, (kind, at, data) in enumerate(file.since):
        if style == "last" and number < len(file.since) - 1:
            kept.append((kind, at, data))
            continue
        fate = rng.choice(("kept", "gone", "torn", "zeros", "garbled"))
        if fate == "gone" or (kind == "truncate" and fate != "kept"):
            continue
        if fate == "torn":
            data = data[: rng.randint(0, len(data))]  # noqa: PLW2901
        elif fate == "zeros":
            data = bytes(len(data))  # noqa: PLW2901
        elif fate == "garbled" and data:
            start = rng.randrange(len(data))
            stop = rng.randint(start + 1, len(data))
            data = data[:start] + rng.randbytes(stop - start) + data[stop:]  # noqa: PLW2901
        kept.append((kind, at, data))
    return file.content(kept)


def disk_at(model: str, trace: Trace, moment: int, root: Path, start: dict[str, bytes]) -> Disk:
    """The disk when the first `moment` operations were made."""
    disk = Disk(model, root, start)
    for _, operation in trace[:moment]:
        disk.apply(operation)
    return disk


def lay_out(state: State, folder: Path) -> None:
    """Make the state real."""
    made: dict[int, Path] = {}
    for path, (number, content) in sorted(state.items()):
        if number == FOLDER:
            (folder / path).mkdir(parents=True, exist_ok=True)
        elif number in made:  # two names of one file
            (folder / path).hardlink_to(made[number])
        else:
            made[number] = folder / path
            made[number].write_bytes(content)
