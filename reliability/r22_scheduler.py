"""R22: random schedules of workers, deaths and messages. `Dispatch` gives every unit its place,
ends every search, lets nobody idle, and a message costs the same with 1,000 workers."""

from __future__ import annotations

import heapq
import os
import random
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from reliability.mutants import SCHEDULER_MUTANTS, install_change
from reliability.scorecard import Check

if TYPE_CHECKING:  # a mutant must be in place before the package is imported
    from reliability.scheduler_model import Scene

ID = "R22"
PROMISE = "the scheduler loses nothing, whatever happens"
MARK = "10,000 schedules, all mutants caught, constant cost per message"
SCHEDULES_A_CASE = 500
MUTANT_SCHEDULES = 3000
FEW, MANY = 10, 1000  # workers
MAX_RATIO = 1.3  # of the cost per message
SEGMENTS_A_WORKER = 4


def scenes() -> st.SearchStrategy[Scene]:
    from reliability.scheduler_model import Row, Scene
    from tokenmill.inputs.segments import UnitId

    def scene(draw: Any) -> Scene:
        fatal = st.sampled_from(["", "", "", "fault", "kill", "checked"])
        if not draw(st.booleans()):
            fatal = st.just("")
        stop = draw(st.integers(0, 3)) == 0
        row = st.builds(Row, st.integers(1 if stop else 0, 9), fatal)
        unit = st.lists(row, max_size=5).map(tuple)
        segments = st.lists(st.lists(unit, min_size=1, max_size=3), max_size=3)
        sources = draw(st.lists(segments, min_size=1, max_size=3))
        units = [
            UnitId(number, segment, part)
            for number, segments in enumerate(sources)
            for segment, parts in enumerate(segments)
            for part in range(len(parts))
        ]
        broken = draw(st.sampled_from(units)) if units and draw(st.integers(0, 9)) == 0 else None
        return Scene(
            sources,
            workers=draw(st.integers(1, 5)),
            limit_docs=draw(st.sampled_from([0, 0, 0, 1, 3, 8])),
            limit_tokens=draw(st.sampled_from([0, 0, 0, 1, 20, 60])),
            on_bad_row="stop" if stop else "quarantine",
            broken=broken,
            kills=draw(st.integers(0, 3)),
            stalls=draw(st.integers(0, 2)),
            resumes=draw(st.integers(0, 2)),
            waits=draw(st.integers(0, 9)),
            elsewhere=draw(st.booleans()),
            noise=draw(st.booleans()),
            files=draw(st.sampled_from([0, 0, 1, 3, 8])),
            fatal_file=draw(st.sampled_from([-1, -1, -1, -1, -1, 0])),
            seed=draw(st.integers(0, 2**32)),
        )

    return st.composite(scene)()


def schedules(count: int, number: int, *, shrink: bool = True) -> None:
    """Draw and play so many; raises with the smallest one that fails."""
    from reliability.scheduler_model import play

    chosen = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        suppress_health_check=list(HealthCheck),
    )

    def one(scene: Scene) -> None:
        play(scene)

    seed(number)(chosen(given(scenes())(one)))()


# --- what a message costs ------------------------------------------------------------------------


def cost_of_a_message(workers: int, segments: int) -> float:
    """Steps of the interpreter in `Dispatch`, for each message, under a simulated clock."""
    from reliability.scheduler_model import ENDS, Row, Scene, World

    rng, counter = random.Random(workers), _StepCounter()
    world = World(Scene([[[(Row(3), Row(4))] for _ in range(segments)]], workers=workers))
    dispatch, sent = world.dispatch, 0
    moments = [(rng.random(), number) for number in world.workers]  # when a worker does something
    heapq.heapify(moments)
    while not dispatch.finished:
        now, number = heapq.heappop(moments)
        worker = world.workers[number]
        if rng.random() < 0.001:  # a death here and there
            del world.workers[number]
            counter.count(dispatch.died, number, ENDS["outside"])
            world._start_worker()
            number = world.started
            worker = world.workers[number]
        worker.step()
        if worker.outbox:
            sent += 1
            counter.count(dispatch.received, number, worker.outbox.popleft())
        # The first segment is slow: all others wait for it, and then get their places together.
        slow = 50.0 if number == 1 and now < 50 else 1.0
        if not worker.waiting:
            heapq.heappush(moments, (now + slow * rng.random(), number))
        for other, order in counter.count(lambda: list(dispatch.orders())):
            if world.workers[other].waiting and not world.workers[other].inbox:
                heapq.heappush(moments, (now + rng.random(), other))
            world.workers[other].inbox.append(order)
    return counter.steps / sent


class _StepCounter:
    def __init__(self) -> None:
        self.steps = 0

    def count(self, function: Any, *args: Any) -> Any:
        before = sys.gettrace()  # that of `make coverage`, which counts on afterwards
        sys.settrace(self._trace)
        try:
            return function(*args)
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        self.steps += 1
        return self._trace


# --- the row -----------------------------------------------------------------------------------


def run(check: Check) -> str:
    count = check.scale(10_000, 1000)
    names = [f"schedules {number}" for number in range(count // SCHEDULES_A_CASE)]
    mutants = [f"mutant: {name}" for name in SCHEDULER_MUTANTS]
    if check.fast:
        mutants = mutants[check.seed % 4 :: 4]

    def one(name: str, folder: Path) -> str:
        if name.startswith("schedules"):
            schedules(SCHEDULES_A_CASE, check.rng(name).getrandbits(32))
            return "schedules"
        if name.startswith("mutant"):
            _mutant(name.partition(": ")[2], folder, check.seed)
            return "mutants"
        few, many = (cost_of_a_message(n, n * SEGMENTS_A_WORKER) for n in (FEW, MANY))
        assert many < few * MAX_RATIO, f"{few:.0f} steps with {FEW} workers, {many:.0f} with {MANY}"
        return f"{few:.0f} steps a message with {FEW} workers, {many:.0f} with {MANY}"

    check.each([*names, *mutants, "cost"], one, seconds=1200)
    done = check.outcomes
    cost = [what for what in done if "steps" in what]
    return (
        f"{done['schedules'] * SCHEDULES_A_CASE} schedules, {done['mutants']} of {len(mutants)} "
        f"mutants caught, {''.join(cost)}"
    )


def _mutant(name: str, folder: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reliability.r22_scheduler", name, str(seed)],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]


def main(name: str, seed: int) -> int:
    """In a process of its own: put the mutant in place and see whether a schedule notices it."""
    if name != "none":
        install_change(*SCHEDULER_MUTANTS[name])
    try:
        schedules(MUTANT_SCHEDULES, seed, shrink=False)
        few = cost_of_a_message(FEW, FEW * SEGMENTS_A_WORKER)
        cost = cost_of_a_message(MANY, MANY * SEGMENTS_A_WORKER) / few
        assert cost < MAX_RATIO, f"a message costs {cost:.1f} times as much"
    except Exception as error:
        print(f"caught: {str(error).splitlines()[:1]}")
        return 0
    print("survived")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
