"""The connection to a Ray cluster: a running one, or one of our own on this machine."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from tokenmill.errors import RefusedError, TokenmillError, UsageError

PORT_SECONDS = 5.0  # until a port must answer
INIT_SECONDS = 18.0  # until Ray must; a dead address is told within 20 s
PACKAGES = ("tokenmill", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "pyarrow")


def versions() -> dict[str, str]:
    """Of what decides which tokens a text becomes."""
    return {name: metadata.version(name) for name in PACKAGES}


class RayCluster:
    """A cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.actors: list[Any] = []  # that an earlier run has started, and that are free

    @property
    def cores(self) -> int:
        """Of all nodes that are alive now."""
        return int(self.ray.cluster_resources().get("CPU", 0))


_connected: RayCluster | None = None


def connected() -> RayCluster:
    if _connected is None:
        raise TokenmillError("no Ray cluster is connected", hint="this is a bug of tokenmill")
    return _connected


@contextlib.contextmanager
def connection(address: str) -> Iterator[RayCluster]:
    """A cluster by its address; without one, that of this process, or a new one on this machine,
    which ends with this."""
    global _connected
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--engine ray: Ray is not installed", hint="pip install 'tokenmill[ray]'"
        ) from None
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    _connected = RayCluster(ray)
    try:
        yield _connected
    finally:
        _connected = None
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    _refuse_silent_port(address)
    # A record of a cluster that has ended makes ray.init wait for minutes: not this thread.
    failure: list[BaseException] = []
    done = threading.Event()

    def connect() -> None:
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else {"include_dashboard": False}),
            )
        except BaseException as error:
            failure.append(error)
        done.set()

    threading.Thread(target=connect, daemon=True).start()
    seconds = INIT_SECONDS - PORT_SECONDS if address else 120.0
    if not done.wait(seconds):
        raise RefusedError(
            f"--ray-address {address or 'local'}: no cluster answers",
            hint="see that it runs (`ray status`), or leave --ray-address out",
        )
    if failure:
        raise RefusedError(
            f"--ray-address {address or 'local'}: {_first_line(failure[0])}",
            hint="see that it runs (`ray status`), or leave --ray-address out",
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _refuse_silent_port(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), PORT_SECONDS).close()
    except OSError as error:
        raise RefusedError(
            f"--ray-address {address}: no cluster answers: {error.strerror or error}",
            hint="see that it runs (`ray status`), or leave --ray-address out",
        ) from None
