"""A log in a store that cannot append: numbered objects, created one by one, never changed.

Each holds one or more records, in the form that the journal of a folder has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tokenmill.output.journal import Record, framed_records
from tokenmill.output.objects.creating import create_once
from tokenmill.system.store import ObjectStore, read_small


class ObjectLog:
    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        number: int,
        header: bytes,
        check: Callable[[], None],
    ) -> None:
        """`number`: of the next object; `check`: raises if another coordinator has taken over."""
        self._store, self._folder, self._number = store, folder, number
        self._header, self._check = header, check

    def append(self, content: bytes) -> None:
        self._check()
        create_once(self._store, f"{self._folder}/{self._number:08d}", self._header + content)
        self._number += 1

    def close(self) -> None:
        """Nothing is open."""


def read_objects(
    store: ObjectStore, folder: str, header: bytes, decode: Callable[[bytes], Record]
) -> tuple[list[Record], int]:
    """The valid records, and the number of the next object. What is damaged is left out: what it
    names is done again."""
    return list(each_in_objects(store, folder, header, decode)), next_number(store, folder)


def next_number(store: ObjectStore, folder: str) -> int:
    return max((number + 1 for number, _ in _numbered(store, folder)), default=0)


def each_in_objects(
    store: ObjectStore, folder: str, header: bytes, decode: Callable[[bytes], Record]
) -> Iterator[Record]:
    """The same, one by one."""
    for _, name in _numbered(store, folder):
        yield from valid_records(read_small(store, name), header, decode)


def _numbered(store: ObjectStore, folder: str) -> list[tuple[int, str]]:
    names = [(name.rpartition("/")[2], name) for name in store.names(f"{folder}/")]
    return [(int(last), name) for last, name in names if last.isdecimal()]


def valid_records(
    content: bytes, header: bytes, decode: Callable[[bytes], Record]
) -> Iterator[Record]:
    """The records of one object; none if it belongs to another job."""
    if not content.startswith(header):
        return
    for body, _ in framed_records(content, len(header)):
        try:
            yield decode(body)
        except msgspec.DecodeError:
            return
