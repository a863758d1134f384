"""What an engine reports while it works. Engines print nothing themselves."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tokenmill.engines import events

SPEED_SECONDS = 5.0
PROGRESS_SECONDS = 1.0
MAX_KEPT = 200  # entries of each kind in the time line
# Not in the time line: a run may have a million of them.
FREQUENT = (
    events.UnitDone,
    events.UnitLost,
    events.Resumed,
    events.FileMade,
    events.WorkersAtWork,
    events.Downloading,
    events.Making,
)


class Snapshot(msgspec.Struct, kw_only=True):
    """How far a run is, several times a second."""

    bytes_done: int = 0  # of input, as the plan counts them
    bytes_total: int = 0
    text_bytes: int = 0
    tokens: int = 0
    rows: int = 0
    units: int = 0
    workers: int = 0
    nodes: int = 0  # of a cluster
    retries: int = 0
    preemptions: int = 0  # workers that were lost with their nodes
    probes: int = 0  # tries to find a row that ends its worker
    quarantined: int = 0
    resumed_bytes: int = 0  # done by an earlier run: not part of the speed
    fetched_bytes: int = 0  # downloaded
    fetch_total: int = 0
    fetching: int = 0  # files being downloaded

    files_total: int = 0  # to be made of tokens that are there; ranges of large ones
    files_made: int = 0
    made_bytes: int = 0  # with those of files under way
    make_total: int = 0  # about

    def add(self, event: events.Event) -> None:
        match event:
            case events.FilesBegun():
                self.files_total += event.files
                self.make_total += event.bytes
            case events.FileMade():
                self.files_made += 1
            case events.UnitDone():
                self.bytes_done += event.input_bytes
                self.text_bytes += event.text_bytes
                self.tokens += event.tokens
                self.rows += event.rows
                self.quarantined += event.quarantined
                self.units += 1
            case events.UnitLost():
                self.bytes_done -= event.input_bytes
                self.text_bytes -= event.text_bytes
                self.tokens -= event.tokens
                self.rows -= event.rows
                self.quarantined -= event.quarantined
                self.units -= 1
            case events.Resumed():
                self.bytes_done += event.input_bytes
                self.resumed_bytes += event.input_bytes
            case events.WorkerDied():
                self.retries += 1
            case events.WorkerLost():
                self.preemptions += 1
            case events.RowsTried():
                self.probes += 1
            case events.Making():
                self.made_bytes = event.made_bytes
            case events.WorkersAtWork():
                self.workers, self.nodes = event.workers, event.nodes
            case events.Downloading():
                self.fetched_bytes, self.fetch_total = event.downloaded_bytes, event.total_bytes
                self.fetching = event.files


class Observer:
    """Silent by default; progress bars and plain lines override."""

    def update(self, snapshot: Snapshot) -> None:
        """Called often; must be cheap."""

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        """The run is over."""

    def note(self, text: str) -> None:
        """Something worth a line: a worker replaced, fewer workers than asked for."""

    def event(self, seconds: float, event: events.Event) -> None:
        """Something happened, so many seconds after the start."""
        if event.note:
            self.note(event.note)


class EventLog:
    """All events of a run go through here: to the observer, the snapshot and the time line."""

    def __init__(self, observer: Observer, bytes_total: int = 0) -> None:
        self.observer, self.snapshot = observer, Snapshot(bytes_total=bytes_total)
        self._began = time.monotonic()
        self._speeds: list[dict[str, Any]] = []
        self._others: list[dict[str, Any]] = []
        self._told: dict[type[events.Event], tuple[float, events.Event]] = {}  # by `progress`
        self._last = (0.0, 0, 0)  # seconds, tokens and bytes of text at the last speed

    def add(self, event: events.Event) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        self.snapshot.add(event)
        self.observer.event(seconds, event)
        if isinstance(event, FREQUENT):
            return
        kept = self._speeds if isinstance(event, events.Speed) else self._others
        kept.append({"seconds": seconds, **msgspec.to_builtins(event)})
        if len(self._speeds) > MAX_KEPT:
            del self._speeds[::2]  # of a long run, one every minute or hour
        if len(self._others) > MAX_KEPT:
            del self._others[MAX_KEPT // 2]  # the first and the last ones tell most

    def progress(self, event: events.Event, *, at_once: bool = False) -> None:
        """How far something is: told when that has changed, at most once a second."""
        now = time.monotonic()
        told_at, told = self._told.get(type(event), (-PROGRESS_SECONDS, None))
        if event != told and (at_once or now - told_at >= PROGRESS_SECONDS):
            self._told[type(event)] = now, event
            self.add(event)

    def tick(self) -> None:
        """Several times a second: how far the run is, and now and then its speed."""
        s, seconds = self.snapshot, time.monotonic() - self._began
        since, tokens, text_bytes = self._last
        if (passed := seconds - since) >= SPEED_SECONDS:
            self._last = seconds, s.tokens, s.text_bytes
            self.add(
                events.Speed(
                    input_bytes=s.bytes_done,
                    input_bytes_total=s.bytes_total,
                    tokens=s.tokens,
                    tokens_per_second=round((s.tokens - tokens) / passed),
                    text_bytes_per_second=round((s.text_bytes - text_bytes) / passed),
                    downloaded_bytes=s.fetched_bytes,
                    workers=s.workers,
                    retries=s.retries,
                    nodes=s.nodes,
                    preemptions=s.preemptions,
                )
            )
        self.observer.update(s)

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """For run.json; without single units, and never more than a few hundred entries."""
        return sorted([*self._speeds, *self._others], key=lambda entry: float(entry["seconds"]))
