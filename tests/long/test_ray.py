"""Workers, nodes, the driver and the head of a Ray cluster are killed: the bytes of one run.

Each test has the name of a project that loses data or time in that case.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from support.commands import command
from support.hub import environment
from support.loopback_hub import running_hub
from support.on_ray import opened_by_driver, write_all_kinds

from reliability import r19_cluster
from reliability.corpus import dataset_bytes, documents, write_parquet
from reliability.r19_cluster import KNOBS


@pytest.fixture(autouse=True)
def _small_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KNOBS.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)


def run(case: str, folder: Path) -> None:
    r19_cluster.ray_case(case, folder, random.Random(case))


def test_all_jobs_on_three_nodes_give_the_bytes_of_one_machine(tmp_path: Path) -> None:
    run("same", tmp_path)


def test_killed_workers_change_nothing(tmp_path: Path) -> None:
    run("workers", tmp_path)


def test_marin_nodes_that_go_and_come_do_not_keep_a_job_from_its_end(tmp_path: Path) -> None:
    """marin #2212: on preemptible nodes shards never finish, each restart begins at zero."""
    run("nodes", tmp_path)


def test_nemotron_what_was_under_way_when_the_driver_died_is_not_counted_as_done(
    tmp_path: Path,
) -> None:
    """Nemotron's data_prep counts a shard that was under way at a crash as done for 30 minutes."""
    run("driver", tmp_path)


def test_nemo_curator_a_job_that_was_stopped_goes_on_at_once(tmp_path: Path) -> None:
    """NeMo Curator's resume hangs on NFS. (`tests/process/test_ray.py`: no lock is used.)"""
    run("stopped", tmp_path)


def test_datatrove_a_job_without_its_head_does_not_end_with_exit_code_0(tmp_path: Path) -> None:
    """datatrove's Ray executor warns "only x of y tasks completed" and ends with exit code 0."""
    run("head", tmp_path)


def test_a_driver_opens_no_input_and_downloads_nothing(tmp_path: Path) -> None:
    """Also when it is stopped and goes on. Nodes download files of the Hub, each once."""
    inputs, options = write_all_kinds(tmp_path / "in")
    wanted = r19_cluster.expected("llmc", tmp_path / "in", tmp_path / "one")
    texts = documents(90, "web")
    paths = [write_parquet(tmp_path / f"{n}.parquet", texts[n * 30 :][:30]) for n in range(3)]
    files = {f"sample/10BT/00{n}.parquet": path.read_bytes() for n, path in enumerate(paths)}
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    with running_hub() as hub:
        hub.repo("HuggingFaceFW/fineweb-edu").commit(files)
        words = ["fineweb", "--version", "10B", "-o", tmp_path / "one web", "--val", "docs:9"]
        with environment(env | hub.environment(tmp_path / "one hf")):
            assert command(*words).returncode == 0
        hub.served.clear()
        steps, env = ["stop", "prepare", "fineweb"], env | hub.environment(tmp_path / "hf")
        assert opened_by_driver(steps, inputs, options, tmp_path, env) == []
        assert hub.served == {name: len(content) for name, content in files.items()}
    r19_cluster.compare(tmp_path / "out", wanted)
    assert json.loads((tmp_path / "out/run.json").read_text())["units_resumed"] > 0
    r19_cluster.compare(tmp_path / "web", dataset_bytes(tmp_path / "one web"))
    assert not list((tmp_path / "hf").rglob("*.parquet")), "the driver has downloaded"
