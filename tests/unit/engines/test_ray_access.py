"""The driver's view of input files on a cluster, with actors that answer in this process."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from reliability.corpus import documents, mixed, write_jsonl
from tokenmill.engines.observer import EventLog, Observer
from tokenmill.engines.ray import requests
from tokenmill.engines.ray.access import ClusterAccess
from tokenmill.engines.ray.cluster import versions
from tokenmill.engines.ray.pool import ActorPool, refuse_other_versions
from tokenmill.engines.supply import Downloads
from tokenmill.errors import InputError, SourceError, UsageError, WorkerError
from tokenmill.inputs.download import Download
from tokenmill.inputs.find import find_sources
from tokenmill.inputs.kinds import segments_of
from tokenmill.inputs.remote.address import RemoteFile
from tokenmill.inputs.source import Source
from tokenmill.output.objects.opening import open_workspace
from tokenmill.planning.options import make_options, plan_settings
from tokenmill.planning.plan import Plan
from tokenmill.settings import Reading

READING = Reading("text")


class TaskError(Exception):
    cause = ValueError("wrong")


class GoneError(Exception):
    pass


class Call:
    def __init__(self, actor: Actor, content: bytes) -> None:
        self.actor, self.content = actor, content


class Actor:
    """Answers `lives` requests; then it is gone."""

    def __init__(self, lives: float) -> None:
        self.lives, self.asked = lives, 0
        self.look = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._remote))

    def _remote(self, content: bytes) -> Call:
        self.asked += 1
        return Call(self, content)


class Ray:
    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=GoneError)

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def wait(self, calls: list[Call], num_returns: int, timeout: float) -> Any:
        done = [call for call in calls if self.rng.random() < 0.5]
        return done, []

    def get(self, call: Call) -> bytes:
        call.actor.lives -= 1
        if call.actor.lives < 0:
            raise GoneError
        return requests.answer(call.content)


class Pool:
    """Starts another actor for each that is gone."""

    def __init__(self, lives: list[float]) -> None:
        self.actors = [Actor(one) for one in lives]
        self.lost = 0
        self.cluster = SimpleNamespace(
            ray=Ray(), room=len(lives), refuse_headless=lambda: None, actor_bytes=1
        )

    def at_hand(self) -> list[Actor]:
        return list(self.actors)

    def grow(self) -> None:
        self.actors += [Actor(1)] * (not self.actors)

    def lose(self, actor: Actor) -> None:
        self.lost += 1
        if actor in self.actors:
            self.actors.remove(actor)

    def host_of(self, _: Actor) -> str:
        return "host"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.engines.ray.access.TICK_SECONDS", 0.001)


def access_of(*lives: float) -> tuple[ClusterAccess, Any]:
    pool: Any = Pool(list(lives))
    return ClusterAccess(lambda: pool, lambda: None, lambda _: None), pool


def many(folder: Path) -> list[Path]:
    folder.mkdir()
    return [write_jsonl(folder / f"{n:02}.jsonl", documents(3, n)) for n in range(40)]


def test_nodes_find_what_this_process_finds_also_when_actors_are_lost(tmp_path: Path) -> None:
    inputs = [*mixed(tmp_path / "mixed"), *many(tmp_path / "many")]
    access, pool = access_of(3, 0, 5)
    found = find_sources(inputs, "text", access=access)
    assert found == find_sources(inputs, "text")
    assert pool.lost > 3


def test_cuts_are_asked_for_ahead_and_given_in_order(tmp_path: Path) -> None:
    inputs = [*mixed(tmp_path / "mixed"), *many(tmp_path / "many")]
    sources = find_sources(inputs, "text").sources
    access, pool = access_of(1000, 2, 1)
    cuts = access.cuts(sources, READING, few=False)
    for source in sources:
        while (cut := cuts.of(source)) is None:
            pool.grow()
        if source is sources[0]:
            assert sum(actor.asked for actor in pool.actors) > 1, "one at a time"
        assert cut == list(segments_of(source, READING))
    assert pool.lost > 1


def test_a_trial_has_only_the_next_source_cut(tmp_path: Path) -> None:
    sources = find_sources(many(tmp_path / "many"), "text").sources
    access, pool = access_of(1000, 1000)
    cuts = access.cuts(sources, READING, few=True)
    while cuts.of(sources[0]) is None:
        pass
    assert sum(actor.asked for actor in pool.actors) <= 2


def test_a_source_that_was_downloaded_meanwhile_is_cut_when_asked_for(tmp_path: Path) -> None:
    sources = find_sources(many(tmp_path / "many"), "text").sources
    access, _ = access_of(1000)
    cuts = access.cuts(sources[:3], READING, few=False)
    while (cut := cuts.of(sources[30])) is None:
        pass
    assert cut == list(segments_of(sources[30], READING))


def test_what_is_wrong_with_inputs_is_told_as_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message, hint and place, also of several files."""
    many(tmp_path / "many")
    (tmp_path / "many/07.jsonl").write_bytes(b"PAR1 and more")
    (tmp_path / "many/x.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    monkeypatch.chdir(tmp_path)
    for inputs in (["many/*.jsonl"], ["many/07.jsonl", "many/x.parquet"]):
        told = []
        for access in ({}, {"access": access_of(5)[0]}):
            with pytest.raises(InputError) as error:
                find_sources(inputs, "text", **access)  # type: ignore[arg-type]
            told.append(str(error.value))
        assert told[0] == told[1]
        assert "many/07.jsonl" in told[1]


def test_a_source_that_changed_is_told_with_its_name(tmp_path: Path) -> None:
    inputs = many(tmp_path / "many")
    sources = find_sources(inputs, "text").sources
    access, _ = access_of(3)
    access.refuse_changed(sources)
    os.utime(inputs[11], (1, 1))
    with pytest.raises(SourceError, match=r"11\.jsonl: changed while"):
        access.refuse_changed(sources)


def test_a_bug_in_an_actor_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: bytes) -> bytes:
        raise TaskError

    monkeypatch.setattr(requests, "answer", wrong)
    access, _ = access_of(3)
    with pytest.raises(WorkerError, match="host: ValueError"):
        find_sources(many(tmp_path / "many"), "text", access=access)


