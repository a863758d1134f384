"""`export` in a new order to a store of whole files: killed at any change, nothing is left over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cases import quick

from reliability.corpus import dataset_bytes, documents, write_jsonl
from reliability.object_jobs import Killed, TestStore, killed_at
from tokenmill import pipeline
from tokenmill.dataset import export as converting

ASKED: dict[str, dict[str, Any]] = {
    "shuffle": {"format": "llmc", "shard_tokens": 900, "name": "x", "shuffle": True, "seed": 2},
    "only": {"format": "mds", "name": "x", "only": "b.jsonl"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    inputs = [write_jsonl(folder / f"{name}.jsonl", documents(12, name)) for name in "ab"]
    pipeline.prepare(inputs, folder / "d", workers=0, val=0.2, encoder_check="none")
    return folder / "d"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_RANGE_BYTES", "3000")
    monkeypatch.setenv("TOKENMILL_MAX_RUNS", "2")


def files_of(store: TestStore) -> dict[str, bytes]:
    return {name: content for name, content in store.files.items() if name != "run.json"}


@pytest.mark.parametrize("job", ASKED)
@pytest.mark.parametrize("first", quick(range(1, 9), 3))
def test_killed_at_any_change_and_resumed_it_is_the_export_to_a_folder(
    source: Path, tmp_path: Path, job: str, first: int
) -> None:
    converting.export(source, tmp_path / "o", **ASKED[job])
    expected = dataset_bytes(tmp_path / "o")
    whole = TestStore({})
    converting.export(source, whole, **ASKED[job])
    assert files_of(whole) == expected
    for number in range(first, whole.changes + 1, 8):
        files: dict[str, bytes] = {}
        with pytest.raises(Killed):
            converting.export(source, TestStore(files, killed_at(number)), **ASKED[job])
        again = TestStore(files)
        converting.export(source, again, **ASKED[job])
        assert files_of(again) == expected, number
