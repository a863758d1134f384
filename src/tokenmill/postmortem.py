"""`doctor --why-died`: run a command, watch all its processes, and say how the first one died.

"One of the subprocesses has abruptly died" names no process, no signal and no memory. Here each
process's end is noted with its exit status and its memory until then, and a SIGKILL is held
against the kernel's own counters of its out-of-memory killer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenmill.cgroups import cgroup_memory
from tokenmill.errors import UsageError, printable
from tokenmill.processes_seen import (
    KernelLog,
    Stat,
    available_memory,
    command_line,
    descendants,
    oom_kills,
    read_stat,
    status_after_end,
)

LOOK_SECONDS = 0.05
SAMPLE_SECONDS = 0.2
MOST_SAMPLES = 400  # of one process; then every second one is dropped
SHORT_OF_MEMORY = 0.1  # of the limit left, or less: then a SIGKILL was probably for that
PR_SET_CHILD_SUBREAPER = 36


class Seen:
    """A process of the command, while it lives and after."""

    def __init__(self, pid: int, stat: Stat, at: float) -> None:
        self.pid, self.parent, self.started = pid, stat.parent, stat.started
        self.began, self.ended = at, -1.0
        self.status: int | None = None  # as `wait` gives it; None: never told
        self.command = command_line(pid)
        self.samples: list[tuple[float, int]] = []
        self.peak = 0
        self.available = -1  # in the machine, when it was last looked at
        self.oom_kills = 0  # more than before, when it had ended
        self.log: list[str] = []
        try:
            self.pidfd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self.pidfd = -1

    def sample(self, at: float, resident: int, available: int) -> None:
        self.samples.append((at, resident))
        self.peak, self.available = max(self.peak, resident), available
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]

    @property
    def code(self) -> int | None:
        """As Python has it: an exit code, or minus a signal."""
        if self.status is None:
            return None
        return -(self.status & 0x7F) if self.status & 0x7F else self.status >> 8


class Postmortem(NamedTuple):
    command: str
    code: int  # of the command itself
    seconds: float
    seen: list[Seen]
    limit: int  # bytes of memory that there are for all

    @property
    def dead(self) -> list[Seen]:
        """Children that ended badly, in the order of their end; the command itself is last."""
        bad = [s for s in self.seen[1:] if s.ended >= 0 and s.code != 0]
        return sorted(bad, key=lambda s: s.ended)


def watch(command: Sequence[str]) -> Postmortem:
    """Run a command to its end, and see how each of its processes ends."""
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
    watcher = _Watcher(child, begun)
    try:
        watcher.run()
    except BaseException:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(3)
        if child.poll() is None:
            child.kill()
        raise
    finally:
        watcher.close()
    limits = [x for x in (cgroup_memory().limit, _machine_memory()) if x > 0]
    return Postmortem(
        " ".join(command),
        child.returncode,
        time.monotonic() - begun,
        list(watcher.seen.values()),
        min(limits, default=-1),
    )


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _Watcher:
    def __init__(self, child: subprocess.Popen[bytes], begun: float) -> None:
        self.child, self.begun = child, begun
        self.seen: dict[tuple[int, int], Seen] = {}
        self.poll = select.poll()
        self.log = KernelLog()
        self.kills = oom_kills()
        self._sampled = -1.0

    def run(self) -> None:
        while True:
            self._look()
            self._wait()
            if self.child.poll() is not None:
                self._settle()
                return

    def close(self) -> None:
        self.log.close()
        for one in self.seen.values():
            if one.pidfd >= 0:
                os.close(one.pidfd)

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
                if one.pidfd >= 0:
                    self.poll.register(one.pidfd, select.POLLIN)
            elif sampling and stat.state != "Z" and stat.resident:
                # One that is about to end has given its memory back already: nothing to note.
                self.seen[key].sample(now, stat.resident, available)
                self.seen[key].command = command_line(pid) or self.seen[key].command
        if sampling:
            self._sampled = now

    def _wait(self) -> None:
        """Until somebody ends, not long; an ended one's status is there for a moment only."""
        by_fd = {one.pidfd: one for one in self.seen.values() if one.ended < 0}
        for fd, _ in self.poll.poll(LOOK_SECONDS * 1000):
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
        now = oom_kills()
        one.oom_kills = max(now[who] - self.kills[who] for who in now)
        self.kills = now
        one.log = self.log.lines()
        if one.pidfd >= 0:
            self.poll.unregister(one.pidfd)

    def _settle(self) -> None:
        """The command has ended: so have those that end with it."""
        code = self.child.returncode
        for one in self.seen.values():
            if one.pid == self.child.pid:
                if one.ended < 0:
                    self._end(one)
                one.status = -code if code < 0 else code << 8
        self._wait()


# --- what is said ----------------------------------------------------------------------------


def how_it_ended(one: Seen, limit: int) -> str:
    """How, and by whom, with what speaks for it."""
    code = one.code
    if code is None:
        return "it is gone, and the kernel did not tell how (its parent was faster)"
    if code >= 0:
        return f"exit code {code}: " + (
            "it ended itself, by sys.exit, os._exit or an exception that nobody caught"
        )
    if -code == signal.SIGKILL:
        return f"SIGKILL, {_who_killed(one, limit)}"
    name = _signal_name(-code)
    logged = next((line for line in one.log if "segfault" in line or "protection" in line), "")
    reasons = {
        signal.SIGSEGV: "a segmentation fault in native code",
        signal.SIGABRT: "native code gave up (an assertion, a panic, a failed allocation)",
        signal.SIGBUS: "a bus error: a mapped file was cut, or /dev/shm is full",
        signal.SIGILL: "an instruction that this processor does not have",
        signal.SIGFPE: "a division by zero in native code",
        signal.SIGTERM: "somebody asked it to end",
    }
    reason = reasons.get(signal.Signals(-code), "") if name in signal.Signals.__members__ else ""
    said = f"{name}: {reason}" if reason else name
    return f"{said} (kernel log: {printable(logged)})" if logged else said


