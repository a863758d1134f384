"""In which order and how far ahead files are fetched, and what is left of it; no network."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.inputs import write_jsonl

from tokenmill.engines import events
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.supply import Downloads
from tokenmill.errors import SourceError
from tokenmill.inputs import download as fetching_one
from tokenmill.inputs.download import Download, DownloadStop
from tokenmill.inputs.remote.address import RemoteFile
from tokenmill.inputs.segments import Segment, UnitId
from tokenmill.inputs.source import Source
from tokenmill.output.journal import UnitRecord
from tokenmill.output.workspace import Workspace
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.planning.plan import Plan
from tokenmill.system import disk as steps
from tokenmill.system.cache import GrowingFile
from tokenmill.tokens.counts import Counts, State


class Fetching:
    """In place of `fetch`: each file waits until the test lets it come, so far or whole."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.begun: dict[str, Download] = {}
        self.done: dict[str, threading.Event] = {}
        self.failing: set[str] = set()

    def __call__(self, flow: Download, folder: Path | None) -> str:
        self.begun[flow.file.name] = flow
        event = self.done.setdefault(flow.file.name, threading.Event())
        assert event.wait(30)
        if flow.file.name in self.failing:
            raise SourceError(f"{flow.file.name}: gone")
        flow.received = flow.file.size
        return str(self.file)

    def finish(self, *names: str) -> None:
        for name in names:
            self.done.setdefault(name, threading.Event()).set()


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


