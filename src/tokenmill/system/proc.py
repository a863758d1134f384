"""What the kernel says about processes: which exist, how much memory each uses, how one ended.

Only its parent may wait for a process. Others can still see its end: a pidfd becomes readable, and
until the parent has collected the exit status, the status is in /proc. From Linux 6.15 on the
pidfd gives the status afterwards too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import struct
import sys
from collections import defaultdict
from typing import NamedTuple

from tokenmill.amounts import show_bytes
from tokenmill.system.limits import cgroup_memory, oom_kill_count

PAGE = os.sysconf("SC_PAGE_SIZE")
# linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info) of 64 bytes, and the mask's bit for the status
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here."""

    state: str
    parent: int
    started: int  # in ticks since boot: with the pid it names a process for ever
    resident: int
    exit_status: int  # as `wait` gives it; of a process that has ended


def read_stat(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return Stat(
            fields[0].decode(),
            int(fields[1]),
            int(fields[19]),
            int(fields[21]) * PAGE,
            int(fields[49]),
        )
    except (OSError, IndexError, ValueError):
        return None


def resident_bytes() -> int:
    """Memory of this process that is not file-backed."""
    try:
        with open("/proc/self/statm") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * PAGE
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def descendants(root: int) -> dict[int, Stat]:
    """All processes below one, itself included, as they are now; parents before children."""
    has_lists = os.path.exists(f"/proc/{root}/task/{root}/children")  # not in every kernel
    children = _listed_children if has_lists else _children_by_parent().__getitem__
    found: dict[int, Stat] = {}
    layer = [root]
    while layer:
        below: list[int] = []
        for pid in layer:
            if pid not in found and (stat := read_stat(pid)) is not None:
                found[pid] = stat
                below += children(pid)
        layer = below
    return found


def _listed_children(pid: int) -> list[int]:
    """Far less work than to look through all processes of the machine."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _children_by_parent() -> defaultdict[int, list[int]]:
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            children[stat.parent].append(int(name))
    return children


def command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def status_after_end(pidfd: int) -> int | None:
    """The exit status of a process that its parent has collected already; None: not known."""
    request = bytearray(64)
    struct.pack_into("=Q", request, 0, PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, request)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", request, 0)
    (status,) = struct.unpack_from("=i", request, 60)
    return int(status) if mask & PIDFD_INFO_EXIT else None


def available_memory() -> int:
    """Bytes that the machine could still give; -1: not known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return -1


def oom_kills(root: str = "") -> dict[str, int]:
    """How often the kernel's out-of-memory killer has struck, by who counts it."""
    return {
        "the machine (/proc/vmstat)": oom_kill_count(f"{root}/proc/vmstat"),
        "this control group": cgroup_memory(root).kills,
    }


SHORT_OF_MEMORY = 0.1  # of the limit left, or less: then a SIGKILL was probably for that


def killed_for_memory(resident: int, available: int, limit: int, kills: int) -> tuple[bool, str]:
    """Whether a SIGKILL was for lack of memory, as far as that can be known; and who sent it.

    `resident`: what the process used; `available` of `limit`: what the machine had left then;
    `kills`: how much the kernel's counters of such kills rose. -1: not known.
    """
    if kills > 0:
        return True, (
            "by the kernel's out-of-memory killer (its counter oom_kill rose at that moment)"
        )
    used, left = show_bytes(resident), f"{show_bytes(available)} of {show_bytes(limit)} were free"
    short = 0 <= available < SHORT_OF_MEMORY * max(limit, 1)
    if short or 0 < (1 - SHORT_OF_MEMORY) * limit < resident:
        return True, f"probably by the out-of-memory killer: it used {used}, and {left}"
    return False, (
        f"not for lack of memory (it used {used}, {left}, no counter of the kernel's rose): "
        "somebody sent the signal, a person, a job scheduler or a container's supervisor"
    )


class KernelLog:
    """What the kernel logs from now on, where we may read it."""

    PATTERN = re.compile(r"Killed process|Out of memory|oom-kill:|segfault at|general protection")

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def lines(self) -> list[str]:
        """New lines about processes that were killed or broke."""
        found = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # the log has overtaken us: go on with what there is
                continue
            except OSError:
                break
            if not record:
                break
            text = record.decode(errors="replace").partition(";")[2].split("\n")[0]
            if self.PATTERN.search(text):
                found.append(text)
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
