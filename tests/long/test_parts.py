"""Sixteen parts as processes: in random order, some twice, some killed, two at once."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.part_processes import PARTS, SMALL, finish, start, words
from support.parts import job_of, write_inputs

from reliability.corpus import dataset_bytes
from reliability.faulty_bucket import BUCKET, faulty_bucket
from tokenmill import finishing, pipeline


@pytest.mark.parametrize("job", ["llmc", "shuffled"])
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


FORMATS = {
    "llmc": {"format": "llmc", "shard_tokens": 900},
    "mds": {"format": "mds", "shard_tokens": 900},
    "three formats": {"format": "llmc,hf,parquet", "shard_tokens": 900},
    "shuffled": {"format": "llmc", "shard_tokens": 900, "shuffle": True},
}


@pytest.mark.parametrize("job", FORMATS)
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_parts_of_finish_give_the_bytes_of_one_run(
    job: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three parts as processes: one is killed, two are at work at once, one runs twice."""
    with contextlib.ExitStack() as stack:
        for name, value in SMALL.items():
            monkeypatch.setenv(f"TOKENMILL_{name}", value)
        given, options = job_of(
            "llmc", write_inputs(tmp_path / "in", more=20 if place == "folder" else 0)
        )
        options |= FORMATS[job]
        pipeline.prepare(given, tmp_path / "one", workers=0, **options)
        out, bucket = str(tmp_path / "out"), None
        if place == "bucket":
            bucket = stack.enter_context(faulty_bucket())
            for name, value in bucket.environment().items():
                monkeypatch.setenv(name, value)
            out = f"s3://{BUCKET}/{job.replace(' ', '-')}"
        pipeline.prepare(given, out, workers=0, part="0/1", **options)
        rng = random.Random(f"{job} {place}")
        order = rng.sample(range(3), 3)
        told = ["finish", out, "--workers", "0", "--part"]
        for kill, numbers in enumerate(([order[0]], order[:2], [order[2], order[0]])):
            running = [start(*told, f"{number}/3") for number in numbers]
            if not kill:
                time.sleep(0.5 + rng.random() * 2)
                running[0].send_signal(signal.SIGKILL)
            for process in running:
                _, said = process.communicate(timeout=300)
                assert process.returncode == 0 or not kill, said.decode()
        found = finishing.finish(out, workers=0)
        assert not found.already_done
        here = dataset_bytes(Path(out)) if bucket is None else bucket.objects(job.replace(" ", "-"))
        here.pop("run.json", None)
        assert here == dataset_bytes(tmp_path / "one")
