"""Parts of a job as processes: in random order, some twice, some killed, two at once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.part_processes import PARTS, SMALL, finish, start, words
from support.parts import JOBS, job_of, write_inputs

from reliability.corpus import dataset_bytes
from tokenmill import pipeline


def test_sixteen_parts_in_any_order_give_the_bytes_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed, two run at once, and some run twice. Where no process matters, there is none;
    tests/long/test_parts.py has all of them as processes."""
    for name, value in SMALL.items():
        monkeypatch.setenv(f"TOKENMILL_{name}", value)
    given, options = job_of("llmc", write_inputs(tmp_path / "in", more=20))
    pipeline.prepare(given, tmp_path / "one", workers=0, **options)
    rng, out = random.Random(1), tmp_path / "out"
    order = rng.sample(range(PARTS), PARTS)
    victim, other, *rest = order
    told = ["prepare", *words(given, options), "-o", str(out), "--workers", "0", "--quiet"]
    killed = start(*told, "--part", f"{victim}/{PARTS}", FAILPOINT="kill@3 write *")
    killed.communicate(timeout=120)
    assert killed.returncode == -9
    for number in [*rest, *rest[:2]]:
        pipeline.prepare(given, out, workers=0, part=f"{number}/{PARTS}", **options)
    code, answer = finish(out)
    numbers = ", ".join(map(str, sorted((victim, other))))
    assert code == 2
    assert f"{numbers} of 16" in json.loads(answer)["error"]["hint"]
    both = [start(*told, "--part", f"{number}/{PARTS}") for number in (victim, other)]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert process.returncode in (0, 4), said.decode()
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
