"""Downloads of the inputs, in the order of the plan, while earlier files are encoded.

Several files are downloaded at once. Their starts are staggered, so that files arrive one by one
and not all at the end; then the job ends soon after the last byte. Files that are not kept are
removed when all their units are durable, and only a few are downloaded ahead. On a cluster nodes
download, into a folder that all of them see. How a file is cut is
written down before its first unit, so that a resumed job needs no file whose units are all durable.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tokenmill.engines import events
from tokenmill.engines.observer import EventLog
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.inputs.download import Download, DownloadStop, at_hand_already
from tokenmill.inputs.opening.access import LOCAL, InputAccess
from tokenmill.inputs.remote.hub import quiet_hub
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.output.journal import UnitRecord
from tokenmill.output.workspace import WORK, WorkArea
from tokenmill.planning.needs import Needs, needs_of
from tokenmill.planning.plan import Plan
from tokenmill.settings import DEFAULT_DOWNLOADS
from tokenmill.system.buckets.address import is_bucket
from tokenmill.system.disk import remove_empty_folder, remove_folder

AHEAD = 2  # of files that are not kept: so many more on disk than parallel downloads
STAGGERED_BYTES = 8 << 20  # smaller files are downloaded too fast to stagger anything


class Downloads:
    def __init__(
        self,
        plan: Plan,
        workspace: WorkArea,
        *,
        keep: bool = True,
        downloads: int = DEFAULT_DOWNLOADS,
        only: Iterable[int] | None = None,
        access: InputAccess = LOCAL,
    ) -> None:
        """`only`: the numbers of the sources that are read; None: all. `access`: opens inputs."""
        self.plan, self.workspace, self.access = plan, workspace, access
        self._only = None if only is None else set(only)
        # A cache is one machine's; what several machines read is removed when it is done.
        self.keep, self.downloads = keep and not access.shared, downloads
        self._folders = workspace.downloads
        if access.shared:
            self._folders = Path(workspace.where(f"{WORK}/{workspace.downloads.name}"))
        self.missing: list[Source] = []  # to be downloaded
        self.bytes_total = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()  # sources
        self._threads: list[threading.Thread] = []
        self._quiet = contextlib.ExitStack()
        # Threads download, one syncs and reports durable units, the main one cuts sources. What
        # they share is below, read and changed only while `_change` is held.
        self._change = threading.Condition()
        self._waiting: deque[int] = deque()  # sources in the order of the plan
        self._asked = -1  # the last source that the engine has asked for
        self._flows: dict[int, Download] = {}  # downloads that have begun
        self._paths: dict[int, str] = {}  # and those that have ended
        self._on_disk: set[int] = set()  # begun, and not removed yet
        self._cuts: dict[int, list[Segment]] = {}
        self._done: set[int] = set()  # sources whose units are all durable
        # For the other sources, by segment: its durable units, and all its units (0: not known).
        self._durable: dict[int, dict[int, list[int]]] = {}

    # --- before and after ----------------------------------------------------------------------

    def survey(self, durable: Iterable[UnitRecord] = ()) -> None:
        """Find out which sources are still needed, and which of these must be downloaded."""
        with self._change:
            for record in durable:
                self._count(record)
            needed = [
                source
                for source in self.plan.sources
                if source.remote is not None
                and (self._only is None or source.number in self._only)
                and not self._is_done(source.number)
            ]
            self._waiting.extend(source.number for source in needed)
        if needed and self.access.shared and is_bucket(self.workspace.where()):
            raise UsageError(
                "--engine ray: inputs to download, and no folder that all nodes see: the output "
                "is in a bucket",
                hint="write to a shared folder; or download the inputs to one first, and name the "
                "files there",
            )
        self.missing = [source for source in needed if not self._has(source)]
        self.bytes_total = sum(source.size for source in self.missing)

    def needs(self, written: int = 0) -> Needs | None:
        """The disk space for downloads and tokens; `written`: bytes of tokens already on disk."""
        return needs_of(
            self.plan,
            self.workspace.local,
            self.missing,
            work=None if self.keep else self._folders.parent,
            at_once=self.downloads + AHEAD,
            written=written,
        )

    def start(self) -> None:
        with self._change:
            done = list(self._done)
        for number in done:
            self._remove(number)  # what a crash left of it
        if self._waiting:
            self.access.begin_downloads()
            self._quiet.enter_context(quiet_hub())
        for _ in range(min(self.downloads, len(self._waiting))):
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop downloading. A thread that is downloading ends with its next bytes."""
        self._stop.set()
        with self._change:
            self._change.notify_all()
        for thread in self._threads:
            thread.join(0.2)
        self._quiet.close()

    def _has(self, source: Source) -> bool:
        """Whether it need not be downloaded. Its content is compared when it is used."""
        if source.remote is None:
            return True
        folder, shared = self._folder(source.number), self.access.shared
        return bool(at_hand_already(source.remote, folder, compare=False, shared=shared))

    def _folder(self, number: int) -> Path | None:
        return None if self.keep else self._folders / str(number)

    # --- what the engine asks ------------------------------------------------------------------

    def here(self, source: Source) -> Source | None:
        """The source with its path; None while it is being downloaded."""
        if source.remote is None:
            return source
        with self._change:
            if self._failure is not None:
                raise self._failure
            path = self._paths.get(source.number)
            if source.number > self._asked:
                self._asked = source.number
                self._change.notify_all()
        if path is None:
            return None
        return self.access.at_hand(source, path, self.plan.settings.reading)

    def cut_before(self, source: Source) -> list[Segment] | None:
        """How a source was cut, if all its units are durable; its file is not needed then."""
        with self._change:
            return self._cut(source.number) if source.number in self._done else None

    def note_cut(self, source: Source, segments: list[Segment]) -> list[Segment]:
        """Write it down: this must be durable before any unit of the source is encoded."""
        with self._change:
            if self._cut(source.number) != segments:
                self.workspace.put_cut(source.number, msgspec.json.encode(segments))
            if source.remote is not None:  # nobody asks for those of a file that is here
                self._cuts[source.number] = segments
            empty = not segments and self._is_done(source.number)
        if empty:  # no unit of it will ever be durable
            self._remove(source.number)
        return segments

    def units_durable(self, records: list[UnitRecord]) -> None:
        with self._change:
            for record in records:
                self._count(record)
            touched = {record.unit.source for record in records} & self._durable.keys()
            finished = [number for number in touched if self._is_done(number)]
        for number in finished:
            self._remove(number)

    def report(self, log: EventLog) -> None:
        """Tell the log how far the run and its downloads are."""
        self.access.keep_up()
        while not self._notes.empty():
            log.add(events.DownloadNote(self._notes.get()))
        if self.bytes_total:
            files = self.files_coming
            now = events.Downloading(self.bytes_done, self.bytes_total, files)
            log.progress(now, at_once=files != log.snapshot.fetching)
        while not self._arrived.empty():
            source = self.plan.sources[self._arrived.get()]
            log.add(events.Download(source.name, source.size))
        log.tick()

    @property
    def bytes_done(self) -> int:
        """Downloaded bytes of the files that were missing."""
        with self._change:
            flows = [self._flows.get(source.number) for source in self.missing]
        return sum(flow.received for flow in flows if flow is not None)

    @property
    def files_coming(self) -> int:
        with self._change:
            coming = self._flows.keys() - self._paths.keys()
        return sum(source.number in coming for source in self.missing)

    # --- which units are durable ---------------------------------------------------------------

    def _count(self, record: UnitRecord) -> None:
        unit = record.unit
        if self.plan.sources[unit.source].remote is None:
            return
        counted = self._durable.setdefault(unit.source, {}).setdefault(unit.segment, [0, 0])
        counted[0] += 1
        if record.last:
            counted[1] = unit.part + 1

    def _cut(self, number: int) -> list[Segment] | None:
        if number in self._cuts:
            return self._cuts[number]
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            content = self.workspace.cut(number)
            return None if content is None else msgspec.json.decode(content, type=list[Segment])
        return None

    def _is_done(self, number: int) -> bool:
        cut, counts = self._cut(number), self._durable.get(number, {})
        if cut is None or len(cut) != len(counts):
            return False
        if not all(total and durable == total for durable, total in counts.values()):
            return False
        self._done.add(number)
        self._durable.pop(number, None)
        self._cuts.pop(number, None)  # a job of many files need not remember all
        return True

    def _remove(self, number: int) -> None:
        folder = self._folder(number)
        if folder is not None:
            remove_folder(folder)
        with self._change:
            self._on_disk.discard(number)
            last = not self._on_disk and not self._waiting
            self._change.notify_all()
        if last and self.access.shared:  # nobody makes a folder in it any more
            remove_empty_folder(self._folders)

    # --- the threads that download -------------------------------------------------------------

    def _work(self) -> None:
        while (number := self._next()) is not None:
            source, reading = self.plan.sources[number], self.plan.settings.reading
            try:
                path = self.access.fetch(source, self._flows[number], self._folder(number), reading)
            except DownloadStop:
                return
            except BaseException as error:
                told = error if isinstance(error, TokenmillError) else TokenmillError(repr(error))
                with self._change:
                    self._failure = self._failure or told
                return
            with self._change:
                self._paths[number] = path
                self._change.notify_all()
            self._arrived.put(number)

    def _next(self) -> int | None:
        """The next file to download, once it may begin; None when there is none."""
        with self._change:
            while self._waiting and not self._stop.is_set() and self._failure is None:
                number = self._waiting[0]
                if self._may_begin(number):
                    self._waiting.popleft()
                    remote = self.plan.sources[number].remote
                    assert remote is not None
                    self._flows[number] = Download(remote, self._stop, self._notes.put)
                    self._on_disk.add(number)
                    return number
                self._change.wait(0.1)
        return None

    def _may_begin(self, number: int) -> bool:
        if self.plan.settings.reads_part and number > self._asked:
            return False  # a trial run may end before it
        if not self.keep and len(self._on_disk) >= self.downloads + AHEAD:
            return False
        if not self._flows or self.access.shared:  # each node has a line of its own
            return True
        last, flow = next(reversed(self._flows.items()))
        if last in self._paths or flow.file.size < STAGGERED_BYTES:
            return True
        return flow.received * self.downloads >= flow.file.size
