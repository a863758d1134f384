"""What a person sees while a job runs: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from tokenmill.amounts import counted, show_bytes, show_count, show_duration, show_speed
from tokenmill.engines.events import Event
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.errors import safe

PLAIN_SECONDS = 10.0
WIDE_COLUMNS = 110  # on a narrower terminal, a bar and the time left


class Bar(NamedTuple):
    """How far one kind of work is."""

    name: str
    done: int
    total: int
    speeds: str
    details: list[str]


class Rates:
    """Speeds of this run alone: what an earlier run did is not counted."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.making = 0.0  # when the first file was begun
        self.waited: float | None = None  # seconds until a downloaded file could be encoded

    def _elapsed(self) -> float:
        return max(1e-3, time.monotonic() - self.began)

    def bars(self, s: Snapshot) -> Iterator[Bar]:
        """Downloads, if there are any; then encoding, and then the files made of its tokens."""
        elapsed = self._elapsed()
        if s.fetch_total:
            left = _eta(self._download_eta(s))
            speed = show_speed(s.fetched_bytes / elapsed)
            details = [left, f"{s.fetching} files at a time"]
            yield Bar("downloading", s.fetched_bytes, s.fetch_total, speed, details)
        if s.bytes_total and not s.files_total:
            speeds = f"{show_speed(s.text_bytes / elapsed)} {show_count(s.tokens / elapsed)} tok/s"
            details = [
                _eta(self.eta(s)),
                f"{show_count(s.tokens)} tokens",
                _workers(s),
                *([f"{s.retries} retries"] if s.retries else []),
                *([f"{s.preemptions} preempted"] if s.preemptions else []),
                *([f"{s.quarantined} quarantined"] if s.quarantined else []),
            ]
            yield Bar("encoding", s.bytes_done, s.bytes_total, speeds, details)

        if s.files_total:
            self.making = self.making or time.monotonic()
            seconds = max(1e-3, time.monotonic() - self.making)
            done = min(s.made_bytes, s.make_total)
            eta = (s.make_total - done) * seconds / done if done else None
            files = f"{s.files_made} of {s.files_total} files or parts"
            details = [_eta(eta), files, _workers(s)]
            yield Bar("writing", done, s.make_total, show_speed(done / seconds), details)

    def eta(self, s: Snapshot) -> float | None:
        """The slower of download and encoding decides how long the rest takes. None: nothing is
        done yet that would tell."""
        elapsed = self._elapsed()
        done, left = s.bytes_done - s.resumed_bytes, max(0, s.bytes_total - s.bytes_done)
        if not done:
            return self._download_eta(s) if s.fetch_total else None
        if self.waited is None:
            self.waited = elapsed if s.fetch_total else 0.0
        return max(left * (elapsed - self.waited) / done, self._download_eta(s) or 0.0)

    def _download_eta(self, s: Snapshot) -> float | None:
        left = max(0, s.fetch_total - s.fetched_bytes)
        if left and not s.fetched_bytes:
            return None
        return left * self._elapsed() / s.fetched_bytes if left else 0.0


def _workers(s: Snapshot) -> str:
    on = f" on {counted(s.nodes, 'node')}" if s.nodes else ""
    return f"{counted(s.workers, 'worker')}{on}"


def _eta(seconds: float | None) -> str:
    return "eta ?" if seconds is None else f"eta {show_duration(seconds)}"


class PlainProgress(Observer):
    """A line now and then, for logs and pipes."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.printed = time.monotonic()

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self.printed < PLAIN_SECONDS:
            return
        self.printed = time.monotonic()
        for bar in self.rates.bars(snapshot):
            if bar.name != "downloading" or bar.done < bar.total:
                line = [f"{bar.name} {100 * bar.done / bar.total:.1f}%", bar.speeds, *bar.details]
                print("  ".join(line), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(f"note: {safe(text)}", file=sys.stderr, flush=True)


class JsonProgress(Observer):
    """A line of JSON for every event, for programs."""

    def note(self, text: str) -> None:
        self._print({"event": "note", "text": safe(text)})

    def event(self, seconds: float, event: Event) -> None:
        self._print({"seconds": seconds, **msgspec.to_builtins(event)})

    def _print(self, line: dict[str, Any]) -> None:
        print(msgspec.json.encode(line).decode(), file=sys.stderr, flush=True)


class LiveProgress(Observer):
    """A bar for encoding, and one above it for downloads."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.console = Console(stderr=True)
        self.rates = Rates()
        self.progress: Any = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[speeds]}"),
            TextColumn("{task.fields[details]}"),
            console=self.console,
            transient=True,
            auto_refresh=False,
        )
        self.tasks: dict[str, Any] = {}

    def update(self, snapshot: Snapshot) -> None:
        self.progress.start()
        wide = self.console.width >= WIDE_COLUMNS
        for bar in self.rates.bars(snapshot):
            if bar.name not in self.tasks:
                self.tasks[bar.name] = self.progress.add_task(bar.name, speeds="", details="")
            self.progress.update(
                self.tasks[bar.name],
                completed=bar.done,
                total=bar.total,
                speeds=bar.speeds if wide else "",
                details=" · ".join(bar.details if wide else bar.details[:1]),
            )
        self.progress.refresh()

    def note(self, text: str) -> None:
        from rich.markup import escape

        self.console.print(f"[yellow]note:[/] {escape(safe(text))}", highlight=False)

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def shown_progress(quiet: bool, progress: str) -> Observer:
    """As `--quiet` and `--progress` say."""
    if quiet:
        return Observer()
    if progress == "json":
        return JsonProgress()
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()


def deep_progress() -> Callable[[int, int], None]:
    """A line on stderr every few seconds."""
    began = printed = time.monotonic()
    before = 0

    def show(done: int, total: int) -> None:
        nonlocal printed, before
        now = time.monotonic()
        if now - printed >= PLAIN_SECONDS:
            printed = now
            how = show_speed(done / (now - began))
            if done == before:  # documents are compared whole
                how = f"a large document is under way ({show_duration(now - began)} so far)"
            before = done
            print(
                f"compared {show_bytes(done)} of {show_bytes(total)} of text, {how}",
                file=sys.stderr,
                flush=True,
            )

    return show
