"""The actors of a cluster: all that live, and those that are free for the next run.

Actors outlive a run, since their start takes seconds. They are started before the plan is made, and
answer for input files (`requests`) from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tokenmill.engines.ray.actor import WorkerHolder
from tokenmill.engines.ray.cluster import RayCluster, versions
from tokenmill.errors import WorkerError

FILE_THREADS = 2  # of an actor, that look at input files
DOWNLOAD_THREADS = 4  # of an actor
GROW_SECONDS = 2.0  # between looks for nodes that were added


class ActorPool:
    def __init__(
        self, cluster: RayCluster, max_actors: int, check_interrupt: Callable[[], None]
    ) -> None:
        """`max_actors`: 0 for one on every core of the cluster."""
        self.cluster, self.ray = cluster, cluster.ray
        self._max_actors, self._check_interrupt = max_actors, check_interrupt
        self._free: list[Any] = []
        self._greetings: dict[Any, Any] = {}  # actors that have not said where they are
        self._places: dict[Any, dict[str, Any]] = {}  # those that have
        self._looked = float("-inf")

    @property
    def wanted(self) -> int:
        """As many as there is room for; one that waits for room shows a cluster that it is to
        grow."""
        return self._max_actors or max(1, self.cluster.room)

    def take(self) -> Any:
        """An actor for a run: a free one, or a new one."""
        return self._free.pop() if self._free else self._start()

    def give_back(self, handles: list[Any]) -> None:
        """The last one is taken first."""
        self._free += [handle for handle in handles if self._lives(handle)]

    def lose(self, handle: Any) -> None:
        """It is gone. Its node may be, too."""
        self._places.pop(handle, None)
        self._greetings.pop(handle, None)
        if handle in self._free:
            self._free.remove(handle)

    def end(self, handle: Any) -> None:
        self.lose(handle)
        self.ray.kill(handle, no_restart=True)

    def close(self) -> None:
        """They hold cores of the cluster, which outlives this command."""
        for handle in [*self._places, *self._greetings]:
            if not self.cluster.headless:
                self.end(handle)

    def grow(self) -> None:
        """Without a run that takes actors: as many free ones as are wanted."""
        if time.monotonic() - self._looked < GROW_SECONDS:
            return
        self._looked = time.monotonic()
        while len(self._greetings) + len(self._places) < self.wanted:
            self._free.append(self._start())

    def at_hand(self) -> list[Any]:
        """The actors that run on a node by now, with the driver's versions."""
        if self._greetings:
            calls = {call: handle for handle, call in self._greetings.items()}
            done, _ = self.ray.wait(list(calls), num_returns=len(calls), timeout=0)
            for call in done:
                handle = calls[call]
                del self._greetings[handle]
                place = self._greeting(call)
                if place is None:
                    self.lose(handle)
                    continue
                refuse_other_versions(place)
                self._places[handle] = place
        return list(self._places)

    def _greeting(self, call: Any) -> dict[str, Any] | None:
        """Where an actor is; None: it is gone, or its node."""
        try:
            place: dict[str, Any] = self.ray.get(call)
        except self.ray.exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):  # it would fail there again
                raise WorkerError(
                    f"a worker cannot start on the cluster: {str(error).strip().splitlines()[-1]}",
                    hint="install the same versions of tokenmill and Ray on all nodes",
                ) from None
            return None
        return place

    def host_of(self, handle: Any) -> str:
        return str(self._places.get(handle, {}).get("host", "the cluster"))

    def _lives(self, handle: Any) -> bool:
        return handle in self._places or handle in self._greetings

    def _start(self) -> Any:
        threads = {"files": FILE_THREADS, "downloads": DOWNLOAD_THREADS}
        remote = self.ray.remote(concurrency_groups=threads)(WorkerHolder)
        chosen = remote.options(
            num_cpus=1,
            memory=self.cluster.actor_bytes,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        handle = self.cluster.ask(chosen.remote, self._check_interrupt)
        self._greetings[handle] = handle.greet.options(concurrency_group="files").remote()
        return handle


def refuse_other_versions(place: dict[str, Any]) -> None:
    """They decide what an input holds, and which tokens a text becomes."""
    there = place["versions"]
    other = [
        f"{name} {there.get(name)} instead of {version}"
        for name, version in versions().items()
        if there.get(name) != version
    ]
    if other:
        raise WorkerError(
            f"a worker on {place['host']} has other versions: {', '.join(other)}",
            hint="install the same versions on all nodes: they decide which tokens a text becomes",
        )