Make = Callable[..., tuple[Downloads, Fetching]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[tuple[Downloads, Fetching]] = []

    def maker(files: int, size: int = 100 << 20, limited: bool = False, **kw: Any) -> Any:
        file = write_jsonl(tmp_path / "a.jsonl", ["text"])
        fetching = Fetching(file)
        monkeypatch.setattr("tokenmill.inputs.opening.access.fetch", fetching)
        sources = tuple(
            Source(
                number=i, name=f"f{i}", path="", kind="jsonl", size=size, fingerprint="etag:x",
                mtime_ns=0,
                remote=RemoteFile(name=f"f{i}", size=size, fingerprint="etag:x", url=f"x://{i}"),
            )
            for i in range(files)
        )  # fmt: skip
        settings = plan_settings(make_options({}), tmp_path / "out")
        settings = msgspec.structs.replace(settings, limit_docs=5 if limited else 0)
        supply = Downloads(
            Plan(settings=settings, sources=sources), Workspace(tmp_path / "out"), **kw
        )
        supply.survey()
        supply.start()
        made.append((supply, fetching))
        return supply, fetching

    yield maker
    for supply, fetching in made:
        fetching.finish(*(source.name for source in supply.plan.sources))
        supply.close()


def test_a_large_file_begins_when_the_one_before_has_come_a_part_of_its_way(make: Make) -> None:
    _, fetching = make(6, downloads=4)
    assert until(lambda: "f0" in fetching.begun)
    time.sleep(0.4)
    assert list(fetching.begun) == ["f0"]
    fetching.begun["f0"].received = 26 << 20
    assert until(lambda: "f1" in fetching.begun)
    time.sleep(0.4)
    assert list(fetching.begun) == ["f0", "f1"]


def test_comparing_a_file_that_is_here_counts_as_its_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that large files in the cache are compared at the same time, too, the first one first."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1000)
    sha256 = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    file = RemoteFile(name="a", size=1000, fingerprint=sha256, url="x://a")
    flow = Download(file, threading.Event(), lambda note: None)
    monkeypatch.setattr(fetching_one, "READ_BYTES", 300)
    seen = []
    compared = flow.compared
    monkeypatch.setattr(flow, "compared", lambda n: (compared(n), seen.append(flow.received)))
    assert fetching_one.copy_fault(str(path), file, flow) == ""
    assert seen == [300, 600, 900, 1000]
    flow.stop.set()
    with pytest.raises(DownloadStop):
        fetching_one.copy_fault(str(path), file, flow)


def test_small_files_begin_at_once_as_many_as_allowed(make: Make) -> None:
    _, fetching = make(6, size=1 << 20, downloads=3)
    assert until(lambda: len(fetching.begun) == 3)
    time.sleep(0.3)
    assert sorted(fetching.begun) == ["f0", "f1", "f2"]
    fetching.finish("f1")
    assert until(lambda: "f3" in fetching.begun)


def test_of_files_that_are_not_kept_only_a_few_lie_ahead(make: Make) -> None:
    supply, fetching = make(9, size=1 << 20, downloads=2, keep=False)
    fetching.finish(*(f"f{i}" for i in range(9)))
    assert until(lambda: len(fetching.begun) == 4)
    time.sleep(0.4)
    assert len(fetching.begun) == 4
    supply._remove(0)
    assert until(lambda: len(fetching.begun) == 5)


def test_under_a_limit_a_file_is_fetched_when_it_is_asked_for(make: Make) -> None:
    supply, fetching = make(3, size=1 << 20, limited=True)
    time.sleep(0.4)
    assert not fetching.begun
    assert supply.here(supply.plan.sources[0]) is None
    assert until(lambda: "f0" in fetching.begun)
    fetching.finish("f0")
    time.sleep(0.4)
    assert list(fetching.begun) == ["f0"]


def test_a_file_that_cannot_be_fetched_ends_the_wait_for_any(make: Make) -> None:
    supply, fetching = make(3, size=1 << 20)
    fetching.failing.add("f2")
    fetching.finish("f2")

    def failed() -> bool:
        try:
            return supply.here(supply.plan.sources[0]) is not None
        except SourceError as error:
            return "f2: gone" in error.message

    assert until(failed)


def test_what_has_come_is_counted_against_what_is_to_come(make: Make) -> None:
    supply, fetching = make(2, size=100)
    assert until(lambda: len(fetching.begun) == 2)
    fetching.begun["f1"].received = 40
    assert (supply.bytes_done, supply.bytes_total, supply.files_coming) == (40, 200, 2)
    fetching.finish("f0", "f1")
    assert until(lambda: supply.files_coming == 0)
    assert supply.bytes_done == 200


def test_all_that_is_told_of_downloads_is_told_by_events(make: Make) -> None:
    supply, fetching = make(2, size=100)
    assert until(lambda: len(fetching.begun) == 2)
    told: list[events.Event] = []
    observer = Observer()
    observer.event = lambda seconds, event: told.append(event)  # type: ignore[method-assign]
    log = EventLog(observer)
    supply.report(log)
    supply.report(log)  # nothing new
    assert told == [events.Downloading(0, 200, 2)]
    fetching.begun["f1"].note("again")
    fetching.finish("f0", "f1")
    assert until(lambda: supply.files_coming == 0 and supply._arrived.qsize() == 2)
    supply.report(log)
    assert told[1:3] == [events.DownloadNote("again"), events.Downloading(200, 200, 0)]
    assert {event.source for event in told[3:] if isinstance(event, events.Download)} == {
        "f0",
        "f1",
    }
    assert (log.snapshot.fetched_bytes, log.snapshot.fetch_total) == (200, 200)


def test_a_file_swept_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = steps.disk.open, []

    def open_and_sweep(path: Path, *rest: Any, **more: Any) -> int:
        fd: int = real(path, *rest, **more)
        if not swept:
            swept.append(path)
            path.unlink()
        return fd

    monkeypatch.setattr(steps.disk, "open", open_and_sweep)
    with GrowingFile(tmp_path) as growing:
        growing.write(b"whole")
        assert growing.finish("name", 0).read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
    assert len(swept) == 1


def test_units_become_durable_while_the_main_thread_asks_how_a_source_was_cut(make: Make) -> None:
    """The thread that syncs and the main thread share this: each sees it whole."""
    supply, _ = make(1, keep=False)
    (source,) = supply.plan.sources
    segments = [Segment(0, 0, 0, 1, 1)]
    supply.note_cut(source, segments)
    supply._done.add(0)  # as the thread that syncs does just before it forgets the cut
    asked, forgotten = threading.Event(), threading.Event()

    class Slow(dict[int, list[Segment]]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            if threading.current_thread() is threading.main_thread():
                asked.set()
                forgotten.wait(1)  # the other thread has all the time it could want
            return found

    supply._cuts = Slow(supply._cuts)
    record = UnitRecord(
        unit=UnitId(0, 0, 0), last=True, lines=0, counts=Counts(),
        before=State(streams=()), after=State(streams=()), pieces=(),
    )  # fmt: skip

    def sync() -> None:
        assert asked.wait(10)
        supply.units_durable([record])
        forgotten.set()

    thread = threading.Thread(target=sync)
    thread.start()
    assert supply.cut_before(source) == segments
    thread.join()
    assert supply._cuts == {}
