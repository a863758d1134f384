"""Run a contender as a process: its seconds, processor seconds and memory, of its whole tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36


class Cost(NamedTuple):
    """What a command and all its descendants took."""

    seconds: float  # by the clock
    processor: float  # user and system seconds
    largest_mb: float  # memory of the largest process, shared pages included


def cost(command: list[str]) -> Cost:
    """Run a command to its end, its orphans included.

    A child of ours runs it as a "subreaper": processes whose parent has ended become its
    children, and it waits for every one of them. So the workers of a fork server count, too.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            began = time.monotonic()
            status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
            seconds = time.monotonic() - began
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.wait()
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            told = f"{seconds} {used.ru_utime + used.ru_stime} {used.ru_maxrss / 1000}"
            os.write(write, told.encode())
        finally:
            os._exit(status)
    os.close(write)
    found = os.read(read, 200).decode().split()
    os.close(read)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"failed: {' '.join(command)}")
    return Cost(*map(float, found))


def session_pss(session: int) -> int:
    """Bytes of memory of all processes of a session; shared pages are counted once (PSS)."""
    total = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_bytes()
            if int(stat[stat.rindex(b")") + 2 :].split()[3]) != session:
                continue
            rollup = Path(f"/proc/{entry}/smaps_rollup").read_text()
        except (OSError, ValueError):
            continue  # it ended in between
        total += sum(int(x.split()[1]) for x in rollup.splitlines() if x.startswith("Pss:"))
    return total * 1024


def tree_rss(pid: int) -> int:
    """The same where there is no /proc: resident memory, shared pages counted again and again."""
    import psutil

    try:
        root = psutil.Process(pid)
        return sum(p.memory_info().rss for p in (root, *root.children(recursive=True)))
    except psutil.Error:
        return 0


def kill_group(pid: int) -> None:
    """End what is left of a contender: it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def watch(
    pid: int, ended: threading.Event, timeout: float, sample_seconds: float, peak: list[int]
) -> None:
    """Sample memory until the process ends; kill it when its time is up.

    Sampling walks the page tables of every process and slows down what it watches, most of all
    what has many pages or processes: 0 seconds between samples means not to.

    A thread does this so that the main thread can block in `wait`: with a timeout, `wait` polls,
    and the time of a run of one second would be wrong by up to 50 ms.
    """
    measure = session_pss if Path("/proc/self/smaps_rollup").exists() else tree_rss
    deadline = time.monotonic() + timeout
    while not ended.wait(sample_seconds or 1.0):
        if sample_seconds:
            peak[0] = max(peak[0], measure(pid))
        if time.monotonic() > deadline:
            kill_group(pid)
            return


def execute(
    command: list[str], work: Path, timeout: float, sample_seconds: float
) -> tuple[int, float, int]:
    """Run one process to its end: exit code, seconds, peak memory of the whole tree (or 0)."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    env = {**os.environ, **offline, "HF_HOME": str(work / "hf_home")}
    ended, peak = threading.Event(), [0]
    with open(work / "stdout", "wb") as out, open(work / "stderr", "wb") as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            start_new_session=True,
        )
        arguments = (process.pid, ended, timeout, sample_seconds, peak)
        watcher = threading.Thread(target=watch, args=arguments, daemon=True)
        watcher.start()
        try:
            code = process.wait()
            seconds = time.perf_counter() - start
        finally:
            ended.set()
            watcher.join()
            kill_group(process.pid)
    return code, seconds, peak[0]
