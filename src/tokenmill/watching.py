"""`doctor --why-died`: run a command and watch all its processes, each to its end.

"One of the subprocesses has abruptly died" names no process, no signal and no memory. Here each
process's end is noted with its exit status and its memory until then, and what the kernel counted
and logged of its out-of-memory killer meanwhile. What that means, `postmortem.py` says.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Literal

from tokenmill.config import memory_allowed
from tokenmill.errors import UsageError
from tokenmill.postmortem import Postmortem, Seen
from tokenmill.processes_seen import (
    KernelLog,
    available_memory,
    command_line,
    descendants,
    oom_kills,
    read_stat,
    status_after_end,
)

# Between two looks at who is there. A forked worker can die milliseconds after its birth, so it is
# the shorter, as long as looking takes no more than a twentieth of a core.
LOOK_SECONDS = (0.004, 0.05)
LOOKING_SHARE = 0.05
SAMPLE_SECONDS = 0.2
# A pool that has lost a worker often waits for ever: so long after a death it is told at once.
WAITING_SECONDS = 5.0
STOP_SECONDS = 10.0  # for the command to end when we are told to; then it is killed
PR_SET_CHILD_SUBREAPER = 36
# The kernel logs and counts a kill when it sends the signal; with many GB the end comes later, and
# other processes may end in between.
KILL_SECONDS = 5.0


def watch(
    command: Sequence[str], tell: Callable[[Postmortem], object] = lambda _: None
) -> Postmortem:
    """Run a command to its end, and see how each of its processes ends.

    `tell` gets what is known when the command goes on without a process that died, and when it is
    to be ended before its time: a pool that waits for a dead worker has no other end.
    """
    if not os.path.isdir("/proc/self"):
        raise UsageError("--why-died needs /proc: it works on Linux only")
    with contextlib.suppress(OSError, AttributeError):  # orphans become ours, not init's
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    # A segfault then says in which line of Python it happened.
    environment = {"PYTHONFAULTHANDLER": "1", **os.environ}
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(
            f"{command[0]}: cannot be run: {error.strerror}",
            hint="tokenmill doctor --why-died -- python train.py",
        ) from None
    watcher = _Watcher(child, begun, " ".join(command), tell)
    try:
        watcher.run()
        return watcher.found("ended")
    except BaseException:
        found = watcher.found("stopped")  # before we end the others: what died by itself
        watcher.stop()
        tell(found)
        raise
    finally:
        watcher.close()


def _most_watched() -> int:
    """Each takes a file of ours while it lives, and some are needed for /proc."""
    return min(500, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class _Watcher:
    def __init__(
        self,
        child: subprocess.Popen[bytes],
        begun: float,
        command: str,
        tell: Callable[[Postmortem], object],
    ) -> None:
        self.child, self.begun, self.command, self.tell = child, begun, command, tell
        self.watched, self.most_watched = 0, _most_watched()
        self.told = False
        self.seen: dict[tuple[int, int], Seen] = {}
        self.poll = select.poll()
        self.log = KernelLog()
        self.kills = oom_kills()
        self.news: list[tuple[float, int, list[str]]] = []  # when, kills for memory, lines
        self._sampled = -1.0
        self._pause = LOOK_SECONDS[0]

    def run(self) -> None:
        while True:
            self._look()
            self._wait()
            if self.child.poll() is not None:
                self._settle()
                return
            self._tell_if_it_waits()

    def found(self, state: Literal["ended", "running", "stopped"]) -> Postmortem:
        code = self.child.returncode if state == "ended" else 0
        seen = [copy.copy(one) for one in self.seen.values()]
        return Postmortem(self.command, state, code, self._now(), seen, memory_allowed())

    def stop(self) -> None:
        """End the command and what it has started, which else would go on without it."""
        pids = {self.child.pid}
        ours = []
        for one in self.seen.values():  # parents stand before their children
            if one.pid in pids or one.parent in pids:
                pids.add(one.pid)
                ours += [one] if one.pidfd >= 0 else []
        self.child.terminate()
        _send(ours, signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        while time.monotonic() < end and not all(_has_ended(one) for one in ours):
            self.child.poll()
            time.sleep(0.02)
        self.child.kill()
        _send(ours, signal.SIGKILL)

    def close(self) -> None:
        self.log.close()
        for one in self.seen.values():
            one.close()

    def _tell_if_it_waits(self) -> None:
        long_ago = self._now() - WAITING_SECONDS
        dead = [s for s in self.seen.values() if 0 <= s.ended < long_ago and s.by_force]
        if dead and not self.told:
            self.told = True
            self.tell(self.found("running"))

    def _now(self) -> float:
        return time.monotonic() - self.begun

    def _look(self) -> None:
        """Who is there now; new ones are watched, and every so often the memory is noted."""
        now = self._now()
        ours = descendants(os.getpid())
        ours.pop(os.getpid(), None)
        sampling = now - self._sampled >= SAMPLE_SECONDS
        available = available_memory() if sampling else -1
        for pid, stat in ours.items():
            key = (pid, stat.started)
            if key not in self.seen:
                one = self.seen[key] = Seen(pid, stat, now)
                one.sample(now, stat.resident, available_memory())
                if self.watched < self.most_watched and one.open():
                    self.watched += 1
                    self.poll.register(one.pidfd, select.POLLIN)
            elif sampling and stat.state != "Z" and stat.resident:
                # One that is about to end has given its memory back already: nothing to note.
                self.seen[key].sample(now, stat.resident, available)
                self.seen[key].command = command_line(pid) or self.seen[key].command
        if sampling:
            self._sampled = now
        least, most = LOOK_SECONDS
        self._pause = min(max((self._now() - now) / LOOKING_SHARE, least), most)

    def _wait(self) -> None:
        """Until somebody ends, not long; an ended one's status is there for a moment only."""
        by_fd = {one.pidfd: one for one in self.seen.values() if one.ended < 0}
        for fd, _ in self.poll.poll(self._pause * 1000):
            if fd in by_fd:
                self._end(by_fd[fd])

    def _end(self, one: Seen) -> None:
        stat = read_stat(one.pid)
        if stat is not None and stat.started == one.started and stat.state in "ZX":
            one.status = stat.exit_status
            if stat.parent == os.getpid() and one.pid != self.child.pid:
                with contextlib.suppress(OSError):  # an orphan: nobody else collects it
                    os.waitpid(one.pid, os.WNOHANG)
        elif one.pidfd >= 0:
            one.status = status_after_end(one.pidfd)
        one.ended = self._now()
        self._read_the_kernels_news()
        since = one.ended - KILL_SECONDS
        one.oom_kills = sum(kills for at, kills, _ in self.news if at >= since)
        one.log = [line for at, _, lines in self.news if at >= since for line in lines]
        if one.pidfd >= 0:
            self.poll.unregister(one.pidfd)
            one.close()
            self.watched -= 1

    def _read_the_kernels_news(self) -> None:
        now = oom_kills()
        kills = max(now[who] - self.kills[who] for who in now)
        lines = self.log.lines()
        if kills or lines:
            self.news.append((self._now(), kills, lines))
        self.kills = now

    def _settle(self) -> None:
        """The command has ended: so have those that end with it, in a moment."""
        self._pause = LOOK_SECONDS[1]
        code = self.child.returncode
        for one in self.seen.values():
            if one.pid == self.child.pid:
                if one.ended < 0:
                    self._end(one)
                one.status = -code if code < 0 else code << 8
        self._wait()


def _send(processes: list[Seen], number: signal.Signals) -> None:
    for one in processes:
        with contextlib.suppress(OSError):  # it has ended
            signal.pidfd_send_signal(one.pidfd, number)


def _has_ended(one: Seen) -> bool:
    ready = select.poll()
    ready.register(one.pidfd, select.POLLIN)
    return bool(ready.poll(0))
