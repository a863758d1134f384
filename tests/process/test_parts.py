"""Parts of a job as processes: in random order, some twice, some killed, two at once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.parts import JOBS, job_of, write_inputs

from reliability.corpus import dataset_bytes
from tokenmill import pipeline

PARTS = 16
SMALL = {"LEASE_BYTES": "700", "RANGE_BYTES": "2000", "MAX_RUNS": "4", "SYNC_SECONDS": "0"}


def words(given: list[Path], options: dict[str, Any]) -> list[str]:
    told = [str(path) for path in given]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        told += [option] if value is True else [option, str(value)]
    return told


def start(*arguments: str, **more: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, **{f"TOKENMILL_{k}": v for k, v in {**SMALL, **more}.items()}}
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *arguments],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(output: Path) -> tuple[int, str]:
    process = start("finish", str(output), "--workers", "1", "--json")
    told, _ = process.communicate(timeout=120)
    return process.returncode, told.decode()


@pytest.mark.parametrize("job", ["llmc"])
def test_sixteen_parts_in_any_order_give_the_bytes_of_one_run(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)
    given, options = job_of(job, write_inputs(tmp_path / "in", more=20))
    pipeline.prepare(given, tmp_path / "one", workers=0, **options)
    rng, out = random.Random(job), tmp_path / "out"
    told = ["prepare", *words(given, options), "-o", str(out), "--workers", "0", "--quiet"]
    order = rng.sample(range(PARTS), PARTS)
    victims, twice = order[:3], order[3:5]
    running: list[tuple[int, subprocess.Popen[bytes]]] = []
    for turn, number in enumerate([*order, *twice, *victims]):
        running.append((number, start(*told, "--part", f"{number}/{PARTS}")))
        if turn < len(victims) and len(running) == 1:
            time.sleep(rng.random() * 1.5)
            running[0][1].send_signal(signal.SIGKILL)
        if len(running) == 2:  # two at once
            for mine, process in running:
                _, said = process.communicate(timeout=120)
                assert process.returncode in (0, 4, -9), said.decode()
                if process.returncode == -9:
                    assert mine in victims
            running = []
    for _, process in running:
        process.communicate(timeout=120)
        assert process.returncode in (0, 4)
    code, answer = finish(out)
    assert code == 4, answer  # a row is quarantined
    assert dataset_bytes(out) == dataset_bytes(tmp_path / "one")
    assert not list(out.glob(".*"))


def test_finish_names_what_is_missing_and_status_shows_each_part(tmp_path: Path) -> None:
    """What datatrove's Ray executor ends with a warning and exit code 0 is exit code 2 here."""
    given, options = job_of("llmc", write_inputs(tmp_path / "in", more=20))
    out = tmp_path / "out"
    told = ["prepare", *words(given, options), "-o", str(out), "--workers", "0", "--quiet"]
    for number in (0, 2):
        process = start(*told, "--part", f"{number}/3")
        process.communicate(timeout=120)
        assert process.returncode in (0, 4)
    code, answer = finish(out)
    assert code == 2
    assert "run these parts (again): 1 of 3" in json.loads(answer)["error"]["hint"]
    process = start("status", str(out), "--json")
    answer = process.communicate(timeout=60)[0].decode()
    status = json.loads(answer)
    complete = [part["leases_done"] == part["leases"] for part in status["parts"]]
    assert complete == [True, False, True]
    assert 0 < status["leases_done"] < status["leases"]
    assert [part["state"] for part in status["parts"]] == ["done", "", "done"]
    process = start("status", str(out))
    answer = process.communicate(timeout=60)[0].decode()
    assert "2 of 3 complete" in answer
    assert "not begun" in answer
    assert "go on     with these parts: 1/3" in answer


def test_the_jobs_of_these_tests_are_those_of_the_issue() -> None:
    assert {"llmc", "nanogpt", "mds", "shuffled", "mixed"} <= JOBS.keys()
