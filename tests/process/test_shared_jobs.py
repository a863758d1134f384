"""Jobs in a folder that several machines share, where other features meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.inputs import sample_texts, write_jsonl

import tokenmill
from tokenmill import finishing, pipeline
from tokenmill.errors import RefusedError, StorageError
from tokenmill.output import commit
from tokenmill.planning import plan

MIX = """
tokens = 4000
[source.a]
inputs = ["a.jsonl"]
weight = 1
[source.b]
inputs = ["b.jsonl"]
weight = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_DRIVER_SECONDS", "1")
    texts = [text[:300] for text in sample_texts()]
    write_jsonl(tmp_path / "a.jsonl", texts[:80])
    write_jsonl(tmp_path / "b.jsonl", texts[80:160])
    (tmp_path / "mix.toml").write_text(MIX)
    return tmp_path


def dataset_bytes(output: Path) -> dict[str, bytes]:
    files = (path for path in output.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


def stop_at_commit(monkeypatch: pytest.MonkeyPatch) -> Any:
    def full(*_: Any, **__: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(commit, "commit", full)


def test_workers_make_the_files_of_a_mixture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_MAKE_BYTES", "1")  # files are made by workers, however small
    options: dict[str, Any] = {"mix": folder / "mix.toml", "val": "0.1"}
    pipeline.prepare((), folder / "one", workers=0, **options)
    pipeline.prepare((), f"shared:{folder / 'many'}", workers=2, **options)
    assert dataset_bytes(folder / "many") == dataset_bytes(folder / "one")


def test_a_job_that_was_begun_alone_is_not_continued_by_several(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = folder / "a.jsonl", folder / "out"
    with monkeypatch.context() as broken:
        stop_at_commit(broken)
        with pytest.raises(StorageError):
            pipeline.prepare(given, out, workers=0, val="0.1")
    for other in (
        lambda: pipeline.prepare(given, f"shared:{out}", workers=0, val="0.1"),
        lambda: pipeline.prepare(given, out, workers=0, val="0.1", part="0/1"),
    ):
        with pytest.raises(RefusedError, match="begun on one machine alone"):
            other()
    assert pipeline.prepare(given, out, workers=0, val="0.1").run["units_resumed"] > 0


def test_a_dataset_of_parts_can_be_compared_and_reused(folder: Path) -> None:
    given, out = folder / "a.jsonl", folder / "out"
    pipeline.prepare(given, out, workers=0, val="0.1", part="0/1")
    finishing.finish(out, workers=0)
    run = json.loads((out / "run.json").read_text())
    assert run["sources"]["a.jsonl"]["path"] == str(given)
    assert run["encoder"]["name"] == "gigatoken"
    report = tokenmill.verify_deep(out, sample="all")
    assert (report.problems, report.complete) == ([], True)
    again = pipeline.prepare(given, folder / "new", workers=0, val="0.2", reuse=str(out))
    assert again.run["reused"]["documents"] == 80


def test_a_dataset_beside_texts_may_have_a_relative_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenmill.prepare(folder / "a.jsonl", folder / "o", workers=0, val="0.1", quiet=True)
    (folder / "mix.toml").write_text(MIX.replace("a.jsonl", "dataset:o"))
    monkeypatch.chdir(folder)
    result = pipeline.prepare((), "mixed", mix="mix.toml", workers=0, val="0.1")
    assert result.manifest.counts["documents"] > 0
    monkeypatch.chdir("/")
    assert tokenmill.verify_deep(folder / "mixed", sample="all").problems == []


def test_units_of_another_layout_of_sorted_documents_are_encoded_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, options = folder / "a.jsonl", {"shuffle": True, "val": "0.1", "workers": 0}
    with monkeypatch.context() as before:
        before.setattr(plan, "SORTED_RUNS", 1)
        stop_at_commit(before)
        with pytest.raises(StorageError):
            pipeline.prepare(given, folder / "o", **options)
    assert pipeline.prepare(given, folder / "o", **options).run["units_resumed"] == 0
