"""Real `tokenmill prepare` processes: started, found with all they start, and looked after."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reliability.corpus import dataset_bytes

MARK = "TOKENMILL_RELIABILITY_MARK"
SECONDS = 120.0
_numbers = itertools.count()


class Command:
    """One run of the real command, in a session of its own, as in a terminal of its own.

    A mark in its environment is inherited by all it starts: so they are found even when their
    parents are gone. `planted` is Python that each of them runs when it starts.
    """

    def __init__(
        self,
        inputs: Sequence[Path],
        output: Path,
        options: Sequence[str],
        folder: Path,
        *,
        env: dict[str, str] | None = None,
        planted: str = "",
    ) -> None:
        self.output = output
        number = next(_numbers)
        self.mark = f"{os.getpid()}-{number}-{time.monotonic_ns()}"
        self.temporary = folder / f"t{number}"  # multiprocessing keeps its sockets here
        self.temporary.mkdir()
        self.log = folder / f"log-{self.mark}"
        path = list(filter(None, sys.path))
        if planted:
            site = folder / f"site-{self.mark}"
            site.mkdir()
            (site / "sitecustomize.py").write_text(planted)
            path.insert(0, str(site))
        self.arguments = ["prepare", *map(str, inputs), "-o", str(output), *options]
        self.began = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tokenmill", *self.arguments],
                env={
                    **os.environ,
                    "TOKENMILL_SYNC_SECONDS": "0.05",
                    "TMPDIR": str(self.temporary),
                    "PYTHONPATH": os.pathsep.join(path),
                    MARK: self.mark,
                    **(env or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=_mind_ctrl_c,  # noqa: PLW1509 - no thread runs here
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"still running after {seconds} s:\n{self.said}") from None

    def until(self, true: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Wait for something that happens while it runs."""
        deadline = time.monotonic() + seconds
        while not true():
            if not self.running:
                raise AssertionError(f"it ended before {what}:\n{self.said}")
            if time.monotonic() > deadline:
                self.end()
                raise AssertionError(f"not in {seconds} s: {what}\n{self.said}")
            time.sleep(0.005)

    # --- its family --------------------------------------------------------------------------

    def fork_server(self) -> int | None:
        for child in _children(self.pid):
            if "multiprocessing.forkserver" in _command_line(child):
                return child
        return None

    def workers(self) -> list[int]:
        """Children of the fork server; or of the coordinator, but for its helpers."""
        server = self.fork_server()
        if server is not None:
            return _children(server)
        helpers = ("resource_tracker", "multiprocessing.forkserver")
        return [
            child
            for child in _children(self.pid)
            if not any(name in _command_line(child) for name in helpers)
        ]

    def family(self) -> list[int]:
        """All that bear the mark and live, the coordinator too."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                    if f"{MARK}={self.mark}".encode() in file.read():
                        found.append(int(name))
        return found

    def no_orphan(self, seconds: float = 5.0) -> None:
        """Fork server and resource tracker end when they notice: they get a moment."""
        deadline = time.monotonic() + seconds
        while left := self.family():
            if time.monotonic() > deadline:
                lines = [f"{pid}: {_command_line(pid)}" for pid in left]
                self.end()
                raise AssertionError("processes outlive the run:\n" + "\n".join(lines))
            time.sleep(0.01)

    def end(self) -> None:
        """Whatever is left of it, by its mark."""
        for pid in self.family():
            kill(pid)
        self.process.wait()

    # --- what it made ------------------------------------------------------------------------

    def check(self, expected: dict[str, bytes], codes: Sequence[int] = (0,)) -> dict[str, object]:
        """It has ended well, with these files and no others, and with nothing left over."""
        code = self.wait()
        assert code in codes, f"exit code {code}:\n{self.said}"
        assert "Traceback" not in self.said, self.said
        self.no_orphan()
        same(self.output, expected)
        self.no_temporary_files()
        record: dict[str, object] = json.loads((self.output / "run.json").read_bytes())
        return record

    def no_temporary_files(self) -> None:
        left = [str(p) for p in self.temporary.rglob("*")]
        assert not left, f"left in the folder for temporary files: {left}"


def _mind_ctrl_c() -> None:
    """A shell tells its background jobs to ignore it, and they their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """False when it is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def same(output: Path, expected: dict[str, bytes]) -> None:
    found = dataset_bytes(output)
    assert found.keys() == expected.keys(), f"{sorted(found)} instead of {sorted(expected)}"
    different = [name for name in found if found[name] != expected[name]]
    assert not different, f"other content: {different}"


def finished(output: Path) -> bool:
    """The dataset is there: what follows reads no journal."""
    return (output / "manifest.json").exists()


def _children(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
                state, parent, *_ = file.read().rpartition(")")[2].split()
                if int(parent) == pid and state != "Z":
                    found.append(int(name))
    return found


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


_PLANT = """
import functools, os, signal, sys, time

def fault():
    {fault}

def planted(module):
    *owners, last = {name!r}.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part)
    right = getattr(owner, last)
    @functools.wraps(right)
    def wrong(*args, **keywords):
        if {when}:
            try:
                fd = os.open({flag!r}, os.O_CREAT | os.O_WRONLY | ({always} or os.O_EXCL))
                os.write(fd, f"{{time.monotonic()}} {{os.getpid()}}".encode())
                os.close(fd)
            except FileExistsError:
                pass
            else:
                fault()
        return right(*args, **keywords)
    setattr(owner, last, wrong)

class Planter:
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        import importlib.util
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        right = spec.loader.exec_module
        def exec_module(module):
            right(module)
            planted(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Planter())
"""


def plant(where: str, fault: str, flag: Path, *, when: str = "True", always: bool = False) -> str:
    """Python for `Command(planted=...)`: a function that does some harm before what it does.

    `where` is module:name; `fault` and `when` are Python that sees the call as `args`. The flag is
    a file that tells the moment and the process. Once in all processes, or always.
    """
    module, _, name = where.partition(":")
    values = {"module": module, "name": name, "fault": fault, "flag": str(flag), "when": when}
    return _PLANT.format(**values, always=int(always))


def planted_moment(flag: Path) -> tuple[float, int] | None:
    """When the harm was done (monotonic), and in which process."""
    try:
        moment, pid = flag.read_text().split()
    except (OSError, ValueError):
        return None
    return float(moment), int(pid)
