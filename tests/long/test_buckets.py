"""Ray, 16 parts and a shuffled order into a bucket: the bytes and the manifest of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import process

import tokenmill
from reliability.corpus import dataset_bytes, documents, write_jsonl, write_parquet
from reliability.faulty_bucket import BUCKET, FaultyBucket, faulty_bucket
from tokenmill import pipeline

OPTIONS: dict[str, Any] = {
    "format": "llmc", "name": "x", "shard_tokens": 3000, "val": "docs:5", "encoder_check": "none",
}  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyBucket]:
    with faulty_bucket() as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield bucket


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    for number in range(20):
        write_parquet(tmp_path / f"a{number:02}.parquet", documents(12, f"a{number}"), rows=8)
    write_jsonl(tmp_path / "b.jsonl", documents(30, "b"))
    return [*sorted(tmp_path.glob("a*.parquet")), tmp_path / "b.jsonl"]


def check_same(server: FaultyBucket, folder: str, local: Path) -> None:
    """Also that no work, no unit and no upload is left over."""
    found, expected = server.objects(folder), dataset_bytes(local)
    assert found.pop("run.json")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert server.pending(folder) == []


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("way", ["workers", "parts", "ray"])
def test_however_it_is_made_a_dataset_in_a_bucket_is_that_of_a_folder(
    server: FaultyBucket, inputs: list[Path], tmp_path: Path, way: str, shuffle: bool
) -> None:
    options = {**OPTIONS, **({"shuffle": True, "seed": 3} if shuffle else {})}
    pipeline.prepare(inputs, tmp_path / "out", workers=0, **options)
    folder = f"{way}-{shuffle}-{tmp_path.parent.name}"
    address = f"s3://{BUCKET}/{folder}"
    if way == "workers":
        pipeline.prepare(inputs, address, workers=2, **options)
    elif way == "parts":
        for part in (9, *range(9), *range(10, 16), 4):  # any order, one of them twice
            pipeline.prepare(inputs, address, workers=0, part=f"{part}/16", **options)
        tokenmill.finish(address, workers=0)
    else:
        pytest.importorskip("ray")
        order = ("--shuffle", "--seed", 3) if shuffle else ()
        done = process(
            *("prepare", *inputs, "-o", address, "--engine", "ray", "--workers", 2, *order),
            *("--format", "llmc", "--name", "x", "--shard-tokens", 3000, "--val", "docs:5"),
        )
        assert done.returncode == 0, done.stderr[-2000:]
    check_same(server, folder, tmp_path / "out")
    assert tokenmill.verify(address).ok
