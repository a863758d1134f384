"""`export` in a new order, of one source and of each source, into and out of a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.buckets import (
    check_done,
    every,
    folder,  # noqa: F401
    server,  # noqa: F401
    servers,  # noqa: F401
)

import tokenmill
from reliability.corpus import dataset_bytes, documents, write_jsonl
from reliability.faulty_bucket import BUCKET, Fault, FaultyBucket, Request
from tokenmill import pipeline
from tokenmill.errors import StorageError

FORMAT: dict[str, Any] = {"format": "llmc,parquet", "shard_tokens": 900, "name": "x"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs, which are merged; several ranges; uploads of several parts."""
    for name, value in {
        "TOKENMILL_RANGE_BYTES": "9000",
        "TOKENMILL_MAX_RUNS": "2",
        "TOKENMILL_PART_BYTES": "1500",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("source")
    for name in "ab":
        write_jsonl(where / f"{name}.jsonl", documents(25, name))
    inputs = [where / "a.jsonl", where / "b.jsonl"]
    pipeline.prepare(inputs, where / "d", workers=0, val=0.1, encoder_check="none")
    return where / "d"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "asked", [{"shuffle": True, "seed": 3}, {"only": "b.jsonl"}], ids=["shuffle", "only"]
)
def test_an_export_in_a_new_order_to_a_bucket_is_that_to_a_folder(
    server: FaultyBucket,
    folder: str,
    source: Path,
    tmp_path: Path,
    asked: dict[str, Any],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_MAKE_BYTES", "0")  # workers make few bytes, too
    address = f"s3://{BUCKET}/{folder}"
    pipeline.export(source, tmp_path / "local", workers=0, **FORMAT, **asked)
    pipeline.export(source, f"{address}/one", workers=workers, **FORMAT, **asked)
    check_done(server, f"{folder}/one", dataset_bytes(tmp_path / "local"))
    assert server.count("begin") > 0
    assert tokenmill.verify_deep(f"{address}/one").ok
    assert pipeline.export(source, f"{address}/one", **FORMAT, **asked).already_done
    # And back to a folder, in another order.
    asked = {"shuffle": True, "seed": 4} if "seed" in asked else {}
    for place in (f"{address}/one", tmp_path / "local"):
        to = tmp_path / f"back-{place == tmp_path / 'local'}"
        pipeline.export(place, to, workers=workers, **FORMAT, **asked)
    assert dataset_bytes(tmp_path / "back-True") == dataset_bytes(tmp_path / "back-False")


def test_each_source_becomes_a_dataset_in_the_bucket(
    server: FaultyBucket, folder: str, source: Path, tmp_path: Path
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    local = pipeline.export_by_source(source, tmp_path / "o", format="megatron", workers=0)
    found = pipeline.export_by_source(source, f"{address}/o", format="megatron", workers=0)
    assert found.keys() == local.keys() == {"a.jsonl", "b.jsonl"}
    for name in "ab":
        check_done(server, f"{folder}/o/{name}", dataset_bytes(tmp_path / "o" / name))
    assert found["a.jsonl"].output == f"{address}/o/a"
    assert pipeline.export_by_source(source, f"{address}/o", format="megatron")[
        "b.jsonl"
    ].already_done


KINDS = ("put", "create", "begin", "part", "complete", "delete")


def stops(wanted: str, server: FaultyBucket) -> Iterator[tuple[int, Any]]:
    """Faults that let nothing through from the n-th request of a kind on."""
    for number in (1, 4, 9):
        seen = 0

        def faults(request: Request, number: int = number) -> Fault | None:
            nonlocal seen
            seen += request.kind == wanted
            return Fault(cut="before") if seen >= number else None

        yield number, faults


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_that_stops_at_any_request_is_resumed_and_nothing_is_left_over(
    server: FaultyBucket,
    folder: str,
    source: Path,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    asked: dict[str, Any] = {**FORMAT, "shuffle": True, "workers": 0}
    pipeline.export(source, tmp_path / "local", **asked)
    stopped = 0
    for number, faults in stops(kind, server):
        with monkeypatch.context() as hasty:
            hasty.setattr("tokenmill.system.buckets.client.RETRIES", 0)
            hasty.setattr("tokenmill.system.buckets.bucket.ATTEMPTS", 1)
            server.faults = faults
            try:
                pipeline.export(source, f"{address}/{number}", **asked)
            except StorageError as error:
                stopped += "resumes" in error.hint
        server.faults = lambda request: None
        pipeline.export(source, f"{address}/{number}", **asked)
        check_done(server, f"{folder}/{number}", dataset_bytes(tmp_path / "local"))
    assert stopped > 1


@pytest.mark.parametrize("cut", ["before", "lost", "half"])
def test_an_export_in_a_new_order_survives_a_store_that_often_fails(
    server: FaultyBucket, folder: str, source: Path, tmp_path: Path, cut: str
) -> None:
    asked: dict[str, Any] = {**FORMAT, "shuffle": True, "workers": 0}
    pipeline.export(source, tmp_path / "local", **asked)
    server.faults = every("any", 4, Fault(cut=cut))
    pipeline.export(source, f"s3://{BUCKET}/{folder}", **asked)
    server.faults = lambda request: None
    check_done(server, folder, dataset_bytes(tmp_path / "local"))
