"""`doctor --why-died`: run a command and watch all its processes, each to its end.

"One of the subprocesses has abruptly died" names no process, no signal and no memory. Here each
process's end is noted with its exit status and its memory until then, and what the kernel counted
and logged of its out-of-memory killer meanwhile. `postmortem.py` says what that means.
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
from typing import Literal, cast

from tokenmill.doctor.postmortem import Postmortem, WatchedProcess
from tokenmill.errors import UsageError
from tokenmill.system.limits import memory_allowed
from tokenmill.system.proc import (
    KernelLog,
    available_memory,
    command_line,
    descendants,
    oom_kills,
    read_stat,
    status_after_end,
)

# Between two looks at the processes. A forked worker can die milliseconds after its birth, so it is
# the shorter one, as long as looking takes no more than a twentieth of a core.
LOOK_SECONDS = (0.004, 0.05)
LOOKING_SHARE = 0.05
WATCH_SECONDS = 0.2
# A pool that has lost a worker often waits for ever: so long after a death it is told at once.
WAITING_SECONDS = 5.0
COMMAND_STOP_SECONDS = 10.0  # for the command to end when we are told to; then it is killed
PR_SET_CHILD_SUBREAPER = 36
# The kernel logs and counts a kill when it sends the signal; with many GB the end comes later, and
# other processes may end in between.
KILL_SECONDS = 5.0


def watch(
    command: Sequence[str],
    tell: Callable[[Postmortem], object] = lambda _: None,
    *,
    stdout: int | None = None,
) -> Postmortem:
    """Run a command to its end, and see how each of its processes ends.

    `tell` gets what is known when the command goes on without a process that died, and when it is
    to be ended before its time: a pool that waits for a dead worker has no other end. `stdout`:
    where the command's own output goes; None: to ours.
    """
    if not os.path.isdir("/proc/self"):
        raise UsageError("--why-died needs /proc: it works on Linux only")
    with contextlib.suppress(OSError, AttributeError):  # orphans become ours, not init's
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A segfault then says in which line of Python it happened.
    environment = {"PYTHONFAULTHANDLER": "1", **os.environ}
    try:
        child = subprocess.Popen(command, env=environment, stdout=stdout)
    except OSError as error:
        raise UsageError(
            f"{command[0]}: cannot be run: {error.strerror}",
            hint="tokenmill doctor --why-died -- python train.py",
        ) from None
    watcher = _Watcher(child, tell)
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


class _Watcher:
    def __init__(
        self, child: subprocess.Popen[bytes], tell: Callable[[Postmortem], object]
    ) -> None:
        self.child, self.tell, self.begun = child, tell, time.monotonic()
        # Each watched process takes one of our files while it lives; /proc needs some too.
        self.watched: dict[int, WatchedProcess] = {}  # by that file: their end is waited for
        self.most_watched = min(500, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self.told = False
        self.seen: dict[tuple[int, int], WatchedProcess] = {}
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
        command = " ".join(cast("Sequence[str]", self.child.args))
        return Postmortem(command, state, code, self._now(), seen, memory_allowed())

    def stop(self) -> None:
        """End the command and the processes that it started, which would go on without it."""
        pids = {self.child.pid}
        ours = []
        for one in self.seen.values():  # parents come before their children
            if one.pid in pids or one.parent in pids:
                pids.add(one.pid)
                ours += [one] if one.pidfd >= 0 else []
        self.child.terminate()
        _send(ours, signal.SIGTERM)
        ended = select.poll()
        for one in ours:
            ended.register(one.pidfd, select.POLLIN)
        deadline = time.monotonic() + COMMAND_STOP_SECONDS
        while time.monotonic() < deadline and len(ended.poll(0)) < len(ours):
            self.child.poll()
            time.sleep(0.02)
        self.child.kill()
        _send(ours, signal.SIGKILL)

    def close(self) -> None:
        self.log.close()
        for fd in self.watched:
            os.close(fd)

    def _tell_if_it_waits(self) -> None:
        long_ago = self._now() - WAITING_SECONDS
        dead = [s for s in self.seen.values() if 0 <= s.ended < long_ago and s.by_force]
        if dead and not self.told:
            self.told = True
            self.tell(self.found("running"))

    def _now(self) -> float:
        return time.monotonic() - self.begun

    def _look(self) -> None:
        """Look for processes: new ones are watched, and now and then their memory is noted."""
        now = self._now()
        ours = descendants(os.getpid())
        ours.pop(os.getpid(), None)
        sampling = now - self._sampled >= WATCH_SECONDS
        available = available_memory()
        for pid, stat in ours.items():
            key = (pid, stat.started)
            is_new = key not in self.seen
            if is_new:
                self.seen[key] = WatchedProcess(pid, stat, available)
                self._watch(self.seen[key])
            # One that ends has given its memory back, and one that starts has none yet.
            if (is_new or sampling) and stat.resident:
                self.seen[key].sample(now, stat.resident, available)
                self.seen[key].command = command_line(pid) or self.seen[key].command
        if sampling:
            self._sampled = now
        least, most = LOOK_SECONDS
        self._pause = min(max((self._now() - now) / LOOKING_SHARE, least), most)

    def _watch(self, one: WatchedProcess) -> None:
        if len(self.watched) < self.most_watched:
            with contextlib.suppress(OSError, AttributeError):
                one.pidfd = os.pidfd_open(one.pid)
                self.watched[one.pidfd] = one
                self.poll.register(one.pidfd, select.POLLIN)

    def _wait(self) -> None:
        """Until a process ends, or briefly: the status of an ended one is there for a moment."""
        for fd, _ in self.poll.poll(self._pause * 1000):
            self._end(self.watched[fd])

    def _end(self, one: WatchedProcess) -> None:
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
            del self.watched[one.pidfd]
            os.close(one.pidfd)
            one.pidfd = -1

    def _read_the_kernels_news(self) -> None:
        now = oom_kills()
        kills = max(now[who] - self.kills[who] for who in now)
        lines = self.log.lines()
        if kills or lines:
            self.news.append((self._now(), kills, lines))
        self.kills = now

    def _settle(self) -> None:
        """The command has ended; its other processes end within a moment."""
        self._pause = LOOK_SECONDS[1]
        code = self.child.returncode
        for one in self.seen.values():
            if one.pid == self.child.pid:
                if one.ended < 0:
                    self._end(one)
                one.status = -code if code < 0 else code << 8
        self._wait()


def _send(processes: list[WatchedProcess], number: signal.Signals) -> None:
    for one in processes:
        with contextlib.suppress(OSError):  # it has ended
            signal.pidfd_send_signal(one.pidfd, number)
