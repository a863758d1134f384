"""R5: a worker that is dead, stopped or stuck is noticed and replaced; a signal ends the command.

Faults are planted where a worker encodes, in every start method, and the time is taken from the
harm to the line that tells of it. Signals come in every phase of a run, each of them made long.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from reliability import corpus
from reliability.corpus import durable_units
from reliability.processes import (
    Command,
    finished,
    kill,
    plant,
    planted_moment,
    same,
)
from reliability.scorecard import Check

ID = "R5"
PROMISE = "never hangs"
MARK = (
    "dead or stopped noticed in 5 s, stuck when its time is over, timers restart, under twice the "
    "clean time; every signal in every phase ends it in 5 s, resumable"
)

NOTICE_SECONDS = 5.0
STUCK_SECONDS = 5.0  # 60 in earnest; a busy machine may need two for the imports alone
METHODS = ("forkserver", "fork", "spawn")
FAULTS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "os._exit(7)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stuck": "time.sleep(1000)",
}
ENCODE = "tokenmill.engines.unit:UnitWorker.encode_batch"
IN_THE_MIDDLE = "args[1].number == 5"
LONG = "time.sleep(30)"

# Where a signal finds the command: what is made long, how, and further options.
PHASES: dict[str, tuple[str, str, list[str]]] = {
    "planning": ("tokenmill.inputs.opening.identify:_check_magic", "time.sleep(0.4)", []),
    "planning, one hanging file": ("tokenmill.inputs.opening.identify:_fingerprint", LONG, []),
    "a worker's birth": ("tokenmill.engines.local.worker:run_worker", "time.sleep(4)", []),
    "worker start-up": ("tokenmill.engines.unit:UnitWorker.__init__", LONG, []),
    "encoding": (ENCODE, LONG, []),
    "encoding inline": (ENCODE, "time.sleep(0.5)", ["--workers", "0"]),
    "encoding inline, one hanging call": (ENCODE, LONG, ["--workers", "0"]),
    "placing": ("tokenmill.engines.unit:UnitWorker.place", LONG, []),
    "syncing": ("tokenmill.output.durability:UnitLog._sync", LONG, []),
    # The coordinator syncs for a worker that is slow at it, and may be done by then.
    "a worker's sync": ("tokenmill.output.durability:WorkerSync._sync", LONG, []),
    "checking pieces": ("tokenmill.output.files:is_intact", "time.sleep(0.4)", []),
    "committing": ("tokenmill.system.disk:publish", "time.sleep(0.2)", []),
    "committing, for long": ("tokenmill.system.disk:publish", LONG, []),
}
# The other worker may have done all of the small job by then.
MAY_FINISH = ("committing", "committing, for long", "a worker's sync", "a worker's birth")
ALWAYS = ("planning", "encoding inline", "checking pieces", "committing")


def run(check: Check) -> str:
    inputs = small_files(check.scratch / "inputs")
    clean = Clean(inputs, check.scratch)
    faults = [f"{how} {METHODS[i % 3]}" for i, how in enumerate(FAULTS)]
    more = [f"{how} {method}" for how in FAULTS for method in METHODS]
    faults += [name for name in more if name not in faults and not check.fast]
    timers = list(TIMERS)
    signals = [f"{how} {phase}" for phase in PHASES for how in ("Ctrl-C", "SIGTERM")]
    moments = [f"random moment {i}" for i in range(check.scale(24, 2))]
    if check.fast:  # every second phase, by the one signal or the other
        timers = ["everything stopped", "left behind forkserver", "fork server SIGKILL"]
        signals = [name for i, name in enumerate(signals) if i % 2 == (i // 2) % 2][::2]
    names = [*faults, *timers, *signals, *moments]
    notes = check.scratch / "notes"
    notes.mkdir()

    def one(name: str, folder: Path) -> None:
        how, _, rest = name.partition(" ")
        if name in faults:
            took = fault(how, rest, clean, folder)
        elif name in timers:
            took = TIMERS[name](clean, folder)
        elif name in signals:
            took = interrupted(how, rest, clean, folder, check.rng(name))
        else:
            took = at_random(clean, folder, check.rng(name))
        (notes / name).write_text(str(took))

    check.each(names, one)
    obeyed = sum((notes / name).exists() for name in [*signals, *moments])
    slowest = {
        kind: max(
            (float((notes / n).read_text()) for n in group if (notes / n).exists()), default=0
        )
        for kind, group in (
            ("dead", [n for n in faults if not n.startswith(("SIGSTOP", "stuck"))]),
            ("stopped", [n for n in faults if n.startswith("SIGSTOP")]),
            ("stuck", [n for n in faults if n.startswith("stuck")]),
            ("signal", [*signals, *moments]),
        )
    }
    return (
        f"noticed at the latest: dead {slowest['dead']:.1f} s, stopped {slowest['stopped']:.1f} s, "
        f"stuck {slowest['stuck']:.1f} s (of {STUCK_SECONDS:.0f} allowed); "
        f"{obeyed} signals obeyed in {slowest['signal']:.1f} s at most"
    )


def small_files(folder: Path) -> list[Path]:
    folder.mkdir()
    return [
        corpus.write_parquet(folder / f"{i:02}.parquet", corpus.documents(600, f"r5 {i}"), 100)
        for i in range(12)
    ]


class Clean:
    """The undisturbed run: its files, and how long it takes just now."""

    options = ("--val", "0.01")

    def __init__(self, inputs: list[Path], folder: Path) -> None:
        self.inputs = inputs
        self.files: dict[str, bytes] = {}
        self.run("forkserver", folder)
        self.files = corpus.dataset_bytes(folder / "clean")
        shutil.rmtree(folder / "clean")

    def start(self, output: Path, folder: Path, *options: str, **keywords: object) -> Command:
        options = ("--workers", "2", *self.options, *options)
        return Command(self.inputs, output, options, folder, **keywords)  # type: ignore[arg-type]

    def run(self, method: str, folder: Path) -> float:
        command = self.start(folder / "clean", folder, "--start-method", method)
        assert command.wait() == 0, command.said
        return time.monotonic() - command.began


def stuck_after(seconds: float = STUCK_SECONDS) -> dict[str, str]:
    return {"TOKENMILL_STUCK_SECONDS": str(seconds)}


# --- dead, stopped, stuck ----------------------------------------------------------------------


def fault(how: str, method: str, clean: Clean, folder: Path) -> float:
    """The harm is noticed in time, the job is done in time, and nothing else is different."""
    flag = folder / "flag"
    before = clean.run(method, folder)
    shutil.rmtree(folder / "clean")
    command = clean.start(
        folder / "o", folder, "--start-method", method,
        env=stuck_after() if how == "stuck" else {},
        planted=plant(ENCODE, FAULTS[how], flag, when=IN_THE_MIDDLE),
    )  # fmt: skip
    command.until(lambda: "; replaced" in command.said, "the harm was noticed")
    noticed = time.monotonic()
    command.check(clean.files)
    ended = time.monotonic()
    moment = planted_moment(flag)
    assert moment is not None
    took = noticed - moment[0]
    allowed = STUCK_SECONDS + 2 if how == "stuck" else NOTICE_SECONDS
    assert took < allowed, f"noticed after {took:.1f} s"
    seconds = ended - command.began - took
    if seconds >= 2 * before:  # others on this machine may have come in between: ask again
        before = max(before, clean.run(method, folder))
    assert seconds < 2 * before, f"{seconds:.1f} s, undisturbed {before:.1f} s"
    return took


def everything_stopped(clean: Clean, folder: Path) -> float:
    """As by Ctrl-Z: nobody is late who was not let work."""
    return stopped(clean, folder, os.killpg)


def coordinator_stopped(clean: Clean, folder: Path) -> float:
    return stopped(clean, folder, os.kill)


def stopped(clean: Clean, folder: Path, send: Callable[[int, int], None]) -> float:
    flag = folder / "flag"
    command = clean.start(
        folder / "o", folder, env=stuck_after(),
        planted=plant(ENCODE, "time.sleep(1)", flag, when=IN_THE_MIDDLE),
    )  # fmt: skip
    command.until(lambda: planted_moment(flag), "a worker was at work")
    send(command.pid, signal.SIGSTOP)
    time.sleep(STUCK_SECONDS + 2)
    send(command.pid, signal.SIGCONT)
    record = command.check(clean.files)
    assert record["retries"] == 0, f"workers were replaced:\n{command.said}"
    return 0.0


def stuck_at_start_up(clean: Clean, folder: Path) -> float:
    flag = folder / "flag"
    init = "tokenmill.engines.unit:UnitWorker.__init__"
    planted = plant(init, "time.sleep(1000)", flag)
    # One worker: two of them, and the other one would do all the work meanwhile.
    command = clean.start(
        folder / "o", folder, "--workers", "1", env=stuck_after(), planted=planted
    )
    record = command.check(clean.files)
    assert record["retries"] == 1, command.said
    return 0.0


def fork_server_killed(clean: Clean, folder: Path) -> float:
    """With a worker dead as well: nobody tells how it ended, and the next one must be started."""
    command = clean.start(folder / "o", folder)
    # Not a worker alone: on its way to becoming the fork server, a process looks like one.
    command.until(lambda: command.fork_server() and command.workers(), "a worker was there")
    workers, server = command.workers(), command.fork_server()
    assert server is not None
    kill(server)
    kill(workers[0])
    code = command.wait(30)
    assert code == 0, command.said
    command.no_orphan()
    same(folder / "o", clean.files)
    return 0.0


def left_behind(clean: Clean, folder: Path, method: str) -> float:
    """A stopped worker does not see that its coordinator is gone; the kernel ends it."""
    flag, output = folder / "flag", folder / "o"
    stop_it = plant(ENCODE, FAULTS["SIGSTOP"], flag, when=IN_THE_MIDDLE)
    command = clean.start(output, folder, "--start-method", method, planted=stop_it)
    command.until(lambda: planted_moment(flag), "a worker was stopped")
    kill(command.pid)
    command.wait()
    command.no_orphan()
    command.no_temporary_files()
    clean.start(output, folder).check(clean.files)
    return 0.0


TIMERS: dict[str, Callable[[Clean, Path], float]] = {
    "everything stopped": everything_stopped,
    "coordinator stopped": coordinator_stopped,
    "stuck at start-up": stuck_at_start_up,
    "left behind forkserver": lambda clean, folder: left_behind(clean, folder, "forkserver"),
    "left behind fork": lambda clean, folder: left_behind(clean, folder, "fork"),
    "left behind spawn": lambda clean, folder: left_behind(clean, folder, "spawn"),
    "fork server SIGKILL": fork_server_killed,
}


# --- signals -----------------------------------------------------------------------------------


def interrupted(how: str, phase: str, clean: Clean, folder: Path, rng: random.Random) -> float:
    """A phase made long, a signal in the middle of it."""
    where, harm, options = PHASES[phase]
    flag, output = folder / "flag", folder / "an output's folder"
    if phase == "checking pieces":
        leave_something(clean, output, folder)
    planted = plant(where, harm, flag, always=phase in ALWAYS)
    command = clean.start(output, folder, *options, planted=planted)
    command.until(lambda: planted_moment(flag), f"it was {phase}")
    time.sleep(rng.uniform(0, 0.3))
    took = stop(command, how, rng)
    check_stopped(command, how, clean, folder, may_finish=phase in MAY_FINISH)
    return took


def at_random(clean: Clean, folder: Path, rng: random.Random) -> float:
    """At no chosen moment, from when the command minds signals at all."""
    how = rng.choice(["Ctrl-C", "SIGTERM"])
    method = rng.choice(METHODS)
    seconds = clean.run(method, folder)
    shutil.rmtree(folder / "clean")
    command = clean.start(folder / "an output's folder", folder, "--start-method", method)
    command.until(lambda: minds_signals(command.pid), "it minded signals")
    time.sleep(rng.uniform(0, seconds))
    took = stop(command, how, rng)
    check_stopped(command, how, clean, folder, may_finish=True)
    return took


def leave_something(clean: Clean, output: Path, folder: Path) -> None:
    """A job that was killed when some units were durable."""
    flag = folder / "left"
    planted = plant(ENCODE, LONG, flag, when="args[1].number == 8")
    command = clean.start(output, folder, "--workers", "1", planted=planted)
    command.until(lambda: len(durable_units(output)) >= 5, "units were durable")
    kill(command.pid)
    command.wait()
    command.no_orphan()


def minds_signals(pid: int) -> bool:
    """Python itself catches SIGINT, but not SIGTERM."""
    with open(f"/proc/{pid}/status") as file:
        caught = next(line for line in file if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def stop(command: Command, how: str, rng: random.Random) -> float:
    """Ctrl-C reaches all processes of the terminal, sometimes twice; SIGTERM only the one."""
    began = time.monotonic()
    if how == "SIGTERM":
        kill(command.pid, signal.SIGTERM)
    else:
        for pause in (0.0, rng.choice([0.0, 0.01, 0.2, 1.0]))[: rng.randint(1, 2)]:
            time.sleep(pause)
            try:
                os.killpg(command.pid, signal.SIGINT)
            except ProcessLookupError:
                break
    command.wait(20)
    took = time.monotonic() - began
    assert took < 5, f"ended after {took:.1f} s:\n{command.said}"
    return took


def check_stopped(
    command: Command, how: str, clean: Clean, folder: Path, *, may_finish: bool
) -> None:
    """The code, the words, nobody left; and the command it printed leads to the same dataset."""
    code, said = command.wait(), command.said
    assert "Traceback" not in said, said
    command.no_orphan()
    if code == 0 and may_finish:
        assert finished(command.output)
    else:
        assert code == (143 if how == "SIGTERM" else 130), f"exit code {code}:\n{said}"
        # Where nothing is done yet, there is nothing to resume.
        known = ("resume with: ", "run it again with: ")
        line = next((line for line in said.splitlines() if line.startswith(known)), "")
        words = shlex.split(line.partition(" with: ")[2])
        assert words[-len(command.arguments) :] == command.arguments, said
        done = subprocess.run(words, check=False, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
    same(command.output, clean.files)