def test_the_driver_says_that_it_waits_for_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.engines.ray.access.WAITING_SECONDS", 0.0)
    notes: list[str] = []
    pool: Any = Pool([])
    access = ClusterAccess(lambda: pool, lambda: None, notes.append)
    find_sources(many(tmp_path / "many")[:1], "text", access=access)
    assert len(notes) <= 1
    pool.actors, turns = [], iter([False] * 5)
    pool.grow = lambda: pool.actors.append(Actor(9)) if next(turns, True) else None
    find_sources([tmp_path / "many/00.jsonl"], "text", access=access)
    assert [note.split(":")[0] for note in notes] == ["no node looks at the inputs yet"]


def test_all_actors_end_with_the_command_that_started_them() -> None:
    """A cluster that outlives the command needs their cores."""

    killed: list[str] = []
    ray = SimpleNamespace(
        kill=lambda handle, no_restart: killed.append(handle),
        wait=lambda calls, num_returns, timeout: ([], calls),
    )
    cluster: Any = SimpleNamespace(ray=ray, headless=False, room=3)
    pool = ActorPool(cluster, 0, lambda: None)
    pool._greetings = {"a": 1, "b": 2}
    pool._places = {"c": {"host": "h"}}
    pool._free = ["a", "c"]
    assert pool.take() == "c"
    pool.close()
    assert sorted(killed) == ["a", "b", "c"]
    assert pool.at_hand() == []


class LostError(Exception):
    actor_init_failed = False


class FailedStartError(LostError):
    actor_init_failed = True

    def __str__(self) -> str:
        return "The actor died\nModuleNotFoundError: No module named 'tokenmill'\n"


def test_an_actor_that_is_lost_is_forgotten_and_one_that_cannot_start_ends_the_run() -> None:
    """A node without tokenmill would be tried for ever."""

    def get(call: Exception) -> None:
        raise call

    ray = SimpleNamespace(
        get=get,
        wait=lambda calls, num_returns, timeout: (calls, []),
        exceptions=SimpleNamespace(RayActorError=LostError),
    )
    cluster: Any = SimpleNamespace(ray=ray, headless=False, room=3)
    pool = ActorPool(cluster, 0, lambda: None)
    pool._greetings = {"a": LostError()}
    pool._free = ["a"]
    assert pool.at_hand() == pool._free == []
    pool._greetings = {"b": FailedStartError()}
    with pytest.raises(WorkerError, match="No module named 'tokenmill'"):
        pool.at_hand()


