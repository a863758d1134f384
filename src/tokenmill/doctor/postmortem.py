"""The report on a command whose processes were watched: how the first one died, and what to do.

A SIGKILL is compared with the counters and the log of the kernel's out-of-memory killer.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Literal, NamedTuple

from tokenmill.amounts import show_bytes
from tokenmill.errors import printable
from tokenmill.system.proc import Stat, command_line, killed_for_memory, signal_name

EARLY_SECONDS = 1.0  # before the end of the command: a pool ends its workers faster
MOST_SAMPLES = 400  # of one process; then every second one is dropped
MISSED = "  (one that died within milliseconds of its start may not have been seen)"
# What Python's faulthandler prints a traceback for.
FAULT_SIGNALS = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
REASONS: dict[int, str] = {
    signal.SIGSEGV: "a segmentation fault in native code",
    signal.SIGABRT: "native code gave up (an assertion, a panic, a failed allocation)",
    signal.SIGBUS: "a bus error: a mapped file was cut, or /dev/shm is full",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGFPE: "a division by zero in native code",
    signal.SIGTERM: "somebody asked it to end",
}


class WatchedProcess:
    """A process of the command, while it lives and after."""

    def __init__(self, pid: int, stat: Stat, available: int) -> None:
        self.pid, self.parent, self.started = pid, stat.parent, stat.started
        self.ended = -1.0  # seconds after the command's start
        self.status: int | None = None  # as `wait` gives it; None: never told
        self.command = command_line(pid)
        self.samples: list[tuple[float, int]] = []
        self.peak = -1  # not seen alive
        self.available = available  # in the machine, when it was last looked at
        self.oom_kills = 0  # more than before, when it had ended
        self.log: list[str] = []
        self.pidfd = -1  # becomes readable when it ends

    def sample(self, at: float, resident: int, available: int) -> None:
        self.samples.append((at, resident))
        self.peak, self.available = max(self.peak, resident), available
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]

    @property
    def resident(self) -> int:
        """Bytes of memory when it was last looked at; -1: not seen alive."""
        return self.samples[-1][1] if self.samples else -1

    @property
    def code(self) -> int | None:
        """As Python has it: an exit code, or minus a signal."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    @property
    def by_force(self) -> bool:
        """By a signal other than that by which a pool ends its workers."""
        return self.code is not None and self.code < 0 and -self.code != signal.SIGTERM


class Postmortem(NamedTuple):
    command: str
    state: Literal["ended", "running", "stopped"]  # stopped: by us, because we were told to end
    code: int  # of the command itself, where it has ended
    seconds: float
    seen: list[WatchedProcess]
    limit: int  # bytes of memory that there are for all

    @property
    def dead(self) -> list[WatchedProcess]:
        """Children that ended badly, in the order of their end; the command itself is last."""
        bad = [s for s in self.seen[1:] if s.ended >= 0 and s.code != 0]
        return sorted(bad, key=lambda s: s.ended)

    @property
    def exit_code(self) -> int:
        """That of the command that has ended, as a shell would have it."""
        return self.code if self.code >= 0 else 128 - self.code


def cause_of_death(one: WatchedProcess, limit: int) -> str:
    """How, and by whom, with the evidence."""
    code = one.code
    if code is None:
        return "it is gone, and the kernel did not tell how (its parent was faster)"
    if code >= 0:
        return (
            f"exit code {code}: it ended itself, by sys.exit, os._exit or an exception that nobody "
            "caught"
        )
    if -code == signal.SIGKILL:
        return f"SIGKILL, {_killer(one, limit)[1]}"
    name, reason = _ending(code), REASONS.get(-code, "")
    told = f"{name}: {reason}" if reason else name
    logged = _logged(one, "segfault", "protection")
    return f"{told} (kernel log: {printable(logged)})" if logged else told


def _logged(one: WatchedProcess, *words: str) -> str:
    """What the kernel logged about it; in a container its number there is another."""
    lines = [line for line in one.log if any(word in line for word in words)]
    its = [line for line in lines if re.search(rf"\b{one.pid}\b", line)]
    return next(iter(its or lines), "")


def _killer(one: WatchedProcess, limit: int) -> tuple[bool, str]:
    """Whether a SIGKILL was for lack of memory, as far as that can be known; and who sent it."""
    if line := _logged(one, "Killed process", "oom-kill"):
        return True, f"by the kernel's out-of-memory killer (kernel log: {printable(line)})"
    return killed_for_memory(one.resident, one.available, limit, one.oom_kills)


