"""`Dispatch` as a model: a sample of row R22 of the scorecard, and what it does in single steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

import tokenmill
from reliability.mutants import MUTANTS, SCHEDULER_MUTANTS
from reliability.r22_scheduler import cost_of_a_message, scenes
from reliability.scheduler_model import ENDS, Row, Scene, World, play
from tokenmill.engines import messages
from tokenmill.engines.messages import Report
from tokenmill.errors import WorkerError
from tokenmill.inputs.segments import UnitId

ONE_ROW = (Row(3),)


@given(scenes())
def test_any_schedule_gives_every_unit_its_place_once(scene: Scene) -> None:
    play(scene)


def test_a_message_costs_the_same_with_many_workers() -> None:
    assert cost_of_a_message(100, 400) < 1.3 * cost_of_a_message(10, 40)


def begun(segments: int, workers: int) -> World:
    """Workers that are ready; each has been handed what there is for it."""
    world = World(Scene([[[ONE_ROW] for _ in range(segments)]], workers=workers))
    for worker in world.workers.values():
        worker.step()
        world.dispatch.received(worker.number, worker.outbox.popleft())
    for number, order in world.dispatch.orders():
        world.workers[number].inbox.append(order)
    return world


def test_a_worker_that_holds_nothing_comes_before_one_that_has_something_to_lose() -> None:
    world = begun(segments=3, workers=3)
    dispatch = world.dispatch
    done = messages.TaskDone({})
    # The second worker holds a unit that waits for the first one's; the third was killed.
    unit = world.units[UnitId(0, 1, 0)]
    dispatch.received(2, Report(2, unit.summary({})))
    dispatch.received(2, Report(3, done))
    assert not list(dispatch.orders())
    dispatch.joined(9)
    dispatch.received(9, Report(1, messages.Ready()))
    dispatch.died(3, ENDS["kill"])
    [(worker, order)] = dispatch.orders()
    assert worker == 9
    assert isinstance(order, messages.EncodeTask)
    assert order.segment.number == 2


def test_workers_that_do_not_start_end_the_run() -> None:
    world = World(Scene([[[ONE_ROW]]], workers=3))
    world.dispatch.died(1, ENDS["fault"])
    world.dispatch.died(2, ENDS["fault"])
    with pytest.raises(WorkerError, match="workers do not start: crashed"):
        world.dispatch.died(3, ENDS["fault"])


def test_the_statistics_of_a_dead_worker_count() -> None:
    world = begun(segments=2, workers=2)
    world.dispatch.received(1, Report(2, messages.TaskDone({"checked": 3})))
    world.dispatch.received(2, Report(2, messages.TaskDone({"checked": 4})))
    world.dispatch.died(1, ENDS["kill"])
    assert world.dispatch.stats == {"checked": 7}


class WrittenBy:
    """One worker, here or elsewhere, that has written the only unit and not synced it."""

    def __init__(self, *, here: bool) -> None:
        self.world = World(Scene([[[ONE_ROW]]], workers=0))
        self.dispatch, self.unit = self.world.dispatch, UnitId(0, 0, 0)
        self.dispatch.joined(1, here=here)
        self.write(1)

    def write(self, worker: int) -> None:
        unit = self.world.units[self.unit]
        self.dispatch.received(worker, Report(1, messages.Ready()))
        assert isinstance(dict(self.dispatch.orders())[worker], messages.EncodeTask)
        self.dispatch.received(worker, Report(2, unit.summary({})))
        place = dict(self.dispatch.orders())[worker]
        assert isinstance(place, messages.Place)
        record = unit.record({}, place.before, self.world.scene)
        self.dispatch.received(worker, Report(3, messages.UnitWritten(record, {})))
        self.dispatch.received(worker, Report(4, messages.TaskDone({})))
        list(self.dispatch.orders())

    def sync(self, worker: int) -> None:
        self.world.synced.add(self.unit)
        self.dispatch.received(worker, Report(5, messages.UnitsSynced([self.unit])))


def test_what_a_worker_on_another_host_had_not_synced_is_done_again() -> None:
    scene = WrittenBy(here=False)
    scene.dispatch.died(1, ENDS["kill"])
    assert scene.world.journal.gone == {scene.unit}
    assert not scene.dispatch.finished
    scene.dispatch.joined(2, here=False)
    scene.write(2)
    scene.sync(1)  # of the dead one: too late
    assert not scene.dispatch.finished
    scene.sync(2)
    assert scene.dispatch.finished
    assert scene.world.journal.durable().keys() == {scene.unit}


def test_what_a_worker_on_another_host_has_synced_outlives_it() -> None:
    scene = WrittenBy(here=False)
    assert not scene.dispatch.finished, "it waits for the sync"
    scene.sync(1)
    scene.dispatch.died(1, ENDS["kill"])
    assert scene.dispatch.finished


def test_what_a_worker_on_the_same_host_had_not_synced_is_left_to_the_engine() -> None:
    scene = WrittenBy(here=True)
    assert scene.dispatch.finished, "the engine can sync it itself"
    scene.dispatch.died(1, ENDS["kill"])
    assert scene.dispatch.finished


def test_an_error_beyond_the_limit_ends_nothing_while_the_end_waits_for_a_sync() -> None:
    beyond = UnitId(0, 0, 2)
    for seed in range(20):
        play(
            Scene(
                [[[(), ONE_ROW, ()]]], 1, limit_tokens=1, broken=beyond, elsewhere=True, seed=seed
            )
        )


def rows(count: int) -> tuple[Row, ...]:
    return (Row(1),) * count


@pytest.mark.parametrize(
    "scene",
    [
        Scene(
            [[[rows(3), (), ()], [rows(5), ()], [rows(2)]]], workers=2, limit_docs=8,
            on_bad_row="stop", broken=UnitId(0, 1, 1), kills=1, resumes=1, noise=True, seed=0,
        ),
        Scene(
            [[[()], [rows(1), rows(2), ()], [rows(5), ()]]], workers=3, limit_docs=8,
            on_bad_row="stop", broken=UnitId(0, 2, 1), stalls=2, resumes=1, waits=5, seed=2341298,
        ),
    ],
)  # fmt: skip
def test_an_error_beyond_the_limit_is_not_that_of_a_unit_whose_worker_died(scene: Scene) -> None:
    """A worker met the error, died, and took with it a unit before the error."""
    play(scene)


@pytest.mark.parametrize("name", [*MUTANTS, *SCHEDULER_MUTANTS])
def test_every_mutant_changes_one_place_of_the_source(name: str) -> None:
    file, old, new = (MUTANTS | SCHEDULER_MUTANTS)[name]
    assert (Path(tokenmill.__file__).parent / file).read_text().count(old) == 1
    assert old != new
