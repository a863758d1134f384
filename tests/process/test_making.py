"""Files made by worker processes: the same bytes, through deaths and kills, none made twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.commands import dataset_bytes, process
from support.inputs import write_jsonl

import tokenmill
from tokenmill.errors import StorageError, WorkerError
from tokenmill.output.file_maker import FileTask
from tokenmill.output.file_tasks import FileWorker
from tokenmill.system.failpoints import VARIABLE

SETTINGS: dict[str, Any] = {"shard_tokens": "10k", "val": "docs:9", "name": "x"}
OPTIONS = ("--shard-tokens", "10k", "--val", "docs:9", "--name", "x", "--progress", "json")


@pytest.fixture(autouse=True)
def workers_make_few_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_MAKE_BYTES", "0")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("making")
    return write_jsonl(folder / "a.jsonl", [f"some text {n}" * 40 for n in range(400)])


@pytest.fixture(scope="module")
def clean(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """By format, what one process makes."""
    folder = tmp_path_factory.mktemp("clean")
    for format in ("mds", "llmc,hf,parquet"):
        tokenmill.prepare(source, folder / format, format=format, workers=0, **SETTINGS)
    return {path.name: dataset_bytes(path) for path in folder.iterdir()}


def events(stderr: str, kind: str) -> list[dict[str, Any]]:
    return [e for e in map(json.loads, stderr.splitlines()) if e["event"] == kind]


def test_two_workers_make_the_files_that_one_process_makes(
    source: Path, clean: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: Any
) -> None:
    notes, make = tmp_path / "notes", FileWorker.make

    def noted(self: FileWorker, task: FileTask, on_piece: Any) -> Any:
        with notes.open("a") as file:
            file.write(f"{os.getpid()} {task.name}\n")
        time.sleep(0.3)  # or the first worker may have made all before the second one is there
        return make(self, task, on_piece)

    monkeypatch.setattr(FileWorker, "make", noted)
    options = {**SETTINGS, "workers": 2, "start_method": "fork"}
    tokenmill.prepare(source, tmp_path / "o", format="llmc,hf,parquet", **options)
    assert dataset_bytes(tmp_path / "o") == clean["llmc,hf,parquet"]
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert os.getpid() not in {int(pid) for pid, _ in lines}
    assert len({pid for pid, _ in lines}) == 2
    names = [name for _, name in lines]
    assert len(set(names)) == len(names)


def test_a_file_whose_worker_dies_is_made_by_another_until_it_is_too_often(
    source: Path, clean: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: Any
) -> None:
    make = FileWorker.make
    options = {**SETTINGS, "format": "mds", "workers": 2, "start_method": "fork"}

    def dying(once: bool) -> Any:
        def maker(self: FileWorker, task: FileTask, on_piece: Any) -> Any:
            if task.number == 1 and not (once and (tmp_path / "died").exists()):
                (tmp_path / "died").write_text("x")
                on_piece(1)
                self.files.write_at(task.working, 0, b"half of it")
                os._exit(7)
            return make(self, task, on_piece)

        return maker

    monkeypatch.setattr(FileWorker, "make", dying(once=True))
    result = tokenmill.prepare(source, tmp_path / "o", **options)
    assert result.run["retries"] == 1
    assert dataset_bytes(tmp_path / "o") == clean["mds"]
    monkeypatch.setattr(FileWorker, "make", dying(once=False))
    with pytest.raises(WorkerError, match=r"mds-tokens-\w+-000001: 2 workers died"):
        tokenmill.prepare(source, tmp_path / "p", **options)
    monkeypatch.setattr(FileWorker, "make", make)
    tokenmill.prepare(source, tmp_path / "p", **options)
    assert dataset_bytes(tmp_path / "p") == clean["mds"]


def test_an_error_of_a_worker_is_told_as_it_is(
    source: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    def full(self: FileWorker, task: FileTask, on_piece: Any) -> Any:
        raise StorageError("no space is left")

    monkeypatch.setattr(FileWorker, "make", full)
    with pytest.raises(StorageError, match="no space is left"):
        tokenmill.prepare(
            source, tmp_path / "o", format="mds", workers=2, start_method="fork", **SETTINGS
        )


def test_a_killed_job_makes_no_finished_file_again_and_tells_of_each(
    source: Path, clean: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """The coordinator is killed before it notes the fourth file."""
    args = ("prepare", source, "-o", tmp_path / "o", "--format", "mds", "--workers", 2, *OPTIONS)
    fault = {VARIABLE: "coordinator:kill@5 write *files/made"}
    killed = process(*args, env=fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    first = [event["file"] for event in events(killed.stderr, "file_made")]
    done = process(*args)
    assert done.returncode == 0, done.stderr
    again = [event["file"] for event in events(done.stderr, "file_made")]
    tokens = [name for name in clean["mds"] if name.endswith(".mds")]
    assert len(first) == 3
    assert not set(first) & set(again)
    assert len(first) + len(again) == len(tokens)
    [begun] = events(done.stderr, "files_begun")
    assert begun["files"] == len(again)
    assert dataset_bytes(tmp_path / "o") == clean["mds"]


def test_an_export_by_workers_is_what_one_process_exports(
    source: Path, clean: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    tokenmill.prepare(source, tmp_path / "llmc", format="llmc", workers=0, **SETTINGS)
    args = ("export", tmp_path / "llmc", "-o", tmp_path / "o", "--format", "mds,parquet")
    done = process(*args, "--workers", 2, "--progress", "json", "--shard-tokens", "10k")
    assert done.returncode == 0, done.stderr
    tokenmill.export(
        tmp_path / "llmc", tmp_path / "p", format="mds,parquet", workers=0, shard_tokens="10k"
    )
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "p")
    made = {event["file"] for event in events(done.stderr, "file_made")}
    assert {name.partition("-")[0] for name in made} == {"mds", "parquet"}


@pytest.mark.parametrize("name", ["mds", "llmc,hf,parquet"])
def test_workers_open_a_folder_that_several_machines_share(
    name: str, source: Path, clean: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    tokenmill.prepare(source, f"shared:{tmp_path / 'o'}", format=name, workers=2, **SETTINGS)
    assert dataset_bytes(tmp_path / "o") == clean[name]
    assert not list((tmp_path / "o").glob(".*"))