def _who_killed(one: Seen, limit: int) -> str:
    line = next((x for x in one.log if "Killed process" in x or "oom-kill" in x), "")
    if line:
        return f"by the kernel's out-of-memory killer (kernel log: {printable(line)})"
    if one.oom_kills > 0:
        return "by the kernel's out-of-memory killer (its counter oom_kill rose at that moment)"
    last = one.samples[-1][1] if one.samples else 0
    short = 0 <= one.available < SHORT_OF_MEMORY * max(limit, 1)
    if short or (limit > 0 and last > (1 - SHORT_OF_MEMORY) * limit):
        return (
            "probably by the out-of-memory killer: it used "
            f"{_bytes(last)}, and {_bytes(one.available)} of {_bytes(limit)} were free"
        )
    return (
        f"not for lack of memory (it used {_bytes(last)}, {_bytes(one.available)} of "
        f"{_bytes(limit)} were free, no counter of the kernel's rose): somebody sent the signal, a "
        "person, a job scheduler or a container's supervisor"
    )


def advice_for(one: Seen) -> str:
    code = one.code or 0
    if -code == signal.SIGKILL:
        return (
            "fewer processes (num_proc), smaller batches (batch_size, writer_batch_size); "
            "tokenmill.Tokenizer takes a tenth of the memory of lists of ints"
        )
    if code < 0 and -code != signal.SIGTERM:
        return "the lines `Fatal Python error` above name the line of Python it was in"
    if code > 0:
        return "look for the traceback that it printed; try the row alone, without num_proc"
    return ""


def report_lines(found: Postmortem) -> list[str]:
    how = f"exit code {found.code}" if found.code >= 0 else _signal_name(-found.code)
    count = len(found.seen)
    lines = [
        f"the command ended with {how} after {found.seconds:.1f} s; {count} "
        f"process{'es' * (count != 1)} seen"
    ]
    dead = found.dead
    if dead:
        # Where a process was ended by a signal that is the news: a shell's helper that says 1
        # (a grep that found nothing) is often the first to end, and nothing died of it.
        first = next((one for one in dead if _by_force(one)), dead[0])
        others = [one for one in dead if one is not first]
        lines += [*_one(first, found.limit, "first to die"), *_others(others)]
    elif found.code:
        lines += _quiet_ends(found)
    if found.code < 0 and found.seen:
        lines += _one(found.seen[0], found.limit, "the command itself")
    return lines


def _by_force(one: Seen) -> bool:
    return one.code is not None and one.code < 0 and -one.code != signal.SIGTERM


def _one(one: Seen, limit: int, title: str) -> list[str]:
    name = printable(one.command[:70]) or "?"
    last = one.samples[-1][1] if one.samples else 0
    lines = [
        f"  {title}: process {one.pid} (child of {one.parent}), {one.ended:.1f} s after the start: "
        f"{name}",
        f"    how:     {how_it_ended(one, limit)}",
        f"    memory:  {_bytes(last)} when last seen, {_bytes(one.peak)} at most; the machine had "
        f"{_bytes(one.available)} to spare",
        f"    in time: {_over_time(one)}",
    ]
    advice = advice_for(one)
    return [*lines, f"    try:     {advice}"] if advice else lines


def _others(dead: list[Seen]) -> list[str]:
    if not dead:
        return []
    told = ", ".join(f"{one.pid} ({_short_end(one)})" for one in dead[:8])
    more = f" and {len(dead) - 8} more" if len(dead) > 8 else ""
    return [f"  also: {told}{more}; a pool ends the others by SIGTERM when one is lost"]


def _short_end(one: Seen) -> str:
    if one.code is None:
        return "?"
    return f"exit code {one.code}" if one.code >= 0 else _signal_name(-one.code)


def _quiet_ends(found: Postmortem) -> list[str]:
    """Nobody died badly, and still the command failed."""
    early = [
        one for one in found.seen[1:] if one.code == 0 and "resource_tracker" not in one.command
    ]
    if not early:
        return ["  none of its processes died: the error is the command's own, see what it printed"]
    first = min(early, key=lambda one: one.ended)
    return [
        f"  first to end: process {first.pid}, after {first.ended:.1f} s, with exit code 0",
        "    a worker that ends so was told to, called sys.exit(0) or os._exit(0), or met an "
        "OSError, which its pool takes for the end of work (no network, a file that is missing)",
    ]


def _over_time(one: Seen) -> str:
    """Some eight moments of its memory."""
    samples = one.samples
    step = max(1, -(-len(samples) // 8))
    chosen = samples[::step]
    if samples and chosen[-1] != samples[-1]:
        chosen.append(samples[-1])
    return ", ".join(f"{at:.1f} s {_bytes(used)}" for at, used in chosen) or "not seen alive"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _bytes(size: int) -> str:
    if size < 0:
        return "?"
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"


def exit_code(found: Postmortem) -> int:
    """That of the command, as a shell would have it."""
    return found.code if found.code >= 0 else 128 - found.code


def as_dict(found: Postmortem) -> dict[str, Any]:
    return {
        "command": found.command,
        "code": found.code,
        "seconds": round(found.seconds, 3),
        "dead": [
            {
                "pid": one.pid,
                "parent": one.parent,
                "command": one.command,
                "code": one.code,
                "how": how_it_ended(one, found.limit),
                "seconds": round(one.ended, 3),
                "peak_bytes": one.peak,
                "memory": one.samples,
            }
            for one in found.dead
        ],
    }
