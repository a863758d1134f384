"""The limits of this process: cores and memory, as the machine and its control groups set them.

A group's limit holds for all below it, so every group above ours counts too. Inside a container the
path of our group may be the host's and its files not there: then those of the root are ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from typing import NamedTuple

from tokenmill.errors import UsageError

UNLIMITED = 1 << 60  # version 1 has no word for it but a number near 2**63


class CgroupMemory(NamedTuple):
    """The memory limit that applies to this process, and how often its killer has struck."""

    limit: int  # bytes; -1: none
    used: int  # -1: not known
    kills: int


def cgroup_memory(root: str = "") -> CgroupMemory:
    """The tightest limit."""
    limit, used, kills = -1, -1, 0
    for version, folder in _groups("memory", root):
        names = (
            ("memory.max", "memory.current", "memory.events")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        )
        value = _number(f"{folder}/{names[0]}")
        if 0 <= value < UNLIMITED and (limit < 0 or value < limit):
            limit, used = value, _number(f"{folder}/{names[1]}")
        kills = max(kills, oom_kill_count(f"{folder}/{names[2]}"))
    return CgroupMemory(limit, used, kills)


def cgroup_cores(root: str = "") -> float:
    """The tightest quota of processor time, in cores; 0.0: none."""
    quotas = []
    for version, folder in _groups("cpu", root):
        if version == 2:
            quota, _, period = _content(f"{folder}/cpu.max").partition(" ")
        else:
            quota = _content(f"{folder}/cpu.cfs_quota_us")
            period = _content(f"{folder}/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # none is "max", or -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=0.0)


def oom_kill_count(path: str) -> int:
    """The value behind `oom_kill` in a file of names and values."""
    found = re.search(r"^oom_kill +(\d+)$", _content(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _groups(controller: str, root: str) -> Iterator[tuple[int, str]]:
    """Version and folder of our group, and of each above it."""
    for line in _content(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, base = 2, f"{root}/sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, base = 1, f"{root}/sys/fs/cgroup/{controller}"
            if not os.path.isdir(base):  # mounted by the names of all that share it
                base = f"{root}/sys/fs/cgroup/{controllers}"
        else:
            continue
        while path not in ("/", ""):
            yield version, base + path
            path = os.path.dirname(path)
        yield version, base


def _number(path: str) -> int:
    text = _content(path)
    return int(text) if text.isdigit() else -1


def _content(path: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as file:
        return file.read().strip()
    return ""


def available_cores() -> int:
    """Cores this process may use: affinity, and the cgroup's quota where there is one."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = cgroup_cores()
    return max(1, min(cores, round(quota))) if quota else cores


def memory_allowed() -> int:
    """Bytes this process may use: the machine's memory, or the cgroup's limit where lower."""
    try:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        limit = 8 * 10**9
    group = cgroup_memory().limit
    return min(limit, group) if group > 0 else limit


# Files that a run has open at a time: shards that grow, in the coordinator and once more in a
# worker, maps of the index, libraries. And each worker's pipe, its end and what starts it.
RUN_FILES = 96
WORKER_FILES = 3


def refuse_few_files(workers: int) -> None:
    """Before anything is written: too few open files would end the run somewhere in its middle."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = RUN_FILES + WORKER_FILES * workers
    if limit in (resource.RLIM_INFINITY, -1) or limit >= need:
        return
    raise UsageError(
        f"only {limit} files may be open at a time (ulimit -n), and a run with "
        f"{workers or 'no'} workers needs {need}",
        hint=f"ulimit -n {max(1024, need)}"
        if hard in (resource.RLIM_INFINITY, -1) or hard >= max(1024, need)
        else "ask for a higher limit (ulimit -Hn, LimitNOFILE, --ulimit nofile of a container)",
    )
