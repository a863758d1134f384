"""R20: whole jobs in a bucket: moto's S3 server behind a proxy that fails, lies and cuts off.

A job that is "killed" at a request reaches the store no more from there on: what a killed process
leaves. Real kills of processes come in addition.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reliability.faulty_bucket import (
    BUCKET,
    Fault,
    FaultyBucket,
    Request,
    faulty_bucket,
    in_environment,
)
from reliability.scorecard import Check

if TYPE_CHECKING:
    from reliability.object_jobs import ObjectJob

ID = "R20"
PROMISE = "object store"
MARK = (
    "500, 503, 409, cut connections, lost answers, expired credentials, kills at any request: the "
    "bytes of a folder, no object and no upload left over; ignored conditions are refused"
)
RUNS = 20  # an answer that is cut in half may stop a run; each run gets further
JOBS = ("llmc", "several", "shuffled", "overwrite", "exported")
FAULTS = {
    "500": Fault(500, "InternalError"),
    "503": Fault(503, "SlowDown"),
    "409": Fault(409, "ConditionalRequestConflict"),
    "cut": Fault(cut="before"),
    "lost": Fault(cut="lost"),
    "half": Fault(cut="half"),
}
TOLD = {"killed": "killed", "lost-killed": "killed", "expired": "expired credentials"}
# Few bytes: files and units go up in several parts all the same.
SMALL = {"TOKENMILL_PART_BYTES": "600", "S3_UPLOAD_PART_MIN_SIZE": "1"}


@functools.cache
def server(_pid: int) -> FaultyBucket:
    """One for each process that runs cases; it ends with the process."""
    opened = faulty_bucket()
    bucket = opened.__enter__()
    _kept.append(opened)
    return bucket


_kept: list[Any] = []  # or it would be closed


def case(check: Check, jobs: dict[str, ObjectJob], name: str, folder: Path) -> str:
    job_name, kind, number = name.split()
    bucket, job = server(os.getpid()), jobs[job_name]
    prefix = f"{job_name}-{kind}-{number}-{os.getpid()}-{time.monotonic_ns()}"
    with in_environment({**bucket.environment(), "XDG_CACHE_HOME": str(folder / "cache")}):
        if kind == "unconditional":
            _refused(bucket, job, prefix, folder)
            return "ignored conditions"
        if job.overwrites is not None:
            run_job(job.overwrites, prefix, folder)
        if kind == "sigkill":
            return _killed_processes(check, bucket, job, prefix, folder, name)
        if kind in ("killed", "lost-killed", "expired"):
            at = max(1, total_requests(bucket, job) * int(number) // 100)
            stopped = _stop_at(bucket, job, prefix, folder, at, kind)
            outcome = TOLD[kind] if stopped else "over before"
        else:
            rng = check.rng(name)
            share = 0.3 if kind in FAULTS else 0.15
            chosen = [FAULTS[kind]] if kind in FAULTS else list(FAULTS.values())

            def faults(request: Request) -> Fault | None:
                fault = rng.choice(chosen)
                wanted = request.kind == "create" or fault.status != 409
                return fault if wanted and rng.random() < share else None

            bucket.faults = faults
            try:
                outcome = _endure(job, prefix, folder)
            finally:
                bucket.faults = lambda request: None
        resume(job, prefix, folder)
        check_done(bucket, job, prefix)
    return outcome


def run_job(job: ObjectJob, prefix: str, folder: Path, **more: Any) -> None:
    job.run(f"s3://{BUCKET}/{prefix}", folder / "scratch", workers=0, **more)  # type: ignore[arg-type]


def resume(job: ObjectJob, prefix: str, folder: Path) -> None:
    from tokenmill.errors import RefusedError

    try:
        run_job(job, prefix, folder)
    except RefusedError:
        if job.overwrites is None:
            raise
        run_job(job, prefix, folder, overwrite=True)  # the old dataset was still there


def check_done(bucket: FaultyBucket, job: ObjectJob, prefix: str) -> None:
    job.check_done(bucket.objects(prefix))
    left = bucket.pending(prefix)
    assert not left, f"pending uploads: {left[:3]}"


def _endure(job: ObjectJob, prefix: str, folder: Path) -> str:
    """A run that gives up says so, and that the same command goes on."""
    from tokenmill.errors import StorageError

    for attempt in range(RUNS):
        try:
            run_job(job, prefix, folder, overwrite=job.overwrites is not None and not attempt)
        except StorageError as error:
            assert "resumes" in error.hint, error.message
        else:
            return "stopped and resumed" if attempt else "faulty stores"
    raise AssertionError(f"{RUNS} runs gave up")


_totals: dict[str, int] = {}


def total_requests(bucket: FaultyBucket, job: ObjectJob) -> int:
    """Of an undisturbed run."""
    if job.name not in _totals:
        prefix, folder = f"whole-{job.name}-{os.getpid()}", Path(os.environ["XDG_CACHE_HOME"])
        if job.overwrites is not None:
            run_job(job.overwrites, prefix, folder)
        before = len(bucket.requests)
        run_job(job, prefix, folder, overwrite=job.overwrites is not None)
        _totals[job.name] = len(bucket.requests) - before
        check_done(bucket, job, prefix)
    return _totals[job.name]


def _stop_at(
    bucket: FaultyBucket, job: ObjectJob, prefix: str, folder: Path, at: int, kind: str
) -> bool:
    """From request `at` on, nothing reaches the store, or credentials are not good any more."""
    from tokenmill.errors import StorageError
    from tokenmill.system.buckets import bucket as steps
    from tokenmill.system.buckets import client

    first = len(bucket.requests) + at

    def faults(request: Request) -> Fault | None:
        if request.number < first:
            return None
        if kind == "expired":
            return Fault(400, "ExpiredToken")
        carried_out = kind == "lost-killed" and request.number == first
        return Fault(cut="lost" if carried_out else "before")

    before = client.RETRIES, steps.ATTEMPTS
    client.RETRIES, steps.ATTEMPTS = 0, 1
    bucket.faults = faults
    try:
        run_job(job, prefix, folder, overwrite=job.overwrites is not None)
    except StorageError as error:
        wanted = "expired" if kind == "expired" else "does not answer"
        assert wanted in error.message, error.message
        return True
    finally:
        client.RETRIES, steps.ATTEMPTS = before
        bucket.faults = lambda request: None
    return False


def _refused(bucket: FaultyBucket, job: ObjectJob, prefix: str, folder: Path) -> None:
    from tokenmill.errors import RefusedError

    bucket.faults = lambda request: Fault(unconditional=True) if request.kind == "create" else None
    try:
        run_job(job, prefix, folder)
    except RefusedError as error:
        assert "conditions" in error.message, error.message
    else:
        raise AssertionError("a store that ignores conditions was written to")
    finally:
        bucket.faults = lambda request: None
    assert not bucket.objects(prefix), "not left clean"


COMMAND = """
import json, sys
from tokenmill import pipeline
inputs, options = json.loads(sys.argv[2])
pipeline.prepare(inputs, sys.argv[1], workers=2, name="x", on_bad_row="quarantine",
                 encoder_check="none", **options)
