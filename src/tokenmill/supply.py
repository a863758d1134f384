"""Files from elsewhere, in the order they are needed: several on the way, encoded as they come.

While one file is encoded the next ones come in. Their beginnings are staggered, so that files
arrive one by one and not all at the end; then the job ends soon after the last byte has come.
Files that are not kept are removed when all their units are durable, and only a few lie ahead.
How a file is cut is written down before its first unit, so that a resumed job needs no file whose
units are all durable.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tokenmill.config import DEFAULT_DOWNLOADS
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.errors import TokenmillError
from tokenmill.fetch import Flow, Stopped, at_hand_already, fetch
from tokenmill.manifest import UnitRecord
from tokenmill.plan import Plan, Segment
from tokenmill.remote.hub import quiet_hub
from tokenmill.sources import Source, at_hand
from tokenmill.steps import remove_folder
from tokenmill.storage import Workspace

AHEAD = 2  # beyond those on the way, of files that are not kept
# Below this a file is on its way for too short a time to stagger anything.
STAGGERED_BYTES = 8 << 20


class Supply:
    def __init__(
        self,
        plan: Plan,
        workspace: Workspace,
        *,
        keep: bool = True,
        downloads: int = DEFAULT_DOWNLOADS,
    ) -> None:
        self.plan, self.workspace = plan, workspace
        self.keep, self.downloads = keep, downloads
        self.bytes_total = 0
        self._at_hand: dict[int, Source] = {}
        self._cuts: dict[int, list[Segment]] = {}
        self._waiting: deque[int] = deque()
        self._asked = -1
        self._flows: dict[int, Flow] = {}
        self._to_fetch: set[int] = set()
        self._lying: set[int] = set()  # begun, and not removed yet
        self._paths: dict[int, str] = {}
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._change = threading.Condition()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._quiet = contextlib.ExitStack()
        self.surveyed = False
        self._done: set[int] = set()  # sources whose units are all durable
        # Of the others by segment: how many of its units are, of how many (0: not known).
        self._durable: dict[int, dict[int, list[int]]] = {}

    # --- before and after ----------------------------------------------------------------------

    def survey(self, durable: Iterable[UnitRecord] = ()) -> None:
        """What is still needed, and what of it is not here."""
        self.surveyed = True
        for record in durable:
            self._count(record)
        for source in self.plan.sources:
            if source.remote is not None and not self._is_done(source.number):
                self._waiting.append(source.number)
        missing = [s for s in map(self.plan.sources.__getitem__, self._waiting) if not self._has(s)]
        self._to_fetch = {source.number for source in missing}
        self.bytes_total = sum(source.size for source in missing)

    @property
    def missing(self) -> list[Source]:
        return [self.plan.sources[number] for number in sorted(self._to_fetch)]

    def start(self) -> None:
        """Begin to fetch."""
        for number in list(self._done):
            self._remove(number)  # what a crash left of it
        if self._waiting:
            self._quiet.enter_context(quiet_hub())
        for _ in range(min(self.downloads, len(self._waiting))):
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Nothing more is fetched. Threads in the midst of it end with their next bytes."""
        self._stop.set()
        with self._change:
            self._change.notify_all()
        for thread in self._threads:
            thread.join(0.2)
        self._quiet.close()

    def _has(self, source: Source) -> bool:
        """Whether it need not be fetched. Its content is compared when it is used."""
        folder = self._folder(source.number)
        return source.remote is None or bool(at_hand_already(source.remote, folder, compare=False))

    def _folder(self, number: int) -> Path | None:
        return None if self.keep else self.workspace.downloads / str(number)

    # --- what the engine asks ------------------------------------------------------------------

    def here(self, source: Source) -> Source | None:
        """The source with its path; None while it is on its way."""
        if source.remote is None:
            return source
        if source.number not in self._at_hand:
            with self._change:
                if self._failure is not None:
                    raise self._failure
                path = self._paths.get(source.number)
                if source.number > self._asked:
                    self._asked = source.number
                    self._change.notify_all()
            if path is None:
                return None
            self._at_hand[source.number] = at_hand(source, path, self.plan.settings.text_column)
        return self._at_hand[source.number]

    def cut_before(self, source: Source) -> list[Segment] | None:
        """How a source was cut, if all its units are durable; its file is not needed then."""
        return self._cut(source.number) if source.number in self._done else None

    def note_cut(self, source: Source, segments: list[Segment]) -> list[Segment]:
        """Write it down: to be durable before any unit of it is encoded."""
        if self._cut(source.number) != segments:
            self.workspace.put_cut(source.number, msgspec.json.encode(segments))
        self._cuts[source.number] = segments
        if not segments and self._is_done(source.number):  # no unit of it will ever be durable
            self._remove(source.number)
        return segments

    def units_durable(self, records: list[UnitRecord]) -> None:
        for record in records:
            self._count(record)
        for number in {record.unit.source for record in records} & self._durable.keys():
            if self._is_done(number):
                self._remove(number)

    def told(self) -> Iterable[str]:
        """What there is to say since the last call."""
        while not self._notes.empty():
            yield self._notes.get()

    @property
    def bytes_done(self) -> int:
        """Of those to fetch. The rest was here before."""
        flows = list(self._flows.items())
        return sum(flow.received for number, flow in flows if number in self._to_fetch)

    @property
    def files_coming(self) -> int:
        return len(self._to_fetch & set(self._flows) - set(self._paths))

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
        content = self.workspace.get_cut(number)
        try:
            return msgspec.json.decode(content, type=list[Segment]) if content else None
        except (msgspec.DecodeError, UnicodeDecodeError):
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
            self._lying.discard(number)
            self._change.notify_all()

    # --- the threads that fetch ----------------------------------------------------------------

    def _work(self) -> None:
        while (number := self._next()) is not None:
            try:
                path = fetch(self._flows[number], self._folder(number))
            except Stopped:
                return
            except BaseException as error:
                told = error if isinstance(error, TokenmillError) else TokenmillError(repr(error))
                with self._change:
                    self._failure = self._failure or told
                return
            with self._change:
                self._paths[number] = path
                self._change.notify_all()

    def _next(self) -> int | None:
        """The next file to begin with, once it may be begun; None when there is none."""
        with self._change:
            while self._waiting and not self._stop.is_set() and self._failure is None:
                number = self._waiting[0]
                if self._may_begin(number):
                    self._waiting.popleft()
                    remote = self.plan.sources[number].remote
                    assert remote is not None
                    self._flows[number] = Flow(remote, self._stop, self._notes.put)
                    self._lying.add(number)
                    return number
                self._change.wait(0.1)
        return None

    def _may_begin(self, number: int) -> bool:
        if self.plan.settings.limited and number > self._asked:
            return False  # a trial run may end before it
        if not self.keep and len(self._lying) >= self.downloads + AHEAD:
            return False
        if not self._flows:
            return True
        last, flow = next(reversed(self._flows.items()))
        if last in self._paths or flow.file.size < STAGGERED_BYTES:
            return True
        return flow.received * self.downloads >= flow.file.size


class Watched(Observer):
    """Whoever watches the run is told how the supply goes, too."""

    def __init__(self, observer: Observer, supply: Supply) -> None:
        self.observer, self.supply = observer, supply

    def update(self, snapshot: Snapshot) -> None:
        snapshot.fetch_total = self.supply.bytes_total
        snapshot.fetched_bytes = self.supply.bytes_done
        snapshot.fetching = self.supply.files_coming
        for note in self.supply.told():
            self.note(note)
        self.observer.update(snapshot)

    def note(self, text: str) -> None:
        self.observer.note(text)
