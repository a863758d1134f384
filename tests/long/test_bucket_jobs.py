"""Into a bucket: FineWeb, mixtures, parts of jobs, and exports that stop at any request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.buckets import (
    FORMAT,
    check_done,
    folder,  # noqa: F401
    server,  # noqa: F401
    servers,  # noqa: F401
    small_runs,  # noqa: F401
    two_files,  # noqa: F401
)
from support.fineweb_scripts import (
    env,  # noqa: F401
)
from support.hub import environment
from support.on_hub import on_hub  # noqa: F401
from support.parts import job_of, write_inputs

import tokenmill
from reliability.corpus import dataset_bytes
from reliability.faulty_bucket import BUCKET, Fault, FaultyBucket, Request
from tokenmill import pipeline
from tokenmill.dataset.status import status
from tokenmill.errors import StorageError

KINDS = ("put", "create", "begin", "part", "complete", "delete")


def stops(wanted: str) -> Iterator[tuple[int, Any]]:
    """Faults that let nothing through from the n-th request of a kind on."""
    for number in (1, 4, 9):
        seen = 0

        def faults(request: Request, number: int = number) -> Fault | None:
            nonlocal seen
            seen += request.kind == wanted
            return Fault(cut="before") if seen >= number else None

        yield number, faults


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_that_stops_at_any_request_is_resumed_and_nothing_is_left_over(
    server: FaultyBucket,
    folder: str,
    two_files: Path,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    asked: dict[str, Any] = {**FORMAT, "shuffle": True, "workers": 0}
    pipeline.export(two_files, tmp_path / "local", **asked)
    stopped = 0
    for number, faults in stops(kind):
        with monkeypatch.context() as hasty:
            hasty.setattr("tokenmill.system.buckets.client.RETRIES", 0)
            hasty.setattr("tokenmill.system.buckets.bucket.ATTEMPTS", 1)
            server.faults = faults
            try:
                pipeline.export(two_files, f"{address}/{number}", **asked)
            except StorageError as error:
                stopped += "resumes" in error.hint
        server.faults = lambda request: None
        pipeline.export(two_files, f"{address}/{number}", **asked)
        check_done(server, f"{folder}/{number}", dataset_bytes(tmp_path / "local"))
    assert stopped > 1


def test_fineweb_goes_straight_from_the_hub_to_a_bucket(
    server: FaultyBucket,
    folder: str,
    tmp_path: Path,
    env: dict[str, str],
    on_hub: dict[str, bytes],
) -> None:
    options: dict[str, Any] = {"shard_tokens": "9k", "workers": 0, "quiet": True}
    for name in ("AWS_", "TOKENMILL_"):
        env |= {k: v for k, v in server.environment().items() if k.startswith(name)}
    with environment(env):
        tokenmill.fineweb("10B", "edu", tmp_path / "local", **options)
        tokenmill.fineweb("10B", "edu", f"s3://{BUCKET}/{folder}", **options)
    check_done(server, folder, dataset_bytes(tmp_path / "local"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_in_a_bucket_is_that_of_a_folder(
    server: FaultyBucket, folder: str, tmp_path: Path, workers: int
) -> None:
    given, options = job_of("mixed", write_inputs(tmp_path / "in"))
    del options["shuffle"]  # a mixture is in the order of keys all the same
    pipeline.prepare(given, tmp_path / "local", workers=0, **options)
    pipeline.prepare(given, f"s3://{BUCKET}/{folder}", workers=workers, **options)
    check_done(server, folder, dataset_bytes(tmp_path / "local"))


@pytest.mark.parametrize("job", ["llmc", "limited", "mixed"])
def test_parts_of_a_job_in_a_bucket_make_the_dataset_of_a_folder(
    server: FaultyBucket, folder: str, tmp_path: Path, job: str
) -> None:
    given, options = job_of(job, write_inputs(tmp_path / "in"))
    pipeline.prepare(given, tmp_path / "local", workers=0, **options)
    address = f"s3://{BUCKET}/{folder}"
    for part in ("1/2", "0/2"):
        pipeline.prepare(given, address, workers=0, part=part, **options)
    assert status(address).state == "unfinished"
    tokenmill.finish(address, workers=0, quiet=True)
    check_done(server, folder, dataset_bytes(tmp_path / "local"))
