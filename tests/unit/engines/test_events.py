"""The log of events: the one source of the snapshot, the notes and the time line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.inputs import write_jsonl

import tokenmill
from tokenmill.cli.progress import JsonProgress
from tokenmill.engines import events, observer
from tokenmill.engines.observer import EventLog, Observer, Snapshot

UNIT = events.UnitDone("0.0.0", rows=9, quarantined=2, tokens=70, text_bytes=300, input_bytes=400)


class Told(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[events.Event] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, seconds: float, event: events.Event) -> None:
        super().event(seconds, event)
        self.events.append(event)


def test_the_snapshot_is_the_sum_of_the_events() -> None:
    log = EventLog(Observer(), bytes_total=1000)
    for event in (
        UNIT,
        UNIT,
        events.Resumed(100),
        events.WorkerDied("was killed", searching=False),
        events.RowsTried("a", 0),
        UNIT,
        events.UnitLost(*msgspec.structs.astuple(UNIT)),
        events.WorkersAtWork(3),
        events.Making(8),
        events.Downloading(downloaded_bytes=5, total_bytes=70, files=1),
    ):
        log.add(event)
    assert log.snapshot == Snapshot(
        bytes_done=900, bytes_total=1000, text_bytes=600, tokens=140, rows=18, units=2,
        retries=1, probes=1, quarantined=4, resumed_bytes=100, workers=3, made_bytes=8,
        fetched_bytes=5, fetch_total=70, fetching=1,
    )  # fmt: skip


def test_a_person_reads_of_a_dead_worker_unless_a_search_expected_its_death() -> None:
    told = Told()
    log = EventLog(told)
    log.add(events.WorkerDied("was killed", searching=True))
    log.add(events.WorkerDied("was killed", searching=False))
    assert told.notes == ["a worker was killed; replaced, its work is done again"]
    assert len(told.events) == 2


def test_how_far_something_is_is_told_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = [0.0], Told()
    monkeypatch.setattr("tokenmill.engines.observer.time.monotonic", lambda: clock[0])
    log = EventLog(told)
    for size in (1, 2, 3, 4):
        log.progress(events.Making(size))
        clock[0] += 0.5
    assert told.events == [events.Making(1), events.Making(3)]
    log.progress(events.Making(4), at_once=True)
    log.progress(events.Making(4), at_once=True)
    assert told.events[2:] == [events.Making(4)]
    assert log.timeline == []


def test_the_time_line_of_a_long_run_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tokenmill.engines.observer.time.monotonic", lambda: clock[0])
    log = EventLog(Observer())
    for _ in range(5000):
        clock[0] += observer.SPEED_SECONDS
        log.add(UNIT)
        log.tick()
        log.add(events.Retry(0, 0))
    line = log.timeline
    assert 2 * observer.MAX_KEPT // 2 < len(line) <= 2 * observer.MAX_KEPT
    assert [entry["seconds"] for entry in line] == sorted(entry["seconds"] for entry in line)
    speeds = [entry for entry in line if entry["event"] == "speed"]
    assert {entry["tokens_per_second"] for entry in speeds} == {14}
    assert line[-1]["seconds"] == clock[0]


def test_progress_as_json_is_a_line_for_each_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["some text"] * 50)
    path.write_text(path.read_text() + "{}\n")
    result = tokenmill.prepare(
        path, tmp_path / "o", workers=0, on_bad_row="quarantine", observer=JsonProgress()
    )
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    units = [line for line in lines if line["event"] == "unit_done"]
    assert sum(line["tokens"] for line in units) == result.manifest.counts["tokens"]
    [quarantine] = [line for line in lines if line["event"] == "quarantine"]
    assert (quarantine["source"], quarantine["rows"]) == ("a.jsonl", 1)
    record = json.loads((tmp_path / "o" / "run.json").read_text())
    told = [entry["event"] for entry in record["timeline"]]
    assert [event for event in told if event != "speed"] == ["quarantine"]  # on a busy machine
