"""How a worker ended, in words: a SIGKILL is the out-of-memory killer's only where that shows."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from tokenmill.engines.local import processes
from tokenmill.engines.local.processes import Worker, worker_end

GB = 10**9


def end(
    monkeypatch: pytest.MonkeyPatch, *, free: int, resident: int, kills: int = 0, code: int = -9
) -> str:
    counters = {"the machine": 3}
    monkeypatch.setattr(processes, "oom_kills", lambda: dict(counters))
    monkeypatch.setattr(processes, "available_memory", lambda: free)
    monkeypatch.setattr(processes, "memory_allowed", lambda: 25 * GB)
    worker = Worker(1, SimpleNamespace(exitcode=code), None)
    worker.resident = resident
    counters["the machine"] += kills
    found = worker_end(worker)
    assert "GB" not in found.fault, "what the manifest may hold has no number of this run"
    return found.how


def test_a_worker_killed_by_hand_was_not_killed_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    how = end(monkeypatch, free=24 * GB, resident=GB // 5)
    assert how.startswith("was ended by SIGKILL, not for lack of memory (it used 200.0 MB, 23.8 GB")
    assert "out-of-memory" not in how
    assert "somebody sent the signal" in how


def test_the_kernels_counter_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    how = end(monkeypatch, free=24 * GB, resident=GB, kills=1)
    assert "by the kernel's out-of-memory killer (its counter oom_kill rose" in how


def test_little_memory_makes_it_probable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "probably by the out-of-memory killer" in end(monkeypatch, free=GB, resident=GB // 2)
    # Its own memory is free again when it is looked at.
    how = end(monkeypatch, free=20 * GB, resident=19 * GB)
    assert "probably by the out-of-memory killer: it used 19.0 GB, and 1.0 GB of" in how


def test_other_signals_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    how = end(monkeypatch, free=GB, resident=0, code=-signal.SIGSEGV)
    assert how == "was ended by SIGSEGV"
