"""The connection to a Ray cluster: a running one, or one of our own on this machine."""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any, TypeVar

import msgspec

from tokenmill.errors import RefusedError, UsageError, WorkerError
from tokenmill.tokens.counts import Counts

PORT_SECONDS = 5.0  # until a port must answer
INIT_SECONDS = 18.0  # until Ray must; a dead address is told within 20 s
LOOK_SECONDS = 1.0  # between looks at the nodes
ASK_SECONDS = 0.2  # between looks at signals while the head is asked
# Without a head, Ray ends the process by itself after 60 s, with a stack trace.
SILENT_SECONDS = 20.0
SHUTDOWN_SECONDS = 5.0
ACTOR_BYTES = 150_000_000  # of the actor's own process, beside its worker
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PACKAGES = ("tokenmill", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "pyarrow")


def versions() -> dict[str, str]:
    """Of what decides which tokens a text becomes."""
    return {name: metadata.version(name) for name in PACKAGES}


Answer = TypeVar("Answer")


class Node(msgspec.Struct, frozen=True):
    """A node that is alive: what it can hold."""

    name: str
    cores: int
    memory: int

    def room(self, memory: int) -> int:
        """How many actors of so much memory it can hold."""
        return min(self.cores, self.memory // memory)


class NodeFigures(msgspec.Struct):
    """What was done on a node, for run.json."""

    node: str
    host: str
    workers: int = 0  # at a time
    units: int = 0
    tokens: int = 0
    text_bytes: int = 0
    files: int = 0  # made of units, or ranges of files
    file_bytes: int = 0
    died: int = 0  # worker processes
    lost: int = 0  # actors: preempted, or gone with the node

    def note_unit(self, counts: Counts) -> None:
        self.units += 1
        self.tokens += counts.tokens
        self.text_bytes += counts.text_bytes

    def note_file(self, pieces: Iterable[int]) -> None:
        self.files += 1
        self.file_bytes += sum(pieces)


class RayCluster:
    """A cluster that this process is connected to.

    A call to a head that is gone does not come back for a minute, so a thread of its own asks for
    the nodes. The driver reads what that thread has found last.
    """

    def __init__(self, ray: Any, worker_bytes: int) -> None:
        """`worker_bytes`: a worker's share of the memory."""
        self.ray, self.actor_bytes = ray, worker_bytes + ACTOR_BYTES
        self.nodes: list[Node] = []
        self.figures: dict[str, NodeFigures] = {}
        self._heard, self._known = time.monotonic(), threading.Event()
        self._stop = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()
        self._known.wait(SILENT_SECONDS)

    @property
    def room(self) -> int:
        """How many actors all nodes can hold that are alive now."""
        return sum(node.room(self.actor_bytes) for node in self.nodes)

    def figures_of(self, node: str, host: str = "") -> NodeFigures:
        return self.figures.setdefault(node, NodeFigures(node, host))

    @property
    def headless(self) -> bool:
        """The head has not answered for a while."""
        return time.monotonic() - self._heard > SILENT_SECONDS

    def refuse_headless(self) -> None:
        if self.headless:
            raise WorkerError(
                f"the head of the Ray cluster has not answered for {SILENT_SECONDS:.0f} s",
                hint="finished work is kept: start the cluster again and run the same command",
            )

    def ask(self, call: Callable[[], Answer], check_interrupt: Callable[[], None]) -> Answer:
        """A call that waits for the head, in a thread that may be left behind."""
        answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()

        def carry_out() -> None:
            try:
                answers.put(call())
            except BaseException as error:
                answers.put(error)

        threading.Thread(target=carry_out, daemon=True).start()
        while True:
            try:
                answer = answers.get(timeout=ASK_SECONDS)
            except queue.Empty:
                check_interrupt()
                self.refuse_headless()
                continue
            if isinstance(answer, BaseException):
                raise answer
            return answer

    def close(self) -> None:
        self._stop.set()

    def _look(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Exception):  # Ray has many; the next look may succeed
                self.nodes = [_node(one) for one in self.ray.nodes() if one["Alive"]]
                self._heard = time.monotonic()
                self._known.set()
            self._stop.wait(LOOK_SECONDS)


def _node(seen: dict[str, Any]) -> Node:
    has = seen["Resources"]
    return Node(seen["NodeID"], int(has.get("CPU", 0)), int(has.get("memory", 0)))


class Connection:
    """A cluster by its address; without one, that of this process, or a new one on this machine,
    which ends with this. Nothing is connected before it is needed."""

    def __init__(self, address: str, worker_bytes: int) -> None:
        """`worker_bytes`: a worker's share of the memory."""
        self._address, self._worker_bytes = address, worker_bytes
        self._opened: RayCluster | None = None
        self._ours = False

    @property
    def cluster(self) -> RayCluster:
        if self._opened is None:
            ray = _installed()
            self._ours = not ray.is_initialized()
            if self._ours:
                _connect(ray, self._address)
                _restore_handlers()
            self._opened = RayCluster(ray, self._worker_bytes)
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            if self._ours:
                _disconnect(self._opened.ray)


def _installed() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError(
            "--engine ray: Ray is not installed", hint="pip install 'tokenmill[ray]'"
        ) from None
    return ray


def _restore_handlers() -> None:
    """Ray replaces the handler of SIGTERM by one in C++, which ends the process at once. Python
    does not know, and still has ours."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)


def _disconnect(ray: Any) -> None:
    """With a head that is gone this does not come back, neither now nor at the end of Python."""
    thread = threading.Thread(target=ray.shutdown, daemon=True)
    thread.start()
    thread.join(SHUTDOWN_SECONDS)
    if thread.is_alive():
        atexit.unregister(ray.shutdown)


def _connect(ray: Any, address: str) -> None:
    if not address:
        # In this thread: Linux ends the processes of a new cluster with the thread that began them.
        _init(ray, "local", include_dashboard=False)
        return
    _refuse_silent_port(address)
    # A record of a cluster that has ended makes ray.init wait for minutes: not this thread.
    failure: list[RefusedError] = []
    done = threading.Event()

    def connect() -> None:
        try:
            _init(ray, address)
        except RefusedError as error:
            failure.append(error)
        done.set()

    threading.Thread(target=connect, daemon=True).start()
    if not done.wait(INIT_SECONDS - PORT_SECONDS):
        raise _no_cluster(address, "no cluster answers")
    if failure:
        raise failure[0]


def _init(ray: Any, address: str, **options: Any) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray has many
        raise _no_cluster(address, _first_line(error)) from None


def _no_cluster(address: str, reason: str) -> RefusedError:
    return RefusedError(
        f"--ray-address {address}: {reason}",
        hint="see that it runs (`ray status`), or leave --ray-address out",
    )


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
        raise _no_cluster(address, f"no cluster answers: {error.strerror or error}") from None
