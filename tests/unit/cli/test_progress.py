"""The time that is said to be left."""

from __future__ import annotations

import pytest

from tokenmill.cli import progress
from tokenmill.engines.observer import Snapshot


def rates_at(monkeypatch: pytest.MonkeyPatch) -> tuple[progress.Rates, list[float]]:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return progress.Rates(), clock


def test_the_time_left_goes_by_what_this_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, clock = rates_at(monkeypatch)
    clock[0] += 10
    resumed = Snapshot(bytes_done=600, resumed_bytes=500, bytes_total=1000)
    assert rates.eta(resumed) == 40
    assert rates.eta(Snapshot(bytes_total=1000)) is None  # not known yet


def test_waiting_for_the_first_file_is_not_taken_for_slow_milling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates, clock = rates_at(monkeypatch)
    clock[0] += 90  # 9 of 10 files' worth of bytes are there, but the first file came only now
    line = {"fetch_total": 1000, "bytes_total": 1000}
    assert rates.eta(Snapshot(fetched_bytes=900, bytes_done=1, **line)) == 10
    clock[0] += 1  # and is milled at 100 bytes a second
    assert rates.eta(Snapshot(fetched_bytes=910, bytes_done=100, **line)) == pytest.approx(9)
    # A line that is done leaves the milling: nobody waits any more.
    assert rates.eta(Snapshot(fetched_bytes=1000, bytes_done=100, **line)) == pytest.approx(9)
    clock[0] += 4  # slow milling is told as such
    assert rates.eta(Snapshot(fetched_bytes=1000, bytes_done=100, **line)) == pytest.approx(45)
