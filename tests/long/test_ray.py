"""Workers, nodes, the driver and the head of a Ray cluster are killed: the bytes of one run.

Each test has the name of a project that loses data or time in that case.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reliability import r19_cluster
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
