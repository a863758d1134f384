"""Input files as the driver of a Ray cluster knows them: by what actors answer.

Requests are sent in batches, some ahead, to actors that have few of them. An actor that is gone
answers nothing: its requests are sent to another one, any number of times.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokenmill.amounts import show_bytes
from tokenmill.engines.ray import requests
from tokenmill.engines.ray.pool import DOWNLOAD_THREADS, ActorPool
from tokenmill.engines.ray.requests import Outcome, Request
from tokenmill.errors import InputError, WorkerError
from tokenmill.inputs.download import Download
from tokenmill.inputs.opening.identify import InputFile
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.planning.make import Proposal
from tokenmill.settings import Reading

Item = TypeVar("Item")
CALLS = 2  # requests that an actor has at a time
IDENTIFY_FILES = 64  # at most in a request: 1 GB of large files is read for their fingerprints
CUT_FILES = 16
COMPARE_FILES = 1000
TICK_SECONDS = 0.2
WAITING_SECONDS = 10.0  # for an actor on a node; then the driver says so


class FileCalls:
    """Requests that are under way, and answers that nobody has taken yet. Any thread may ask and
    take; the main thread sends and receives."""

    def __init__(
        self, pool: ActorPool, note: Callable[[str], None], group: str = "files", most: int = CALLS
    ) -> None:
        """`group`: the threads of an actor that answer; `most`: requests of an actor at a time."""
        self._group, self._most = group, most
        self.pool, self.cluster, self.ray = pool, pool.cluster, pool.cluster.ray
        self._note, self._began, self._waits = note, time.monotonic(), False
        self._numbers = itertools.count()
        self._waiting: deque[tuple[int, bytes]] = deque()  # not sent yet
        self._calls: dict[Any, tuple[int, bytes, Any]] = {}  # with the actor
        self._load: Counter[Any] = Counter()  # calls of each actor
        self._answers: dict[int, list[Outcome]] = {}

    def ask(self, request: Request) -> int:
        """The number of the request: its answer is asked for by it."""
        number = next(self._numbers)
        self._waiting.append((number, requests.encode(request)))
        return number

    def take(self, number: int) -> list[Outcome] | None:
        """An answer, once; None: not yet."""
        return self._answers.pop(number, None)

    def keep_up(self, seconds: float = 0.0) -> None:
        """Send what can be sent, and take what is answered within some time."""
        self.cluster.refuse_headless()
        if self._waiting:
            self._send()
        if not self._calls:
            if seconds:
                time.sleep(seconds)
            return
        calls = list(self._calls)
        done, _ = self.ray.wait(calls, num_returns=1, timeout=seconds)
        if done and len(calls) > 1:  # and all others that have an answer by now
            done, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0)
        for call in done:
            self._answered(call)

    def _send(self) -> None:
        actors = self.pool.at_hand()
        if not actors:
            self._say_waiting()
        for load in range(self._most):
            for handle in actors:
                if self._waiting and self._load[handle] == load:
                    number, content = self._waiting.popleft()
                    call = handle.look.options(concurrency_group=self._group).remote(content)
                    self._calls[call] = number, content, handle
                    self._load[handle] += 1

    def _answered(self, call: Any) -> None:
        number, content, handle = self._calls.pop(call)
        self._load[handle] -= 1
        try:
            self._answers[number] = requests.decode_outcomes(self.ray.get(call))
        except self.ray.exceptions.RayTaskError as error:
            raise WorkerError(
                f"in an actor on {self.pool.host_of(handle)}: {error.cause!r}",
                hint="this is a bug of tokenmill",
            ) from None
        except self.ray.exceptions.RayError:  # the actor is gone, or what it answered
            self.pool.lose(handle)
            self._waiting.appendleft((number, content))

    def _say_waiting(self) -> None:
        if not self._waits and time.monotonic() - self._began > WAITING_SECONDS:
            self._waits = True
            self._note(
                "no node looks at the inputs yet: a worker takes a core and "
                f"{show_bytes(self.cluster.actor_bytes)} of memory of a node; waiting"
            )


class ClusterAccess:
    """Nodes open the input files, and download those that are elsewhere."""

    shared = True

    def __init__(
        self,
        connect: Callable[[], ActorPool],
        check_interrupt: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        """`connect`: to the cluster; called when the first file is to be opened."""
        self._connect, self._check_interrupt, self._note = connect, check_interrupt, note
        self._opened: FileCalls | None = None
        self._downloads: FileCalls | None = None
        self._fetched: dict[int, Outcome] = {}  # sources that were downloaded, by their numbers

    @property
    def calls(self) -> FileCalls:
        if self._opened is None:
            self._opened = FileCalls(self._connect(), self._note)
        return self._opened

    def identify(self, files: Sequence[InputFile]) -> list[Source | InputError]:
        if not files:
            return []
        size = self._batch(len(files), IDENTIFY_FILES)
        found: list[Source | InputError] = []
        for outcome in self._all(requests.Identify(part) for part in _batches(files, size)):
            try:
                found.append(outcome.read(Source))
            except InputError as error:
                found.append(error)
        return found

    def cuts(self, sources: Sequence[Source], reading: Reading, *, few: bool) -> ClusterCuts:
        size = 1 if few else self._batch(len(sources), CUT_FILES)
        return ClusterCuts(self.calls, sources, size, reading, few=few)

    def refuse_changed(self, sources: Sequence[Source]) -> None:
        here = [source for source in sources if source.remote is None]
        size = self._batch(len(here), COMPARE_FILES)
        for outcome in self._all(requests.CompareSources(part) for part in _batches(here, size)):
            outcome.read(type(None))

    def keep_up(self) -> None:
        if self._downloads is not None:
            self._downloads.keep_up()

    def begin_downloads(self) -> None:
        most = DOWNLOAD_THREADS
        self._downloads = FileCalls(self.calls.pool, self._note, "downloads", most)

    def fetch(self, source: Source, flow: Download, folder: Path | None, reading: Reading) -> str:
        """Waits, in the caller's thread. How far a download is, is not known before its end."""
        assert self._downloads is not None
        assert folder is not None
        number = self._downloads.ask(requests.Fetch(source, str(folder), reading))
        while (outcomes := self._downloads.take(number)) is None:
            flow.sleep(TICK_SECONDS)
        path = outcomes[0].read(str)
        self._fetched[source.number] = outcomes[1]
        flow.add(source.size)
        return path

    def at_hand(self, source: Source, path: str, reading: Reading) -> Source:
        return self._fetched[source.number].read(Source)

    def refuse_surely_unmet(self, prepared: Proposal) -> None:
        if prepared.plan.settings.mixture is None:
            return
        found = msgspec.structs.replace(prepared.found, skipped=())
        small = msgspec.structs.replace(prepared, found=found)
        for outcome in self._all([requests.CheckMixture(small)]):
            outcome.read(type(None))

    def _batch(self, count: int, most: int) -> int:
        """So few at a time that every core gets some."""
        return max(1, min(most, count // (4 * max(1, self.calls.cluster.room))))

    def _all(self, asked: Iterable[Request]) -> list[Outcome]:
        """All answers, in the order of the requests; waits for them."""
        calls = self.calls
        numbers = [calls.ask(request) for request in asked]
        outcomes = []
        for number in numbers:
            while (answered := calls.take(number)) is None:
                self._check_interrupt()
                calls.pool.grow()
                calls.keep_up(TICK_SECONDS)
            outcomes += answered
        return outcomes


class ClusterCuts:
    """Cuts sources ahead of what is asked for, and gives them in order."""

    def __init__(
        self, calls: FileCalls, sources: Sequence[Source], size: int, reading: Reading, *, few: bool
    ) -> None:
        """`size`: sources in a request."""
        self._calls, self._reading, self._few = calls, reading, few
        self._batches = _batches(sources, size)
        self._ahead: deque[tuple[int, list[Source]]] = deque()  # requests, and what they are about
        self._left = {source.number for source in sources}  # of these: not answered yet
        self._alone: dict[int, int] = {}  # requests for sources that were downloaded since
        self._cut: dict[int, Outcome] = {}  # by the number of the source

    def of(self, source: Source) -> list[Segment] | None:
        self._ask_ahead()
        planned = source.number in self._left or source.number in self._cut
        if not planned and source.number not in self._alone:
            request = requests.Cut([source], self._reading)
            self._alone[source.number] = self._calls.ask(request)
        self._calls.keep_up()
        self._take(source.number)
        if source.number not in self._cut:
            return None
        return self._cut.pop(source.number).read(list[Segment])

    def _ask_ahead(self) -> None:
        most = 1 if self._few else max(4, CALLS * self._calls.cluster.room)
        while len(self._ahead) < most and (batch := next(self._batches, None)):
            self._ahead.append((self._calls.ask(requests.Cut(batch, self._reading)), batch))

    def _take(self, wanted: int) -> None:
        while self._ahead and wanted not in self._cut:
            number, batch = self._ahead[0]
            outcomes = self._calls.take(number)
            if outcomes is None:
                break
            self._ahead.popleft()
            self._left -= {one.number for one in batch}
            self._cut |= {one.number: cut for one, cut in zip(batch, outcomes, strict=True)}
        for source, number in list(self._alone.items()):
            if outcomes := self._calls.take(number):
                del self._alone[source]
                self._cut[source] = outcomes[0]


def _batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))
