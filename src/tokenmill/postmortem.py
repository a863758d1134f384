"""What is said of a command whose processes were watched: how the first one died, and what to do.

A SIGKILL is held against the kernel's own counters and log of its out-of-memory killer.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Any, Literal, NamedTuple

from tokenmill.errors import printable
from tokenmill.processes_seen import Stat, command_line

MOST_SAMPLES = 400  # of one process; then every second one is dropped
SHORT_OF_MEMORY = 0.1  # of the limit left, or less: then a SIGKILL was probably for that
MISSED = "  (one that died within milliseconds of its start may not have been seen)"
# What Python's faulthandler prints a traceback for.
FAULTS = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)


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
        self.pidfd = -1  # becomes readable when it ends

    def open(self) -> bool:
        with contextlib.suppress(OSError, AttributeError):
            self.pidfd = os.pidfd_open(self.pid)
        return self.pidfd >= 0

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
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

    @property
    def by_force(self) -> bool:
        """By a signal other than that by which a pool ends its workers."""
        return self.code is not None and self.code < 0 and -self.code != signal.SIGTERM


class Postmortem(NamedTuple):
    command: str
    state: Literal["ended", "running", "stopped"]  # stopped: by us, since we were told to end
    code: int  # of the command itself, where it has ended
    seconds: float
    seen: list[Seen]
    limit: int  # bytes of memory that there are for all

    @property
    def dead(self) -> list[Seen]:
        """Children that ended badly, in the order of their end; the command itself is last."""
        bad = [s for s in self.seen[1:] if s.ended >= 0 and s.code != 0]
        return sorted(bad, key=lambda s: s.ended)


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
    logged = _logged(one, "segfault", "protection")
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


def _logged(one: Seen, *words: str) -> str:
    """What the kernel logged of it; in a container its number there is another."""
    lines = [line for line in one.log if any(word in line for word in words)]
    its = [line for line in lines if re.search(rf"\b{one.pid}\b", line)]
    return next(iter(its or lines), "")


def _who_killed(one: Seen, limit: int) -> str:
    line = _logged(one, "Killed process", "oom-kill")
    if line:
        return f"by the kernel's out-of-memory killer (kernel log: {printable(line)})"
    if one.oom_kills > 0:
        return "by the kernel's out-of-memory killer (its counter oom_kill rose at that moment)"
    last = one.samples[-1][1] if one.samples else 0
    if _for_memory(one, limit):
        return (
            "probably by the out-of-memory killer: it used "
            f"{_bytes(last)}, and {_bytes(one.available)} of {_bytes(limit)} were free"
        )
    return (
        f"not for lack of memory (it used {_bytes(last)}, {_bytes(one.available)} of "
        f"{_bytes(limit)} were free, no counter of the kernel's rose): somebody sent the signal, a "
        "person, a job scheduler or a container's supervisor"
    )


def _for_memory(one: Seen, limit: int) -> bool:
    """Whether a SIGKILL was for lack of memory, as far as that can be known."""
    logged = _logged(one, "Killed process", "oom-kill")
    last = one.samples[-1][1] if one.samples else 0
    short = 0 <= one.available < SHORT_OF_MEMORY * max(limit, 1)
    full = limit > 0 and last > (1 - SHORT_OF_MEMORY) * limit
    return bool(logged) or one.oom_kills > 0 or short or full


def advice_for(one: Seen, limit: int) -> str:
    code = one.code or 0
    if -code == signal.SIGKILL:
        if not _for_memory(one, limit):
            return "ask who: the job scheduler's log, the container's events, `last`, other users"
        return (
            "fewer processes (num_proc), smaller batches (batch_size, writer_batch_size); "
            "tokenmill.Tokenizer takes a tenth of the memory of lists of ints"
        )
    if -code in FAULTS:
        return "the lines `Fatal Python error` above name the line of Python it was in"
    if code > 0:
        return "look for the traceback that it printed; try the row alone, without num_proc"
    return ""


def report_lines(found: Postmortem) -> list[str]:
    how = f"exit code {found.code}" if found.code >= 0 else _signal_name(-found.code)
    count = len(found.seen)
    after = f"after {found.seconds:.1f} s"
    what = {
        "ended": f"ended with {how} {after}",
        "running": f"still runs {after}, without a process that died (Ctrl-C ends it)",
        "stopped": f"was stopped {after}",
    }[found.state]
    lines = [f"the command {what}; {count} process{'es' * (count != 1)} seen"]
    dead = found.dead
    if dead:
        # Where a process was ended by a signal that is the news: a shell's helper that says 1
        # (a grep that found nothing) is often the first to end, and nothing died of it.
        first = next((one for one in dead if one.by_force), dead[0])
        others = [one for one in dead if one is not first]
        lines += [*_one(first, found.limit, "first to die"), *_others(others)]
    elif found.state == "stopped":
        lines.append("  none of these had died: if it hung, it waited for something else")
        lines.append(MISSED)
    elif found.code > 0:
        lines += _quiet_ends(found)
    if found.code < 0 and found.seen:
        lines += _one(found.seen[0], found.limit, "the command itself")
    return lines


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
    advice = advice_for(one, limit)
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
        own = "  none of these died: the error is the command's own, see what it printed"
        return [own, MISSED] if len(found.seen) > 1 else [own]
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
    """That of the command that has ended, as a shell would have it."""
    return found.code if found.code >= 0 else 128 - found.code


def as_dict(found: Postmortem) -> dict[str, Any]:
    return {
        "command": found.command,
        "state": found.state,
        "code": found.code if found.state == "ended" else None,
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
