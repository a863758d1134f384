"""R13: several coordinators on one output, and workers whose coordinator is long gone.

One coordinator at a time: the others are refused, whenever they come. A worker that was stopped,
missed the death of its coordinator and is continued while another one is at work, or has finished,
or has begun something else in the same folder, writes where it was told to write; it must not
change a byte of what the others make.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenmill
from reliability import corpus
from reliability.corpus import durable_units
from reliability.processes import Command, kill, plant, planted_moment, same
from reliability.scorecard import Check
from tokenmill.errors import RefusedError
from tokenmill.output.workspace import Workspace

ID = "R13"
PROMISE = "zombies"
MARK = "a second coordinator is refused with exit 2; a worker continued after its time: identical"

RACERS = 20
ZOMBIES = ("before", "at work", "after", "overwritten")
PLANS: dict[str, list[str]] = {"a": ["--val", "0.01"], "b": ["--eot", "prepend", "--val", "none"]}


def run(check: Check) -> str:
    folder = check.scratch / "inputs"
    folder.mkdir()
    inputs = [
        corpus.write_jsonl(folder / f"{i:02}.jsonl", corpus.documents(500, f"r13 {i}"))
        for i in range(10)
    ]
    clean = {plan: undisturbed(inputs, plan, check.scratch) for plan in PLANS}
    seconds = ["second coordinator", "stale locks", "lock"]
    races = [f"race {i}" for i in range(check.scale(6, 1))]
    handovers = [f"handover {i}" for i in range(check.scale(4, 1))]
    zombies = [f"zombie {when} {i}" for i in range(check.scale(4, 1)) for when in ZOMBIES]
    if check.fast:
        zombies = zombies[1:]
    notes = check.scratch / "notes"
    notes.mkdir()

    def one(name: str, folder: Path) -> None:
        rng = check.rng(name)
        kind, _, rest = name.partition(" ")
        if kind == "race":
            race(inputs, clean["a"], folder, rng)
        elif kind == "handover":
            count = handover(inputs[:2], folder, rng)
            (notes / name).write_text(str(count))
        elif kind == "zombie":
            zombie(rest.rpartition(" ")[0], inputs, clean, folder, rng)
        else:
            {"second": second, "stale": stale, "lock": lock}[kind](inputs, clean["a"], folder)

    check.each([*seconds, *races, *handovers, *zombies], one)
    refused = sum(int(path.read_text()) for path in notes.iterdir())
    return (
        f"{len(races)} races of {RACERS}: one winner each; {refused} refused in {len(handovers)} "
        f"handovers; {len(zombies)} zombies wrote late; {len(check.failures)} not identical"
    )


def undisturbed(inputs: list[Path], plan: str, scratch: Path) -> dict[str, bytes]:
    command = Command(inputs, scratch / plan, ["--quiet", *PLANS[plan]], scratch)
    assert command.wait() == 0, command.said
    return corpus.dataset_bytes(scratch / plan)


# --- one coordinator at a time -----------------------------------------------------------------


def second(inputs: list[Path], clean: dict[str, bytes], folder: Path) -> None:
    """Refused with the first one's process id, also with --overwrite, also for another plan."""
    go, flag = folder / "go", folder / "flag"
    waiting = f"\n    while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    encode = "tokenmill.engines.unit:UnitWorker.encode_batch"
    output = folder / "o"
    first = Command(inputs, output, PLANS["a"], folder, planted=plant(encode, waiting, flag))
    first.until(lambda: planted_moment(flag), "the first one was at work")
    for options in (PLANS["a"], [*PLANS["a"], "--overwrite"], [*PLANS["b"], "--overwrite"]):
        other = Command(inputs, output, options, folder)
        assert other.wait() == 2, other.said
        assert f"another tokenmill is working in this folder (process {first.pid})" in other.said, (
            other.said
        )
        other.no_orphan()
    go.touch()
    first.check(clean)


def stale(inputs: list[Path], clean: dict[str, bytes], folder: Path) -> None:
    """What a lock file says is for people; who holds it, the kernel knows."""
    output = folder / "o"
    command = Command(inputs, output, PLANS["a"], folder)
    command.until((output / ".tokenmill" / "plan.json").exists, "it had begun")
    kill(command.pid)
    command.wait()
    lock = output / ".tokenmill" / "lock"
    assert lock.read_text() == str(command.pid)
    command = Command(inputs, output, PLANS["a"], folder)  # at once: its workers may still live
    command.check(clean)
    for content in ("", "1", str(os.getpid()), "no number", "9" * 30):
        shutil.rmtree(output)
        lock.parent.mkdir(parents=True)
        lock.write_text(content)
        result = tokenmill.prepare(inputs, output, val=0.01, workers=0, quiet=True)
        assert not result.already_done
        same(output, clean)


def lock(_inputs: list[Path], _clean: dict[str, bytes], folder: Path) -> None:
    """Taken, the work folder removed, released: over and over, by several at once."""
    workspace, told = Workspace(folder / "o"), folder / "told"
    told.mkdir()

    def contender(number: int) -> None:
        held = 0
        while held < 150:
            try:
                taken = workspace.lock()
            except RefusedError as error:
                if not re.search(r"\(process \d+\)", error.message):
                    raise
                continue
            held += 1
            inside = folder / "inside"
            inside.touch(exist_ok=False)
            inside.unlink()
            workspace.remove_work()
            taken.release()
        write_whole(told / str(number), str(held))

    together(4, contender)
    assert len(list(told.iterdir())) == 4, "one of them failed: see its traceback"
    assert not workspace.work.exists(), "a work folder is left"