def test_a_worker_with_other_versions_is_refused() -> None:
    refuse_other_versions({"host": "h", "versions": versions()})
    with pytest.raises(WorkerError, match=r"on h has other versions: gigatoken 0 instead of"):
        refuse_other_versions({"host": "h", "versions": versions() | {"gigatoken": "0"}})


class Node:
    """In place of `fetch` on a node: writes the file into the folder that all nodes see."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.content = b'{"text": "one"}\n'

    def __call__(self, flow: Download, folder: Path, *, shared: bool) -> str:
        assert shared
        self.asked.append(flow.file.name)
        if flow.file.name == "bad":
            raise SourceError("bad: gone", hint="look")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "a.jsonl"
        path.write_bytes(self.content)
        return str(path)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr("tokenmill.engines.ray.requests.fetch", made)
    return made


def downloads(tmp_path: Path, access: ClusterAccess, *names: str) -> Downloads:
    sources = tuple(
        Source(
            number=number, name=name, kind="jsonl", size=100 << 20, fingerprint="etag:x",
            remote=RemoteFile(name=name, size=100 << 20, fingerprint="etag:x", url=f"x://{number}"),
        )
        for number, name in enumerate(names)
    )  # fmt: skip
    settings = plan_settings(make_options({}), tmp_path / "out")
    plan = Plan(settings=settings, sources=sources)
    workspace = open_workspace(tmp_path / "out", shared=True)
    supply = Downloads(plan, workspace, access=access, downloads=3)
    supply.survey()
    supply.start()
    return supply


def come(supply: Downloads, source: Source) -> Source:
    log = EventLog(Observer())
    while (here := supply.here(source)) is None:
        supply.report(log)
    return here


def test_nodes_download_each_file_once_into_a_folder_that_all_of_them_see(
    tmp_path: Path, node: Node
) -> None:
    access, pool = access_of(1000, 1000)
    with contextlib.closing(downloads(tmp_path, access, "f0", "f1", "f2", "f3")) as supply:
        found = [come(supply, source) for source in supply.plan.sources]
        assert sorted(node.asked) == ["f0", "f1", "f2", "f3"]
        folder = tmp_path / "out/.tokenmill/downloads"
        assert [one.path for one in found] == [f"{folder}/{n}/a.jsonl" for n in range(4)]
        assert {one.name for one in found} == {"f0", "f1", "f2", "f3"}
        assert sum(actor.asked for actor in pool.actors) == 4
        supply._remove(2)
        assert sorted(one.name for one in folder.iterdir()) == ["0", "1", "3"]


def test_a_node_that_is_lost_while_it_downloads_is_replaced(tmp_path: Path, node: Node) -> None:
    access, pool = access_of(0, 1000)
    with contextlib.closing(downloads(tmp_path, access, "f0", "f1", "f2")) as supply:
        for source in supply.plan.sources:
            come(supply, source)
    assert pool.lost


def test_a_download_that_fails_on_a_node_ends_the_run_with_its_reason(
    tmp_path: Path, node: Node
) -> None:
    access, _ = access_of(1000)
    with (
        contextlib.closing(downloads(tmp_path, access, "bad")) as supply,
        pytest.raises(SourceError, match="bad: gone") as error,
    ):
        come(supply, supply.plan.sources[0])
    assert error.value.hint == "look"


def test_a_file_that_is_not_what_it_claims_is_told_by_its_name(tmp_path: Path, node: Node) -> None:
    node.content = b"PAR1 and more"
    access, _ = access_of(1000)
    with (
        contextlib.closing(downloads(tmp_path, access, "x://0")) as supply,
        pytest.raises(InputError, match=r"^x://0: looks like parquet"),
    ):
        come(supply, supply.plan.sources[0])


def test_downloads_for_an_output_in_a_bucket_are_refused(tmp_path: Path, node: Node) -> None:
    access, _ = access_of(1000)
    supply = downloads(tmp_path, access)
    remote = RemoteFile(name="f", size=9, fingerprint="etag:x", url="x://0")
    source = Source(number=0, name="f", kind="jsonl", size=9, fingerprint="etag:x", remote=remote)
    supply.plan = msgspec.structs.replace(supply.plan, sources=(source,))
    supply.workspace.where = lambda name="": "s3://bucket/out"  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="no folder that all nodes see"):
        supply.survey()
