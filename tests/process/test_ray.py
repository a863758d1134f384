"""A Ray cluster of one node on this machine; `tests/long/test_ray.py` has three, and kills them."""

from __future__ import annotations

import fcntl
import json
import socket
import time
from pathlib import Path

import pytest
from support.on_ray import opened_by_driver, write_all_kinds

from reliability.corpus import dataset_bytes
from reliability.r19_cluster import KNOBS, expected, options_of, write_corpus
from tokenmill import finishing, pipeline
from tokenmill.engines.hunt import DeathCount
from tokenmill.engines.ray.cluster import ACTOR_BYTES, Node, NodeFigures, RayCluster
from tokenmill.errors import RefusedError, UsageError, WorkerError


def test_a_cluster_prepares_and_exports_what_one_machine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, manifest and index; run.json has figures for each node. The driver opens no input."""
    for name, value in KNOBS.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)
    inputs, options = write_all_kinds(tmp_path / "in")
    wanted = expected("llmc", tmp_path / "in", tmp_path / "one")
    pipeline.export(tmp_path / "one", tmp_path / "other one", workers=0, format="megatron")
    assert opened_by_driver(["prepare", "export"], inputs, options, tmp_path) == []
    assert dataset_bytes(tmp_path / "out") == wanted
    assert dataset_bytes(tmp_path / "other") == dataset_bytes(tmp_path / "other one")
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert sum(node["units"] for node in run["nodes"]) == run["units_encoded"] > 1
    assert sum(node["files"] for node in run["nodes"]) > 1
    assert run["preemptions"] == 0


def test_a_dead_address_is_told_within_20_seconds(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    began = time.monotonic()
    with pytest.raises(RefusedError, match="no cluster answers"):
        pipeline.prepare(
            tmp_path / "a.jsonl", tmp_path / "out", val="none", engine="ray",
            ray_address=f"127.0.0.1:{port}",
        )  # fmt: skip
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("options", [{"part": "0/2"}, {"workers": 0}])
def test_what_contradicts_ray_is_refused(options: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(UsageError, match="contradicts --engine ray"):
        pipeline.prepare(tmp_path / "a.jsonl", tmp_path / "out", engine="ray", **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"workers": 0}, "contradicts"), ({"shuffle": True}, "one machine"), ({"only": "a"}, "one")],
)
def test_an_export_that_ray_cannot_do_is_refused(
    options: dict[str, object], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        pipeline.export(tmp_path, tmp_path / "out", format="llmc", engine="ray", **options)


def test_a_lost_node_counts_against_no_unit() -> None:
    """On preemptible nodes marin's shards never finish; here a loss has no limit."""
    deaths = DeathCount()
    for _ in range(1000):
        deaths.add("lost")
    assert not deaths.too_many
    assert deaths.total == 0
    deaths.add("fault")
    deaths.add("fault")
    assert deaths.too_many


def test_a_shared_folder_needs_no_lock_of_its_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NeMo Curator's resume hangs on NFS."""

    def hangs(*_: object) -> None:
        raise AssertionError("a lock of the file system")

    monkeypatch.setattr(fcntl, "flock", hangs)
    monkeypatch.setattr(fcntl, "lockf", hangs)
    write_corpus(tmp_path / "in", 2, 1)
    inputs, options = options_of("llmc", tmp_path / "in")
    pipeline.prepare(inputs, tmp_path / "out", part="0/1", workers=0, **options)
    finishing.finish(tmp_path / "out", workers=0)
    assert (tmp_path / "out/manifest.json").exists()


class FakeRay:
    """Says which nodes there are, until it is gone."""

    def __init__(self, nodes: list[dict[str, object]]) -> None:
        self.answer, self.gone = nodes, False

    def nodes(self) -> list[dict[str, object]]:
        if self.gone:
            raise OSError("no head")
        return self.answer


def _seen(cores: int, memory: int, *, alive: bool = True) -> dict[str, object]:
    resources = {"CPU": float(cores), "memory": float(memory)}
    return {"NodeID": "n", "Alive": alive, "Resources": resources}


def test_a_node_holds_as_many_workers_as_it_has_cores_and_memory_for() -> None:
    assert Node("n", 8, 10_000).room(1000) == 8
    assert Node("n", 8, 3_999).room(1000) == 3
    nodes = [_seen(8, 10**9), _seen(2, 10**12), _seen(4, 10**12, alive=False), _seen(0, 10**12)]
    cluster = RayCluster(FakeRay(nodes), 500_000_000 - ACTOR_BYTES)
    assert cluster.room == 2 + 2
    cluster.close()


def test_a_head_that_does_not_answer_ends_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.engines.ray.cluster.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("tokenmill.engines.ray.cluster.SILENT_SECONDS", 0.5)
    ray = FakeRay([_seen(1, 10**12)])
    cluster = RayCluster(ray, 1)
    assert cluster.ask(lambda: 7, lambda: None) == 7
    cluster.refuse_headless()
    ray.gone = True
    with pytest.raises(WorkerError, match="head of the Ray cluster"):
        cluster.ask(lambda: time.sleep(30), lambda: None)
    cluster.close()


def test_an_interrupt_ends_a_wait_for_the_head() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    cluster = RayCluster(FakeRay([]), 1)
    with pytest.raises(KeyboardInterrupt):
        cluster.ask(lambda: time.sleep(30), interrupted)
    cluster.close()


def test_figures_of_a_node_add_up() -> None:
    figures = NodeFigures("n", "host")
    figures.note_file([3, 4])
    figures.note_file([5])
    assert (figures.files, figures.file_bytes) == (2, 12)
