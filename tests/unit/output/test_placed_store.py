"""What a folder can do in addition to every store: places, appending, names, a lock."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import RefusedError, StorageError
from tokenmill.output.files import AppendLog
from tokenmill.output.workspace import Workspace, folders_of
from tokenmill.system import disk as steps
from tokenmill.system.failpoints import Operation, WatchedDisk
from tokenmill.system.store import PlacedFolder


class RecordedDisk(WatchedDisk):
    """Keeps the kind and the path of every change, and fails at one of them if asked to."""

    def __init__(self, fails_at: str = "") -> None:
        super().__init__()
        self.changes: list[str] = []
        self.fails_at = fails_at

    def perform(self, operation: Operation, call: Any, *args: Any) -> Any:
        if operation.kind not in ("open", "read"):
            self.changes.append(f"{operation.kind} {os.path.basename(operation.path)}")
        if operation.kind == self.fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().perform(operation, call, *args)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlacedFolder]:
    store = PlacedFolder(tmp_path)
    yield store
    store.close()


def recorded(monkeypatch: pytest.MonkeyPatch, fails_at: str = "") -> RecordedDisk:
    disk = RecordedDisk(fails_at)
    monkeypatch.setattr(steps, "disk", disk)
    return disk


def test_bytes_are_written_at_their_place_in_any_order(store: PlacedFolder) -> None:
    store.write_at("a", 4, b"5678")
    store.write_at("a", 0, b"1234")
    assert store.read("a", 0, 9) == b"12345678"
    store.truncate("a", 3)
    assert store.size("a") == 3


def test_few_files_stay_open(store: PlacedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacedFolder, "MAX_OPEN", 3)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        store.write_at(f"{number}", 0, b"x")
    assert len(os.listdir("/proc/self/fd")) == before + 3
    assert all(store.size(f"{number}") == 1 for number in range(20))


def test_what_is_appended_is_synced_and_a_failure_leaves_what_was_there(
    store: PlacedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("log", 0, b"one")
    disk = recorded(monkeypatch)
    store.append("log", 3, b"two")
    assert [change.split(" ")[0] for change in disk.changes] == ["write", "sync"]
    recorded(monkeypatch, fails_at="sync")
    with pytest.raises(StorageError, match="append to"):
        store.append("log", 6, b"three")
    assert store.read("log", 0, 99) == b"onetwo"


def test_a_log_is_cut_at_its_valid_length_and_its_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = recorded(monkeypatch)
    log = AppendLog(PlacedFolder(tmp_path), "log", 0, b"head")
    log.append(b"one")
    log.close()
    assert disk.changes[-2:] == ["write log", "sync log"]
    assert f"sync-folder {tmp_path.name}" in disk.changes
    with open(tmp_path / "log", "ab") as file:
        file.write(b"torn")
    log = AppendLog(PlacedFolder(tmp_path), "log", 7, b"head")
    log.append(b"two")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"headonetwo"


def test_a_small_file_is_whole_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    store = PlacedFolder(tmp_path, scratch=tmp_path / "scratch")
    disk = recorded(monkeypatch, fails_at="rename")
    with pytest.raises(StorageError):
        store.write_whole("a", b"new")
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "scratch")) == (["scratch"], [".a.tmp"])
    assert disk.changes[-3:] == ["write .a.tmp", "sync .a.tmp", "rename .a.tmp"]


def test_a_file_is_created_once_and_published_over_nothing(store: PlacedFolder) -> None:
    store.create("plan", b"mine")
    with pytest.raises(RefusedError, match="exists already"):
        store.create("plan", b"other")
    store.write_at("working", 0, b"tokens")
    with pytest.raises(RefusedError, match="tokenmill did not make it"):
        store.publish("working", "plan")
    assert not store.is_published("working", "train/x")
    store.publish("working", "train/x")
    store.publish("working", "train/x")  # after a crash: it is the same file
    assert store.is_published("working", "train/x")
    store.withdraw("working", "train/x")
    assert (store.size("train/x"), store.size("working")) == (None, 6)
    assert (store.remove("plan"), store.remove("plan")) == (True, False)


def test_one_process_holds_a_lock(store: PlacedFolder) -> None:
    lock = store.lock("work/lock")
    with pytest.raises(RefusedError, match=f"process {os.getpid()}"):
        store.lock("work/lock")
    lock.release()
    store.lock("work/lock").release()


def test_a_worker_never_writes_into_a_folder_that_another_plan_has_made(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.create()
    files = workspace.open_files()
    workspace.files.rename(tmp_path / "old")
    workspace.create()
    files.write_at("a", 0, b"late")
    files.close()
    assert os.listdir(workspace.files) == []
    assert (tmp_path / "old/a").read_bytes() == b"late"


def test_the_folders_of_names_come_deepest_first() -> None:
    assert folders_of(["hf/train/a", "index/b", "c"])[-1] == "."
    assert folders_of(["hf/train/a"]) == ["hf/train", "hf", "."]
