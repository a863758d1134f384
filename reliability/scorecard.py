"""One row's run: its cases, its seed, what failed and how to see that again."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any

CASE_SECONDS = 300.0


@dataclass
class Failure:
    case: str
    what: str


@dataclass
class Row:
    """A line of the scorecard."""

    id: str
    promise: str
    mark: str
    value: str
    seconds: float
    cases: int
    failures: list[Failure]

    @property
    def passed(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "pass": self.passed,
            "value": self.value,
            "mark": self.mark,
            "seconds": round(self.seconds, 1),
            "cases": self.cases,
            "failures": [{"case": f.case, "what": f.what} for f in self.failures[:20]],
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any], promise: str) -> Row:
        return cls(
            id=told["id"],
            promise=promise,
            mark=told["mark"],
            value=told["value"],
            seconds=told["seconds"],
            cases=told["cases"],
            failures=[Failure(f["case"], f["what"]) for f in told["failures"]],
        )


@dataclass
class Check:
    """What a row's `run` gets. Every case has a name; with the seed it says all there is to it."""

    scratch: Path
    seed: int = 0
    fast: bool = False
    only: str = ""  # a single case to run again
    processes: int = 2
    cases: int = 0
    failures: list[Failure] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)  # what cases of `each` returned

    def rng(self, name: object) -> random.Random:
        """Random numbers of one case: the same in every run with this seed."""
        return random.Random(f"{self.seed} {name}")

    def scale(self, whole: int, fast: int) -> int:
        return fast if self.fast else whole

    def wants(self, name: str) -> bool:
        return self.only in ("", name)

    def fail(self, case: str, what: str) -> None:
        self.failures.append(Failure(case, what))

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[Path]:
        """One case in this process, with a folder of its own. Ask `wants(name)` before."""
        self.cases += 1
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            yield folder
        except Exception as error:
            self.fail(name, _told(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def each(
        self,
        names: Sequence[str],
        run: Callable[[str, Path], str | None],
        *,
        seconds: float = CASE_SECONDS,
    ) -> None:
        """All cases, in several forked processes; one that raises, dies or hangs has failed.

        `run(name, folder)` gets an empty folder of its own; what it returns is counted.
        """
        wanted = [name for name in names if self.wants(name)]
        self.cases += len(wanted)
        waiting = iter(wanted)
        crew = [_Hand(run, self.scratch) for _ in range(min(self.processes, len(wanted)))]
        busy = {hand.pipe: hand for hand in crew if hand.begin(waiting)}
        while busy:
            for pipe in connection.wait(list(busy), 0.5):
                hand = busy.pop(pipe)  # type: ignore[call-overload]
                told, outcome = hand.result()
                if told:
                    self.fail(hand.name, told)
                elif outcome:
                    self.outcomes[outcome] += 1
                if hand.begin(waiting):
                    busy[hand.pipe] = hand
            for hand in list(busy.values()):
                if time.monotonic() - hand.began > seconds:
                    hand.kill()  # its pipe closes: the loop above takes note
        for hand in crew:
            hand.end()


class _Hand:
    """A forked process that runs cases one after the other."""

    def __init__(self, run: Callable[[str, Path], str | None], scratch: Path) -> None:
        self.run, self.scratch = run, scratch
        self.name, self.began = "", 0.0
        self.process: Any = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()
        # not daemonic: cases start processes of their own
        self.process = context.Process(target=self._loop, args=(there, self.pipe))
        self.process.start()
        there.close()

    def _loop(self, there: Any, here: Any) -> None:
        here.close()
        os.setpgid(0, 0)
        with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
            while name := there.recv():
                folder = Path(tempfile.mkdtemp(dir=self.scratch))
                told, outcome = "", None
                try:
                    outcome = self.run(name, folder)
                except Exception as error:
                    told = _told(error)
                shutil.rmtree(folder, ignore_errors=True)
                there.send((told, outcome))
        os._exit(0)

    def begin(self, names: Iterator[str]) -> bool:
        name = next(names, None)
        if name is None:
            return False
        if not self.process.is_alive():
            self._start()
        self.name, self.began = name, time.monotonic()
        self.pipe.send(name)
        return True

    def result(self) -> tuple[str, str | None]:
        try:
            told, outcome = self.pipe.recv()
            return told, outcome
        except (EOFError, OSError):
            self.process.join(5)
            late = time.monotonic() - self.began
            self.end()
            return f"the case's process ended by itself or was killed ({late:.0f} s)", None

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send("")  # closing is not enough: later hands have inherited the pipe
        self.pipe.close()
        self.process.join(2)
        if self.process.is_alive():
            self.kill()
            self.process.join()


def _told(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return "".join(lines[-3:]).strip()[-2000:]


def run_apart(module: ModuleType, *, seed: int = 0, fast: bool = False) -> Row:
    """One row in a fresh interpreter: what it patches and starts stays there."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "reliability", "--only", module.ID, "--seed", str(seed)]
        done = subprocess.run(
            [*command, "--json", file.name, *(["--fast"] if fast else [])],
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
        )
        told = json.load(file) if os.path.getsize(file.name) else {"rows": []}
    if not told["rows"]:
        failure = Failure("", (done.stdout + done.stderr)[-2000:])
        return Row(module.ID, module.PROMISE, module.MARK, "did not end", 0.0, 0, [failure])
    return Row.from_dict(told["rows"][0], module.PROMISE)


def run_row(module: ModuleType, *, seed: int = 0, fast: bool = False, only: str = "") -> Row:
    """One row of the scorecard, from its module."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"tokenmill-{module.ID}-", dir=base) as scratch:
        check = Check(Path(scratch), seed=seed, fast=fast, only=only)
        try:
            value = str(module.run(check))
        except Exception as error:
            value = "the check itself failed"
            check.fail("", _told(error))
        if check.cases == 0 and not check.failures:
            check.fail(only, "no case of this name" if only else "no case was run")
    return Row(
        id=module.ID,
        promise=module.PROMISE,
        mark=module.MARK,
        value=value,
        seconds=time.monotonic() - began,
        cases=check.cases,
        failures=check.failures,
    )
