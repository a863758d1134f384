"""Which coordinator may go on: numbered leases in place of a lock.

To begin is to create the lease with the next number. A coordinator whose lease is not the highest
any more has been taken over, and stops before it removes or publishes anything. A lease stays until
its job is finished: what has died and what is only slow cannot be told from outside. (Heartbeats,
by which the next one would wait for one that is alive, belong into `DriverLease.take`.)
"""

from __future__ import annotations

import os
import platform

import msgspec

from tokenmill.errors import RefusedError
from tokenmill.output.objects.creating import create_once
from tokenmill.system.store import ObjectStore, read_small


class DriverLease:
    def __init__(self, store: ObjectStore, folder: str, number: int, content: bytes) -> None:
        self._store, self._folder = store, folder
        self.number, self._content = number, content

    @classmethod
    def take(cls, store: ObjectStore, folder: str) -> DriverLease:
        """The next one. A RefusedError if another coordinator begins at the same moment."""
        number = highest(store, folder) + 1
        holder = {"host": platform.node(), "process": os.getpid(), "key": os.urandom(16).hex()}
        lease = cls(store, folder, number, msgspec.json.encode(holder))
        create_once(store, lease_name(folder, number), lease._content)
        return lease

    def check(self) -> None:
        """Raises a RefusedError if another coordinator has taken over."""
        number = highest(self._store, self._folder)
        try:
            found = read_small(self._store, lease_name(self._folder, number))
        except FileNotFoundError:  # the job is finished, and its leases are gone
            found = b""
        if found != self._content:
            raise RefusedError(
                f"{self._store.where()}: another coordinator has taken over this job",
                hint="let it finish; nothing that was done is lost",
            )

    def release(self) -> None:
        """It stays: see above."""


def lease_name(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}"


def highest(store: ObjectStore, folder: str) -> int:
    numbers = (name.rpartition("/")[2] for name in store.names(f"{folder}/"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
