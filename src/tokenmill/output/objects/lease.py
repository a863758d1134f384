"""Which coordinator may go on: numbered leases in place of a lock.

To begin is to create the lease with the next number. A coordinator whose lease is not the highest
any more has been taken over, and stops before it removes or publishes anything. Correctness rests
on that check and on records that are never changed. Heartbeats only save work: a newcomer waits
until it knows whether the holder lives. The holder rewrites `driver/N.beat` every few seconds. If
this has not changed for a minute by the newcomer's own clock, the holder is dead. Clocks of two
machines are never compared.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tokenmill.errors import RefusedError, StorageError
from tokenmill.output.objects.creating import create_once
from tokenmill.system.proc import read_stat
from tokenmill.system.store import ObjectStore, read_small

DEAD_SECONDS = 60.0  # without a change of its heartbeat, a coordinator is dead
BEATS = 12  # heartbeats in that time
LOOK_SECONDS = 0.5
ENDED = b"ended"

# The leases whose coordinators are at work in this process. One of this process that is not here
# has ended, even if it could not say so because the store did not answer.
_held: set[str] = set()


def dead_seconds() -> float:
    """Tests shorten it."""
    value = os.environ.get("TOKENMILL_DRIVER_SECONDS", "")
    return float(value) if value.replace(".", "", 1).isdigit() else DEAD_SECONDS


class DriverLease:
    def __init__(self, store: ObjectStore, folder: str, number: int, content: bytes) -> None:
        self._store, self._folder = store, folder
        self.number, self._content = number, content
        self._stop = threading.Event()
        self._beating: threading.Thread | None = None

    @classmethod
    def take(
        cls, store: ObjectStore, folder: str, check_interrupt: Callable[[], None] = lambda: None
    ) -> DriverLease:
        """The next one. A RefusedError if another coordinator is alive, or begins at the same
        moment."""
        number = highest(store, folder) + 1
        if number > 1:
            _refuse_alive(store, folder, number - 1, check_interrupt)
        holder = {**this_process(), "key": os.urandom(16).hex()}
        lease = cls(store, folder, number, msgspec.json.encode(holder))
        create_once(store, lease_name(folder, number), lease._content)
        _held.add(lease._content.decode())
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

    def begin_beating(self) -> None:
        """Show that this coordinator lives, until `release`."""
        self._beat(b"0")
        self._beating = threading.Thread(target=self._keep_beating, daemon=True)
        self._beating.start()

    def _keep_beating(self) -> None:
        count = 0
        while not self._stop.wait(dead_seconds() / BEATS):
            count += 1
            # A heartbeat that fails is one that is late. Who waits is told by the check.
            with contextlib.suppress(OSError, StorageError, RefusedError):
                self._beat(b"%d" % count)

    def _beat(self, content: bytes) -> None:
        self._store.write_whole(beat_name(self._folder, self.number), content)

    def stop_beating(self) -> bool:
        """Whether it was beating. Nothing is written any more when this returns."""
        self._stop.set()
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.join()
        return beating is not None

    def release(self) -> None:
        """The lease stays: a slow coordinator must find one that is higher than its own. But the
        next one need not wait."""
        _held.discard(self._content.decode())
        if self.stop_beating():
            with contextlib.suppress(OSError, StorageError, RefusedError):
                if self._store.size(lease_name(self._folder, self.number)) is not None:
                    self._beat(ENDED)


def this_process() -> dict[str, Any]:
    """What names a process for ever, as far as this machine can say."""
    stat = read_stat(os.getpid())
    return {
        "host": platform.node(),
        "boot": _boot_id(),
        "process": os.getpid(),
        "started": stat.started if stat else 0,
    }


def _boot_id() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        # Containers of one host share the boot and not the process ids.
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _is_gone(content: bytes, holder: dict[str, Any]) -> bool:
    """Whether a coordinator of this machine has ended for sure."""
    here = this_process()
    if not here["boot"] or any(holder.get(key) != here[key] for key in ("host", "boot")):
        return False
    if all(holder.get(key) == here[key] for key in ("process", "started")):
        return content.decode() not in _held
    stat = read_stat(int(holder["process"]))
    return stat is None or stat.started != holder.get("started")


def _refuse_alive(
    store: ObjectStore, folder: str, number: int, check_interrupt: Callable[[], None]
) -> None:
    """Waits until the holder of a lease is known to be alive or dead; refuses if it is alive."""
    try:
        content = read_small(store, lease_name(folder, number))
        holder = msgspec.json.decode(content, type=dict)
        gone = _is_gone(content, holder)
    except (FileNotFoundError, msgspec.DecodeError, ValueError, KeyError):
        return
    first = read_beat(store, folder, number)
    began = time.monotonic()
    while first not in (None, ENDED) and not gone and time.monotonic() - began < dead_seconds():
        check_interrupt()
        time.sleep(min(LOOK_SECONDS, dead_seconds() / BEATS))
        now = read_beat(store, folder, number)
        if now in (None, ENDED):
            return
        if now != first:
            raise RefusedError(
                f"{store.where()}: process {holder.get('process')} on {holder.get('host')} is at "
                "work on this output",
                hint="let it finish, or stop it; nothing that was done is lost",
            )


def read_beat(store: ObjectStore, folder: str, number: int) -> bytes | None:
    try:
        return read_small(store, beat_name(folder, number))
    except FileNotFoundError:  # it does not beat, or its job is finished
        return None


def lease_name(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}"


def beat_name(folder: str, number: int) -> str:
    return f"{lease_name(folder, number)}.beat"


def highest(store: ObjectStore, folder: str) -> int:
    numbers = (name.rpartition("/")[2] for name in store.names(f"{folder}/"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
