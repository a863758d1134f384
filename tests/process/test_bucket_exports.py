"""`export` in a new order, of one source and of each source, into and out of a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.buckets import (
    FORMAT,
    check_done,
    every,
    folder,  # noqa: F401
    server,  # noqa: F401
    servers,  # noqa: F401
    small_runs,  # noqa: F401
    two_files,  # noqa: F401
)
from support.cases import quick

import tokenmill
from reliability.corpus import dataset_bytes
from reliability.faulty_bucket import BUCKET, Fault, FaultyBucket
from tokenmill import pipeline

pytestmark = pytest.mark.usefixtures("small_runs")


@pytest.mark.parametrize("workers", quick([0, 2], 0))
@pytest.mark.parametrize(
    "asked",
    quick([{"shuffle": True, "seed": 3}, {"only": "b.jsonl"}], first=1),
    ids=["shuffle", "only"],
)
def test_an_export_in_a_new_order_to_a_bucket_is_that_to_a_folder(
    server: FaultyBucket,
    folder: str,
    two_files: Path,
    tmp_path: Path,
    asked: dict[str, Any],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_MAKE_BYTES", "0")  # workers make few bytes, too
    address = f"s3://{BUCKET}/{folder}"
    pipeline.export(two_files, tmp_path / "local", workers=0, **FORMAT, **asked)
    pipeline.export(two_files, f"{address}/one", workers=workers, **FORMAT, **asked)
    check_done(server, f"{folder}/one", dataset_bytes(tmp_path / "local"))
    assert server.count("begin") > 0
    assert tokenmill.verify_deep(f"{address}/one").ok
    assert pipeline.export(two_files, f"{address}/one", **FORMAT, **asked).already_done
    # And back to a folder, in another order.
    asked = {"shuffle": True, "seed": 4} if "seed" in asked else {}
    for place in (f"{address}/one", tmp_path / "local"):
        to = tmp_path / f"back-{place == tmp_path / 'local'}"
        pipeline.export(place, to, workers=workers, **FORMAT, **asked)
    assert dataset_bytes(tmp_path / "back-True") == dataset_bytes(tmp_path / "back-False")


@pytest.mark.long
def test_each_source_becomes_a_dataset_in_the_bucket(
    server: FaultyBucket, folder: str, two_files: Path, tmp_path: Path
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    local = pipeline.export_by_source(two_files, tmp_path / "o", format="megatron", workers=0)
    found = pipeline.export_by_source(two_files, f"{address}/o", format="megatron", workers=0)
    assert found.keys() == local.keys() == {"a.jsonl", "b.jsonl"}
    for name in "ab":
        check_done(server, f"{folder}/o/{name}", dataset_bytes(tmp_path / "o" / name))
    assert found["a.jsonl"].output == f"{address}/o/a"
    assert pipeline.export_by_source(two_files, f"{address}/o", format="megatron")[
        "b.jsonl"
    ].already_done


@pytest.mark.long
@pytest.mark.parametrize("cut", ["before", "lost", "half"])
def test_an_export_in_a_new_order_survives_a_store_that_often_fails(
    server: FaultyBucket, folder: str, two_files: Path, tmp_path: Path, cut: str
) -> None:
    asked: dict[str, Any] = {**FORMAT, "shuffle": True, "workers": 0}
    pipeline.export(two_files, tmp_path / "local", **asked)
    server.faults = every("any", 4, Fault(cut=cut))
    pipeline.export(two_files, f"s3://{BUCKET}/{folder}", **asked)
    server.faults = lambda request: None
    check_done(server, folder, dataset_bytes(tmp_path / "local"))