"""


def _killed_processes(
    check: Check, bucket: FaultyBucket, job: ObjectJob, prefix: str, folder: Path, name: str
) -> str:
    """Coordinator and workers, killed together at random requests until a run ends."""
    import json

    rng = check.rng(name)
    asked = json.dumps([[str(path) for path in job.inputs], job.options])
    command = [sys.executable, "-c", COMMAND, f"s3://{BUCKET}/{prefix}", asked]
    for _ in range(4 if check.fast else RUNS):
        at = len(bucket.requests) + rng.randint(20, 120)
        running: list[int] = []

        def kill(request: Request, at: int = at, running: list[int] = running) -> Fault | None:
            if request.number >= at and running:
                os.killpg(running.pop(), signal.SIGKILL)
                return Fault(cut=rng.choice(["before", "lost"]))
            return None

        bucket.faults = kill
        process = subprocess.Popen(
            command,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        running.append(process.pid)
        _, said = process.communicate(timeout=200)
        bucket.faults = lambda request: None
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said[-500:].decode()
    resume(job, prefix, folder)
    check_done(bucket, job, prefix)
    return "storms of kills"


def cases(fast: bool) -> Iterator[str]:
    for job in JOBS:
        step = 12 if job == "exported" else 4  # it makes the most requests
        for kind in ("killed", "lost-killed"):
            yield from (f"{job} {kind} {at}" for at in range(1, 100, 50 if fast else step))
        yield from (f"{job} expired {at}" for at in range(5, 100, 90 if fast else 30))
        yield from (f"{job} mixed {n}" for n in range(0 if fast else 5))
    yield from (f"llmc {kind} 0" for kind in FAULTS)
    yield "llmc unconditional 0"
    yield from (f"llmc sigkill {n}" for n in range(1 if fast else 6))


def run(check: Check) -> str:
    from reliability.object_jobs import exported_job, object_jobs

    os.environ.update(SMALL)
    jobs = {job.name: job for job in object_jobs(check.scratch)}
    jobs["exported"] = exported_job(check.scratch, jobs["tail"])
    names = list(cases(check.fast))
    check.each(names, lambda name, folder: case(check, jobs, name, folder), seconds=300)
    done = check.outcomes
    told = [
        f"{done[what]} {what}"
        for what in (
            "killed", "expired credentials", "faulty stores", "stopped and resumed",
            "ignored conditions", "storms of kills", "over before",
        )
        if done[what]
    ]  # fmt: skip
    return f"{len(JOBS)} jobs: {', '.join(told)}: {len(check.failures)} failures"