def death_advice(one: WatchedProcess, limit: int) -> str:
    code = one.code or 0
    if -code == signal.SIGKILL:
        if not _killer(one, limit)[0]:
            return "ask who: the job scheduler's log, the container's events, `last`, other users"
        return (
            "fewer processes (num_proc), smaller batches (batch_size, writer_batch_size); "
            "tokenmill.Tokenizer takes a tenth of the memory of lists of ints"
        )
    if -code in FAULT_SIGNALS:
        return "the lines `Fatal Python error` above name the line of Python it was in"
    if code > 0:
        return "look for the traceback that it printed; try the row alone, without num_proc"
    return ""


def report_lines(found: Postmortem) -> list[str]:
    count = len(found.seen)
    after = f"after {found.seconds:.1f} s"
    what = {
        "ended": f"ended with {_ending(found.code)} {after}",
        "running": f"still runs {after}, without a process that died (Ctrl-C ends it)",
        "stopped": f"was stopped {after}",
    }[found.state]
    lines = [f"the command {what}; {count} process{'es' * (count != 1)} seen"]
    dead = found.dead
    if dead:
        # A process ended by a signal comes first: a shell's helper that exits with 1 (a grep that
        # found nothing) is often the first to end, and nothing died of it.
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


def _one(one: WatchedProcess, limit: int, title: str) -> list[str]:
    name = printable(one.command[:70]) or "?"
    lines = [
        f"  {title}: process {one.pid} (child of {one.parent}), {one.ended:.1f} s after the start: "
        f"{name}",
        f"    how:     {cause_of_death(one, limit)}",
        f"    memory:  {show_bytes(one.resident)} when last seen, {show_bytes(one.peak)} at most; "
        f"the machine had {show_bytes(one.available)} to spare",
        f"    in time: {_over_time(one)}",
    ]
    advice = death_advice(one, limit)
    return [*lines, f"    try:     {advice}"] if advice else lines


def _others(dead: list[WatchedProcess]) -> list[str]:
    if not dead:
        return []
    told = ", ".join(f"{one.pid} ({_ending(one.code)})" for one in dead[:8])
    more = f" and {len(dead) - 8} more" if len(dead) > 8 else ""
    return [f"  also: {told}{more}; a pool ends the others by SIGTERM when one is lost"]


def _quiet_ends(found: Postmortem) -> list[str]:
    """Nobody died badly, and still the command failed."""
    own = "  none of these died: the error is the command's own, see what it printed"
    if found.code == 1:
        own = (
            "  none of these died: exit code 1 is how Python ends after an ordinary exception; the "
            "traceback that it printed names it"
        )
    # After an exception a pool ends all its workers with 0; one that went long before is a loss.
    workers = [one for one in found.seen[1:] if one.code == 0 and _is_worker(one, found)]
    if not workers:
        return [own, MISSED] if len(found.seen) > 1 else [own]
    first = min(workers, key=lambda one: one.ended)
    if found.code == 1 and found.seconds - first.ended < EARLY_SECONDS:
        return [own]
    return [
        own,
        f"  first to end: process {first.pid}, after {first.ended:.1f} s, with exit code 0",
        "    if a worker was lost, it is this one: it was told to end, called sys.exit(0) or "
        "os._exit(0), or met an OSError, which its pool takes for the end of work (no network, a "
        "file that is missing)",
    ]


def _is_worker(one: WatchedProcess, found: Postmortem) -> bool:
    """Whether a process is a worker of a pool: a fork has the name of its command."""
    if "resource_tracker" in one.command:
        return False
    forked = bool(found.seen) and one.command == found.seen[0].command
    return forked or any(word in one.command for word in ("multiprocess", "spawn_main", "loky"))


def _over_time(one: WatchedProcess) -> str:
    """Some eight moments of its memory."""
    step = max(1, -(-len(one.samples) // 8))
    chosen = dict.fromkeys([*one.samples[::step], *one.samples[-1:]])
    return ", ".join(f"{at:.1f} s {show_bytes(used)}" for at, used in chosen) or "not seen alive"


def _ending(code: int | None) -> str:
    if code is None:
        return "?"
    return f"exit code {code}" if code >= 0 else signal_name(-code)


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
                "how": cause_of_death(one, found.limit),
                "seconds": round(one.ended, 3),
                "peak_bytes": one.peak,
                "memory": one.samples,
            }
            for one in [*found.dead, *(found.seen[:1] if (found.code or 0) < 0 else [])]
        ],
    }
