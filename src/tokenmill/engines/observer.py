"""What an engine reports while it works. Engines print nothing themselves."""

from __future__ import annotations

import msgspec

from tokenmill.engines import events


class Snapshot(msgspec.Struct, kw_only=True):
    """How far a run is, several times a second."""

    bytes_done: int = 0  # of input, as the plan counts them
    bytes_total: int = 0
    text_bytes: int = 0
    tokens: int = 0
    rows: int = 0
    units: int = 0
    workers: int = 0
    retries: int = 0
    probes: int = 0  # tries to find a row that ends its worker
    quarantined: int = 0
    resumed_bytes: int = 0  # done by an earlier run: not part of the speed
    fetched_bytes: int = 0  # downloaded
    fetch_total: int = 0
    fetching: int = 0  # files being downloaded

    def add(self, event: events.Event) -> None:
        match event:
            case events.UnitDone(counts=counts):
                self.bytes_done += event.input_bytes
                self.text_bytes += counts.text_bytes
                self.tokens += counts.tokens
                self.rows += counts.rows
                self.quarantined += counts.quarantined
                self.units += 1
            case events.Resumed():
                self.bytes_done += event.input_bytes
                self.resumed_bytes += event.input_bytes
            case events.WorkerDied():
                self.retries += 1
            case events.RowsTried():
                self.probes += 1


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
