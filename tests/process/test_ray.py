"""A Ray cluster of three nodes on this machine: killed workers do not change a byte."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

import pytest

from reliability import r19_cluster
from reliability.r19_cluster import KNOBS
from tokenmill import pipeline
from tokenmill.engines.hunt import DeathCount
from tokenmill.errors import RefusedError, UsageError


def test_killed_workers_on_three_nodes_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nemotron's data_prep counts a shard that was under way at a crash as done."""
    for name, value in KNOBS.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)
    r19_cluster.ray_case("workers", tmp_path, random.Random(1))


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
