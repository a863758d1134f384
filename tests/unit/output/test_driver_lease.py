"""Heartbeats of coordinators: who lives is not disturbed, who is dead is not waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from reliability.memory_store import MemoryStore
from tokenmill.errors import RefusedError, StorageError
from tokenmill.output.objects.lease import (
    DriverLease,
    beat_name,
    lease_name,
    this_process,
)
from tokenmill.output.objects.shared_folder import SharedFolder
from tokenmill.output.objects.workspace import DRIVER, ObjectWorkspace


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "1.2")


def held_elsewhere(store: MemoryStore, beat: bytes = b"7") -> None:
    """By a process of another machine, as far as this one can tell."""
    holder = {**this_process(), "host": "node-17", "boot": "another", "process": 4711}
    store.files[lease_name(DRIVER, 1)] = msgspec.json.encode(holder)
    store.files[beat_name(DRIVER, 1)] = beat


def test_a_coordinator_whose_heart_beats_is_not_disturbed() -> None:
    store = MemoryStore()
    held_elsewhere(store)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.1):
            store.files[beat_name(DRIVER, 1)] += b"x"

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(RefusedError, match="process 4711 on node-17 is at work"):
            DriverLease.take(store, DRIVER)
    finally:
        done.set()
        thread.join()
    assert lease_name(DRIVER, 2) not in store.files


def test_one_whose_heart_stands_still_is_taken_over_after_a_while() -> None:
    store = MemoryStore()
    held_elsewhere(store)
    began = time.monotonic()
    assert DriverLease.take(store, DRIVER).number == 2
    assert time.monotonic() - began >= 1.2


def test_one_that_ended_in_order_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "600")
    store = MemoryStore()
    lease = DriverLease.take(store, DRIVER)
    lease.begin_beating()
    lease.release()
    assert DriverLease.take(store, DRIVER).number == 2


def test_a_dead_process_of_this_machine_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "600")
    store, me = MemoryStore(), this_process()
    holder = {**me, "started": me["started"] - 1}  # its number was given to another process since
    store.files[lease_name(DRIVER, 1)] = msgspec.json.encode(holder)
    store.files[beat_name(DRIVER, 1)] = b"7"
    assert DriverLease.take(store, DRIVER).number == 2


def test_a_run_of_this_process_that_could_not_say_its_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store did not answer, the run failed, and the next one begins in the same notebook."""
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "600")
    store = MemoryStore()
    lease = DriverLease.take(store, DRIVER)
    lease.begin_beating()
    monkeypatch.setattr(lease, "_beat", _no_answer)
    lease.release()
    assert store.files[beat_name(DRIVER, 1)] == b"0"
    assert DriverLease.take(store, DRIVER).number == 2


def _no_answer(content: bytes) -> None:
    raise StorageError("the store does not answer")


def test_a_living_process_of_this_machine_is_named(tmp_path: Path) -> None:
    workspace = ObjectWorkspace(SharedFolder(tmp_path))
    lease = workspace.lock()
    with pytest.raises(RefusedError, match="is at work on this output"):
        ObjectWorkspace(SharedFolder(tmp_path)).lock()
    lease.release()


def test_no_heartbeat_is_written_once_a_job_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "0.01")
    workspace = ObjectWorkspace(SharedFolder(tmp_path))
    lease = workspace.lock()
    workspace.remove_work()
    time.sleep(0.05)
    lease.release()
    assert list(tmp_path.iterdir()) == []
