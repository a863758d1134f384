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

    def describe(self, s: Snapshot) -> tuple[str, str, float]:
        elapsed = max(1e-3, time.monotonic() - self.began)
        done = s.bytes_done - s.resumed_bytes
        left = max(0, s.bytes_total - s.bytes_done)
        eta = left * elapsed / done if done else 0.0
        return f"{s.text_bytes / elapsed / 1e6:.0f} MB/s", f"{human(s.tokens / elapsed)} tok/s", eta


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
            print(
                f"{percent:.1f}%  {human(snapshot.tokens)} tokens  {speed}  {tokens}  "
                f"eta {duration(eta)}  workers {snapshot.workers}  retries {snapshot.retries}  "
                f"quarantined {snapshot.quarantined}",
                file=self.stream,
                flush=True,
            )

    def note(self, text: str) -> None:
        print(f"note: {safe(text)}", file=self.stream, flush=True)


class LiveProgress(Observer):
    """A bar with speeds, time left, workers, retries and quarantined rows."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.console = Console(stderr=True)
        self.rates = _Rates()
        self.progress: Any = Progress(
            TextColumn("[bold]milling"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[speeds]}"),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
            transient=True,
            auto_refresh=False,
        )
        self.task = self.progress.add_task("", total=None, speeds="", detail="")
        self.started = False

    def update(self, snapshot: Snapshot) -> None:
        if not self.started:
            self.progress.start()
            self.started = True
        speed, tokens, eta = self.rates.describe(snapshot)
        self.progress.update(
            self.task,
            completed=snapshot.bytes_done,
            total=snapshot.bytes_total,
            speeds=f"{speed} {tokens}",
            detail=f"eta {duration(eta)} · {snapshot.workers} workers · {snapshot.retries} retries "
            f"· {snapshot.quarantined} quarantined",
        )
        self.progress.refresh()

    def note(self, text: str) -> None:
        from rich.markup import escape

        self.console.print(f"[yellow]note:[/] {escape(safe(text))}", highlight=False)

    def close(self) -> None:
        if self.started:
            self.progress.stop()
