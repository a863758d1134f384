"""A folder as a store of whole files: several writers, none of which sees half of a file."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from tokenmill.errors import RefusedError
from tokenmill.output.objects.opening import open_workspace
from tokenmill.output.objects.shared_folder import SharedFolder
from tokenmill.output.objects.workspace import ObjectWorkspace
from tokenmill.output.workspace import Workspace
from tokenmill.system import disk as steps


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    store = SharedFolder(tmp_path)

    def parts() -> object:
        yield b"one"
        assert store.size("a/b") is None
        yield b"two"

    store.write_parts("a/b", parts())  # type: ignore[arg-type]
    assert store.read("a/b", 0, 9) == b"onetwo"
    store.write_whole("a/b", b"three")
    assert store.read("a/b", 0, 9) == b"three"
    assert list(store.names("")) == ["a/b"]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    store = SharedFolder(tmp_path)

    def parts() -> object:
        yield b"one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write_parts("a", parts())  # type: ignore[arg-type]
    assert list(store.names("")) == []


def test_only_one_of_many_creates_a_file(tmp_path: Path) -> None:
    created: list[int] = []

    def create(number: int) -> None:
        try:
            SharedFolder(tmp_path).create("w/x", b"%d" % number)
        except RefusedError:
            return
        created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert SharedFolder(tmp_path).read("w/x", 0, 9) == b"%d" % created[0]


def test_a_folder_that_is_removed_while_it_is_empty_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SharedFolder(tmp_path)
    real, stolen = steps.disk.replace, []

    def replace(source: Path, target: Path) -> None:
        if not stolen:
            stolen.append(target)
            target.parent.rmdir()
        real(source, target)

    monkeypatch.setattr(steps.disk, "replace", replace)
    store.write_whole("a/b/c", b"1")
    assert store.read("a/b/c", 0, 1) == b"1"


def test_empty_folders_go_with_their_last_file(tmp_path: Path) -> None:
    store = SharedFolder(tmp_path)
    store.write_whole("a/b/c", b"1")
    store.write_whole("a/d", b"2")
    assert store.remove("a/b/c")
    assert not store.remove("a/b/c")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["d"]
    assert list(store.names("a")) == ["a/d"]
    assert list(store.names("a/")) == ["a/d"]
    assert list(store.names("b")) == []


def test_it_is_opened_by_its_address(tmp_path: Path) -> None:
    store = SharedFolder(tmp_path)
    assert pickle.loads(pickle.dumps(store)).address == store.address
    opened = open_workspace(store.address)
    assert isinstance(opened, ObjectWorkspace)
    assert opened.address == store.address
    assert isinstance(open_workspace(tmp_path), Workspace)
    opened.lock()
    assert isinstance(open_workspace(tmp_path), ObjectWorkspace)  # it goes on as it was begun
