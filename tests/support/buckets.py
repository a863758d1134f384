"""A bucket of our own for tests, and the same small dataset in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliability.corpus import dataset_bytes, documents, write_jsonl, write_parquet
from reliability.faulty_bucket import BUCKET, Fault, FaultyBucket, Request, faulty_bucket
from tokenmill import pipeline
from tokenmill.system.buckets.bucket import Bucket

OPTIONS: dict[str, Any] = {
    "format": "llmc", "name": "x", "shard_tokens": 2000, "val": "docs:5", "encoder_check": "none",
}  # fmt: skip


FORMAT: dict[str, Any] = {"format": "llmc,parquet", "shard_tokens": 900, "name": "x"}


@pytest.fixture(scope="module")
def servers() -> Iterator[FaultyBucket]:
    with faulty_bucket() as bucket:
        yield bucket


@pytest.fixture
def server(
    servers: FaultyBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FaultyBucket]:
    for name, value in servers.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    servers.requests.clear()
    yield servers
    servers.faults = lambda request: None


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """One of its own in the bucket."""
    return f"{tmp_path.parent.name}-{tmp_path.name}"


@pytest.fixture
def store(server: FaultyBucket, folder: str) -> Bucket:
    return Bucket(f"s3://{BUCKET}/{folder}")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    where = tmp_path_factory.mktemp("inputs")
    write_parquet(where / "a.parquet", documents(40, "a"), rows=8)
    write_jsonl(where / "b.jsonl", documents(30, "b"))
    return [where / "a.parquet", where / "b.jsonl"]


@pytest.fixture(scope="module")
def folder_of(inputs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset in a folder."""
    out = tmp_path_factory.mktemp("local") / "out"
    pipeline.prepare(inputs, out, workers=0, **OPTIONS)
    return out


@pytest.fixture(scope="module")
def expected(folder_of: Path) -> dict[str, bytes]:
    return dataset_bytes(folder_of)


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs, which are merged; several ranges; uploads of several parts."""
    for name, value in {
        "TOKENMILL_RANGE_BYTES": "9000",
        "TOKENMILL_MAX_RUNS": "2",
        "TOKENMILL_PART_BYTES": "1500",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


@pytest.fixture(scope="module")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("source")
    for name in "ab":
        write_jsonl(where / f"{name}.jsonl", documents(25, name))
    inputs = [where / "a.jsonl", where / "b.jsonl"]
    pipeline.prepare(inputs, where / "d", workers=0, val=0.1, encoder_check="none")
    return where / "d"


def every(kind: str, nth: int, fault: Fault) -> Any:
    """A fault for the first request of each file and of every `nth` after it."""
    counts: dict[str, int] = {}

    def faults(request: Request) -> Fault | None:
        if kind not in ("any", request.kind):
            return None
        counts[request.kind] = counts.get(request.kind, 0) + 1
        return fault if counts[request.kind] % nth == 1 else None

    return faults


def check_done(server: FaultyBucket, folder: str, expected: dict[str, bytes]) -> None:
    found = server.objects(folder)
    assert found.pop("run.json")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert server.pending(folder) == []
