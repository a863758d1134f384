"""What a person sees while a job runs: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.errors import safe

PLAIN_SECONDS = 10.0


def human(number: float, unit: str = "") -> str:
    """1234567 -> '1.23M'."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= factor:
            return f"{number / factor:.2f}{suffix}{unit}"
    return f"{number:.0f}{unit}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d} min"


class _Rates:
    """Speeds of this run alone: what an earlier run did is not counted."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first_came: float | None = (
            None  # seconds until a file that was fetched could be milled
        )

    def describe(self, s: Snapshot) -> tuple[str, str, float]:
        elapsed = max(1e-3, time.monotonic() - self.began)
        return (
            f"{s.text_bytes / elapsed / 1e6:.0f} MB/s",
            f"{human(s.tokens / elapsed)} tok/s",
            self.eta(s),
        )

    def eta(self, s: Snapshot) -> float:
        elapsed = max(1e-3, time.monotonic() - self.began)
        done = s.bytes_done - s.resumed_bytes
        left = max(0, s.bytes_total - s.bytes_done)
        if not s.fetch_total:
            return left * elapsed / done if done else 0.0
        # Before the first file had come nothing was slow but the line, and what is still to come
        # decides where that is the slower part.
        if self.first_came is None and done:
            self.first_came = elapsed
        busy = elapsed - self.first_came if self.first_came is not None else 0.0
        return max(left * busy / done if done else 0.0, self.fetch_eta(s))

    def fetch_eta(self, s: Snapshot) -> float:
        elapsed = max(1e-3, time.monotonic() - self.began)
        left = max(0, s.fetch_total - s.fetched_bytes)
        return left * elapsed / s.fetched_bytes if s.fetched_bytes else 0.0

    def fetching(self, s: Snapshot) -> str:
        elapsed = max(1e-3, time.monotonic() - self.began)
        return f"{s.fetched_bytes / elapsed / 1e6:.0f} MB/s"


class PlainProgress(Observer):
    """A line now and then, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.rates = _Rates()
        self.printed = time.monotonic()

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self.printed >= PLAIN_SECONDS:
            self.printed = time.monotonic()
            speed, tokens, eta = self.rates.describe(snapshot)
            percent = 100 * snapshot.bytes_done / max(1, snapshot.bytes_total)
            if snapshot.fetched_bytes < snapshot.fetch_total:
                print(self._fetching(snapshot), file=self.stream, flush=True)
            if not snapshot.bytes_total:
                return
            print(
                f"{percent:.1f}%  {human(snapshot.tokens)} tokens  {speed}  {tokens}  "
                f"eta {duration(eta)}  workers {snapshot.workers}  retries {snapshot.retries}  "
                f"quarantined {snapshot.quarantined}",
                file=self.stream,
                flush=True,
            )

    def _fetching(self, s: Snapshot) -> str:
        return (
            f"fetched {100 * s.fetched_bytes / s.fetch_total:.1f}% of {human(s.fetch_total)}B  "
            f"{self.rates.fetching(s)}  eta {duration(self.rates.fetch_eta(s))}  "
            f"{s.fetching} files on their way"
        )

    def note(self, text: str) -> None:
        print(f"note: {safe(text)}", file=self.stream, flush=True)


class LiveProgress(Observer):
    """A bar with speeds, time left, workers, retries and quarantined rows; one above it for what
    is fetched."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.console = Console(stderr=True)
        self.rates = _Rates()
        self.progress: Any = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[speeds]}"),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
            transient=True,
            auto_refresh=False,
        )
        self.tasks: dict[str, Any] = {}
        self.started = False

    def update(self, snapshot: Snapshot) -> None:
        if not self.started:
            self.progress.start()
            self.started = True
        speed, tokens, eta = self.rates.describe(snapshot)
        if snapshot.fetch_total:
            self._show(
                "fetching",
                snapshot.fetched_bytes,
                snapshot.fetch_total,
                self.rates.fetching(snapshot),
                f"eta {duration(self.rates.fetch_eta(snapshot))} · {snapshot.fetching} files on "
                "their way",
            )
        if snapshot.bytes_total:
            self._show(
                "milling",
                snapshot.bytes_done,
                snapshot.bytes_total,
                f"{speed} {tokens}",
                f"eta {duration(eta)} · {snapshot.workers} workers · {snapshot.retries} retries "
                f"· {snapshot.quarantined} quarantined",
            )
        self.progress.refresh()

    def _show(self, what: str, done: int, total: int, speeds: str, detail: str) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=None, speeds="", detail="")
        self.progress.update(
            self.tasks[what], completed=done, total=total, speeds=speeds, detail=detail
        )

    def note(self, text: str) -> None:
        from rich.markup import escape

        self.console.print(f"[yellow]note:[/] {escape(safe(text))}", highlight=False)

    def __exit__(self, *_: object) -> None:
        if self.started:
            self.progress.stop()
