"""One command's use of a Ray cluster: its connection, its actors, and its access to the inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tokenmill.engines.ray.access import ClusterAccess
from tokenmill.engines.ray.cluster import Connection
from tokenmill.engines.ray.pool import ActorPool
from tokenmill.errors import TokenmillError
from tokenmill.settings import RunSettings
from tokenmill.system.memory import worker_share


class RaySession:
    def __init__(
        self, run: RunSettings, check_interrupt: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        self._run, self._check_interrupt = run, check_interrupt
        share = worker_share(run.memory, run.workers)
        self._connection = Connection(run.ray_address, share)
        self._pool: ActorPool | None = None
        self.access = ClusterAccess(lambda: self.pool, check_interrupt, note)

    @property
    def pool(self) -> ActorPool:
        """Connects to the cluster when it is first asked for."""
        if self._pool is None:
            cluster = self._connection.cluster
            self._pool = ActorPool(cluster, self._run.max_actors, self._check_interrupt)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._connection.close()


_current: RaySession | None = None


def current() -> RaySession:
    if _current is None:
        raise TokenmillError("no Ray cluster is connected", hint="this is a bug of tokenmill")
    return _current


@contextlib.contextmanager
def ray_session(
    run: RunSettings, check_interrupt: Callable[[], None], note: Callable[[str], None]
) -> Iterator[RaySession]:
    global _current
    _current = session = RaySession(run, check_interrupt, note)
    try:
        yield session
    finally:
        _current = None
        session.close()