def race(inputs: list[Path], clean: dict[str, bytes], folder: Path, rng: random.Random) -> None:
    """All at the same instant; the one that wins holds on until the others have been told."""
    output, told = folder / "o", folder / "told"
    told.mkdir()
    if rng.random() < 0.5:  # a dataset of another plan is there, to be overwritten
        tokenmill.prepare(inputs[:1], output, workers=0, val="none", quiet=True)
    overwrite = output.exists()
    start = multiprocessing.get_context("fork").Barrier(RACERS)

    def hold(_: object) -> None:
        deadline = time.monotonic() + 60
        while len(list(told.iterdir())) < RACERS - 1 and time.monotonic() < deadline:
            time.sleep(0.01)

    def racer(number: int) -> None:
        start.wait()
        try:
            tokenmill.prepare(
                inputs, output, val=0.01, workers=0, quiet=True, overwrite=overwrite, on_plan=hold
            )
            outcome = "won"
        except RefusedError as error:
            outcome = error.message
        write_whole(told / str(number), json.dumps([os.getpid(), outcome]))

    together(RACERS, racer)
    outcomes = [json.loads(path.read_bytes()) for path in told.iterdir()]
    assert len(outcomes) == RACERS, f"{len(outcomes)} of {RACERS} came back"
    winners = [pid for pid, outcome in outcomes if outcome == "won"]
    assert len(winners) == 1, outcomes
    for pid, outcome in outcomes:
        expected = f"another tokenmill is working in this folder (process {winners[0]})"
        assert pid in winners or expected in outcome, outcome
    same(output, clean)


def handover(inputs: list[Path], folder: Path, rng: random.Random) -> int:
    """They come just when another one ends: done, or refused, and nothing else; returns how
    often refused."""
    output, told = folder / "o", folder / "told"
    told.mkdir()
    seeds = [rng.random() for _ in range(4)]

    def contender(number: int) -> None:
        mine, refused = random.Random(seeds[number]), 0
        for _ in range(25):
            try:
                overwrite = mine.random() < 0.5
                tokenmill.prepare(
                    inputs, output, workers=0, quiet=True, val=0.1, overwrite=overwrite
                )
            except RefusedError as error:
                if "another tokenmill is working in this folder" not in error.message:
                    raise
                refused += 1
                time.sleep(mine.uniform(0, 0.02))
        write_whole(told / str(number), str(refused))

    together(len(seeds), contender)
    assert len(list(told.iterdir())) == len(seeds), "one of them failed: see its traceback"
    tokenmill.prepare(inputs, output, workers=0, quiet=True, val=0.1)
    tokenmill.prepare(inputs, folder / "clean", workers=0, quiet=True, val=0.1)
    same(output, corpus.dataset_bytes(folder / "clean"))
    return sum(int(path.read_text()) for path in told.iterdir())


def together(count: int, work: Callable[[int], None]) -> None:
    context = multiprocessing.get_context("fork")
    processes: list[Any] = [context.Process(target=work, args=(i,)) for i in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()


def write_whole(path: Path, content: str) -> None:
    """The name is there when the content is."""
    temporary = path.parent.parent / f"{path.name}.tmp"
    temporary.write_text(content)
    temporary.rename(path)


# --- a worker whose coordinator is gone ----------------------------------------------------------


def zombie(
    when: str,
    inputs: list[Path],
    clean: dict[str, dict[str, bytes]],
    folder: Path,
    rng: random.Random,
) -> None:
    """Stopped just before it writes, with the fork server whose end would end it too."""
    flag, wrote, output = folder / "flag", folder / "wrote", folder / "o"
    place = "tokenmill.engines.unit:UnitWorker.place"
    harm = f"os.kill(os.getpid(), signal.SIGSTOP); open({str(wrote)!r}, 'w').close()"
    unit = f"args[1].summary.unit.source == {rng.randint(0, 7)}"
    options = [*PLANS["a"], "--workers", "2"]
    old = Command(inputs, output, options, folder, planted=plant(place, harm, flag, when=unit))
    old.until(lambda: planted_moment(flag), "the worker was about to write")
    moment = planted_moment(flag)
    server = old.fork_server()
    assert moment is not None
    assert server is not None
    kill(server, signal.SIGSTOP)
    kill(old.pid)
    old.wait()
    assert moment[1] in old.family(), "the zombie is gone"
    try:
        new = "b" if when == "overwritten" else "a"
        revive = Reviver(moment[1], wrote)
        if when == "before":
            revive()
        before = len(durable_units(output))
        second = Command(
            inputs, output, [*PLANS[new], "--workers", "2", *(["--overwrite"] * (new == "b"))],
            folder, planted=slowly(folder),
        )  # fmt: skip
        if when in ("at work", "overwritten"):
            plan = output / ".tokenmill" / "plan.json"
            second.until(lambda: plan.exists() and (folder / "slow").exists(), "it was at work")
            time.sleep(rng.uniform(0, 0.3))
            revive()
        record = second.check(clean[new])
        if when != "overwritten":
            assert record["units_resumed"] == before, f"{before} units were durable"
        if when == "after":
            revive()
        kill(server, signal.SIGCONT)
        old.no_orphan()
        same(output, clean[new])
        assert tokenmill.verify(output).ok
    finally:
        old.end()


def slowly(folder: Path) -> str:
    """A second of work at least: time for the dead to come back."""
    encode = "tokenmill.engines.unit:UnitWorker.encode_batch"
    return plant(encode, "time.sleep(0.1)", folder / "slow", always=True)


class Reviver:
    """Let the stopped worker go on, and make sure that it does."""

    def __init__(self, pid: int, wrote: Path) -> None:
        self.pid, self.wrote = pid, wrote

    def __call__(self) -> None:
        assert kill(self.pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while not self.wrote.exists():
            assert time.monotonic() < deadline, "the zombie did not go on"
            time.sleep(0.005)
