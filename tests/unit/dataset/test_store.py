"""Datasets that are not in a folder: every reader asks a store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.cases import quick

import tokenmill
from reliability.memory_store import MemoryStore
from tokenmill.errors import RefusedError, UsageError, VerificationError
from tokenmill.formats import FORMATS
from tokenmill.system.store import FolderStore, NotAFileError, Store, has_file, lines, read_whole


@pytest.fixture(scope="module", params=quick(sorted(FORMATS), "llmc", "mds", "parquet"))
def dataset(
    request: pytest.FixtureRequest, inputs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("store") / "o"
    options = {"format": request.param, "val": "docs:20", "workers": 0}
    if FORMATS[request.param].sharded:
        options["shard_tokens"] = "50k"
    tokenmill.prepare(inputs[:2], out, **options)  # type: ignore[arg-type]
    return out


def test_a_dataset_of_any_format_is_opened_and_read_from_a_store(dataset: Path) -> None:
    here, elsewhere = tokenmill.open_dataset(dataset), MemoryStore.copy_of(dataset)
    there = tokenmill.open_dataset(elsewhere)
    assert list(there) == list(here)
    for name in here:
        assert np.array_equal(there[name].tokens[:], here[name].tokens[:])
        assert there[name].documents[-1].tolist() == here[name].documents[-1].tolist()
        assert there[name].documents.source(3) == here[name].documents.source(3)


def test_a_dataset_of_any_format_is_verified_inspected_and_compared_in_a_store(
    dataset: Path,
) -> None:
    elsewhere = MemoryStore.copy_of(dataset)
    here, there = tokenmill.verify(dataset), tokenmill.verify(elsewhere)
    assert there.ok
    assert (there.files, there.bytes) == (here.files, here.bytes)
    told = msgspec.structs.replace(tokenmill.inspect(elsewhere), directory=str(dataset))
    assert told == tokenmill.inspect(dataset)
    view = tokenmill.inspect_document(elsewhere, document=5)
    assert view == tokenmill.inspect_document(dataset, document=5)
    report = tokenmill.verify_deep(elsewhere, sample=40)
    assert report.ok, report.problems


def test_damage_of_every_file_in_a_store_is_found(dataset: Path) -> None:
    whole = MemoryStore.copy_of(dataset)
    for name in sorted(set(whole.files) - {"run.json"}):
        content = whole.files[name]
        flipped = bytes([content[len(content) // 2] ^ 1])
        middle = len(content) // 2
        for damage in (content[:middle] + flipped + content[middle + 1 :], content[:-1], None):
            files = {**whole.files, name: damage or b""}
            if damage is None:
                del files[name]
            told = tokenmill.verify(MemoryStore(files)).problems
            assert any(name in problem for problem in told), name


def test_a_bad_sector_is_a_line_in_the_report(dataset: Path) -> None:
    class BadSector(MemoryStore):
        def read(self, name: str, offset: int, length: int) -> bytes:
            if name == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(name, offset, length)

    store = BadSector(MemoryStore.copy_of(dataset).files)
    bad = tokenmill.open_dataset(dataset).token_files[0].path
    problems = tokenmill.verify(store).problems
    assert problems
    assert set(problems) == {f"{bad}: cannot be read: Input/output error"}


def test_a_dataset_in_a_store_is_exported_to_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    for name, place in (("here", dataset), ("there", MemoryStore.copy_of(dataset))):
        tokenmill.export(place, tmp_path / name, format="nanogpt")
    here, there = (MemoryStore.copy_of(tmp_path / name).files for name in ("here", "there"))
    del here["run.json"], there["run.json"]
    assert here == there


def test_a_store_without_a_dataset_is_an_error() -> None:
    with pytest.raises(UsageError, match="not a finished dataset"):
        tokenmill.open_dataset(MemoryStore())
    with pytest.raises(VerificationError, match="not a manifest"):
        tokenmill.open_dataset(MemoryStore({"manifest.json": b"{}"}))


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "deep/b").write_bytes(b"")
    (tmp_path / "deep/er/c").write_bytes(b"one\ntwo\n\nthree")
    return FolderStore(tmp_path) if request.param == "folder" else MemoryStore.copy_of(tmp_path)


def test_every_store_reads_in_the_same_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.system.store.CHUNK", 4)
    assert (store.size("a"), store.size("deep/b"), store.size("none")) == (10, 0, None)
    assert store.read("a", 2, 3) == b"234"
    assert store.read("a", 8, 9) == b"89"
    assert store.read("a", 20, 9) == b""
    assert [bytes(chunk) for chunk in store.stream("a", 1, 8)] == [b"1234", b"5678"]
    assert [bytes(chunk) for chunk in store.stream("a", 7, 8)] == [b"789"]
    assert (bytes(store.view("a")), bytes(store.view("deep/b"))) == (b"0123456789", b"")
    assert list(store.list("")) == ["a", "deep"]
    assert list(store.list("deep")) == ["b", "er"]
    assert list(lines(store, "deep/er/c")) == [b"one", b"two", b"", b"three"]
    assert (has_file(store, "a"), has_file(store, "deep"), has_file(store, "none")) == (
        True, False, False,
    )  # fmt: skip
    for read in (store.view, lambda name: store.read(name, 0, 1), lambda n: read_whole(store, n)):
        with pytest.raises(FileNotFoundError):
            read("none")


def test_every_store_writes_in_the_same_way(store: Store) -> None:
    store.write_whole("deep/new", b"first")
    store.write_whole("deep/new", b"second")
    store.create("plan", b"mine")
    with pytest.raises(RefusedError, match="exists already"):
        store.create("plan", b"other")
    assert (read_whole(store, "deep/new"), read_whole(store, "plan")) == (b"second", b"mine")
    assert list(store.list("deep")) == ["b", "er", "new"]
    assert (store.remove("plan"), store.remove("plan"), store.size("plan")) == (True, False, None)


def test_what_is_in_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = FolderStore(tmp_path)
    for name in ("pipe", ""):
        with pytest.raises(NotAFileError):
            store.size(name)
    with pytest.raises(OSError, match="seek"):
        store.read("pipe", 0, 1)
