"""What the Python functions show: a live bar on a terminal, a line that is updated in a notebook,
plain lines elsewhere. On stderr, and in a notebook among its output.

A display never stops a job: whatever it writes to may have gone.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec

from tokenmill.amounts import counted, show_bytes, show_duration
from tokenmill.api.keywords import in_keywords
from tokenmill.cli import reports, summary
from tokenmill.cli.progress import LiveProgress, PlainProgress, Rates
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.errors import printable, safe
from tokenmill.output.result import Result
from tokenmill.pipeline import DownloadReport
from tokenmill.planning.estimate import Estimate
from tokenmill.planning.make import Proposal

Answer = TypeVar("Answer")
NOTEBOOK_SECONDS = 0.5
BAR_WIDTH = 30


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `prepare` with the same arguments would read, write, need and take."""

    proposal: Proposal
    estimate: Estimate

    @property
    def tokens(self) -> int:
        """Tokens of the output; -1: not known."""
        return self.estimate.tokens

    @property
    def seconds(self) -> float:
        """How long the run takes; -1: not known."""
        return self.estimate.seconds

    @property
    def warnings(self) -> list[str]:
        return [in_keywords(text) for text in self.estimate.warnings]

    def to_dict(self) -> dict[str, Any]:
        """The same facts as `tokenmill plan --json` prints."""
        facts = reports.plan_dict(self.proposal, self.estimate)
        plain: dict[str, Any] = msgspec.to_builtins(facts)
        return plain

    def __str__(self) -> str:
        lines = [
            *summary.plan_lines_before(self.proposal),
            *reports.plan_lines(self.proposal, self.estimate),
        ]
        return in_keywords(click.unstyle("\n".join(lines)))

    def __repr__(self) -> str:
        return f"PlanReport({summary.plan_line(self.proposal).removeprefix('plan: ')})"


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this, and shows what is displayed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def show(lines: Iterable[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream = sys.stdout if in_notebook() else sys.stderr
        if stream is not None:
            print(*lines, sep="\n", file=stream, flush=True)


class NotebookProgress(Observer):
    """One line of a notebook's output, updated twice a second; needs no ipywidgets."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.handle: Any = None
        self.shown = 0.0

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self.shown < NOTEBOOK_SECONDS:
            return
        self.shown = time.monotonic()
        lines = []
        for bar in self.rates.bars(snapshot):
            share = min(1.0, bar.done / bar.total)
            drawn = "█" * round(share * BAR_WIDTH)
            details = " · ".join([bar.speeds, *bar.details])
            lines.append(f"{bar.name} {share:4.0%} |{drawn:{BAR_WIDTH}}| {details}")
        if lines:
            self._display("\n".join(lines))

    def note(self, text: str) -> None:
        show([f"note: {in_keywords(safe(text))}"])

    def __exit__(self, *_: object) -> None:
        if self.handle is not None:
            self._display("")

    def _display(self, text: str) -> None:
        content = {"text/plain": text}
        if self.handle is None:
            from IPython.display import display

            self.handle = display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)


class PlainLines(PlainProgress):
    """Lines for logs; a log that cannot be written any more stops nothing."""

    def update(self, snapshot: Snapshot) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().update(snapshot)

    def note(self, text: str) -> None:
        show([f"note: {in_keywords(safe(text))}"])


class LiveBar(LiveProgress):
    def update(self, snapshot: Snapshot) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().update(snapshot)

    def note(self, text: str) -> None:
        super().note(in_keywords(text))


def chosen_observer() -> Observer:
    if in_notebook():
        return NotebookProgress()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return LiveBar() if terminal else PlainLines()


def shown_run(
    run: Callable[..., Answer],
    *,
    quiet: bool,
    observer: Observer | None,
    on_plan: Callable[[Proposal], None] | None,
) -> Answer:
    """Run a job that takes `observer` and `on_plan`; show its plan and progress."""
    if quiet or observer is not None:
        return run(observer=observer, on_plan=on_plan)

    def show_plan(proposal: Proposal) -> None:
        show(map(in_keywords, summary.plan_lines_before(proposal)))
        if on_plan is not None:
            on_plan(proposal)

    with chosen_observer() as chosen:
        return run(observer=chosen, on_plan=show_plan)


def reworded(result: Result) -> Result:
    """With warnings in terms of keywords."""
    return msgspec.structs.replace(result, warnings=list(map(in_keywords, result.warnings)))


def show_result(result: Result) -> None:
    """The files, counts, warnings, and the lines that load it."""
    told, load, lines = _printed(lambda: summary.echo_summary(result)).partition("\nload it:")
    show([in_keywords(told).rstrip("\n"), *([load.strip() + lines.rstrip()] if load else [])])


def show_converted(result: Result) -> None:
    """After `export` and `adopt`: what is there now."""
    splits = [
        f"  {split.format} {split.name}: {split.documents:,} documents, {split.tokens:,} tokens"
        for split in result.manifest.splits
    ]
    warned = [f"  warning: {printable(text)}" for text in result.warnings]
    show([_printed(lambda: summary.echo_files(result)).rstrip("\n"), *splits, *warned])


def show_download(report: DownloadReport) -> None:
    here = report.files - report.fetched_files
    already = f" ({here} were here already)" if here else ""
    show(
        [
            f"downloaded {counted(report.fetched_files, 'file')}, "
            f"{show_bytes(report.fetched_bytes)}, in "
            f"{show_duration(report.seconds)}{already}: prepare() with the same arguments goes "
            "on, also offline"
        ]
    )


def note_line(text: str) -> None:
    show([f"{text} ..."])


def _printed(print_it: Callable[[], None]) -> str:
    """What the command line prints, as text."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_it()
    return click.unstyle(printed.getvalue())
