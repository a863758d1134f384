"""Files as tasks: ranges give the bytes of the whole, nothing finished is made again."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import dataset_bytes
from support.inputs import write_jsonl
from support.shard_of import InMemory

import tokenmill
from tokenmill import assembly
from tokenmill.errors import TooLargeError
from tokenmill.formats import FORMATS as ALL_FORMATS
from tokenmill.formats import get_format
from tokenmill.output import commit as committing
from tokenmill.output import editions, file_maker, file_tasks
from tokenmill.output.file_maker import FileMaker, FileTask
from tokenmill.output.file_tasks import FileWorker, range_of, tasks_of
from tokenmill.output.files import OutputFiles
from tokenmill.output.workspace import Workspace
from tokenmill.planning.options import Options, plan_settings
from tokenmill.tokens.reframe import ReframedStream
from tokenmill.tokens.shards import ShardView, tokens_of


def shard_of(format: str, documents: list[list[int]], **options: Any) -> ShardView:
    settings = plan_settings(Options(format=format, name="x", **options), "out")
    stream = ReframedStream(InMemory(documents, settings), settings, settings.first)
    return ShardView(stream, "train", 0, 1, 0, stream.tokens, 0, stream.documents)


@given(
    st.sampled_from(["llmc", "nanogpt", "megatron", "modded"]),
    st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=9), min_size=1, max_size=9),
    st.lists(st.integers(0, 1200), max_size=4),
)
def test_ranges_of_a_file_are_the_file(
    format: str, documents: list[list[int]], cuts: list[int]
) -> None:
    """Also where a range begins within the header or within a token."""
    shard = shard_of(format, documents)
    whole = b"".join(bytes(memoryview(b).cast("B")) for b in tokens_of(shard))
    borders = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    with mock.patch.object(file_tasks, "BLOCK_TOKENS", 3):
        parts = [
            bytes(memoryview(buffer).cast("B"))
            for start, stop in itertools.pairwise(borders)
            if start < stop
            for buffer in range_of(shard, start, stop)
        ]
    assert b"".join(parts) == whole


def test_a_large_plain_file_is_cut_at_whole_pieces_and_a_framed_one_is_not() -> None:
    assert file_tasks.RANGE_BYTES % file_maker.PIECE_BYTES == 0
    assert file_tasks.RANGE_BYTES % (1 << 20) == 0
    shard = shard_of("llmc", [[1, 2, 3]])
    shard.tokens = 100_000_000
    tasks = tasks_of(shard, 0, Workspace("out"))
    assert [task.start for task in tasks] == list(
        range(0, 200_000_000 + 1024, file_tasks.RANGE_BYTES)
    )
    assert tasks[-1].stop == 200_000_000 + 1024
    assert len({task.name for task in tasks}) == len(tasks)
    framed = shard_of("mds", [[1, 2, 3]])
    framed.tokens = 100_000_000
    assert [task.stop for task in tasks_of(framed, 0, Workspace("out"))] == [0]


def test_a_task_is_small_and_names_no_path() -> None:
    [task] = tasks_of(shard_of("mds", [[1]]), 1, Workspace("out"))
    encoded = msgspec.msgpack.encode(task)
    assert len(encoded) < 100
    assert msgspec.msgpack.decode(encoded, type=FileTask) == task
    assert b"/" not in encoded


@pytest.fixture
def given_input(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", [f"some text {n}" * 40 for n in range(400)])


SETTINGS: dict[str, Any] = {"shard_tokens": "10k", "val": "docs:9", "workers": 0, "name": "x"}
FORMATS = ["mds", "llmc,hf,parquet", "litdata,flat", "megatron,olmo"]


@contextlib.contextmanager
def counted_makes() -> Any:
    """The names of all parts that are made."""
    names: list[str] = []
    make = FileWorker.make

    def noted(self: FileWorker, task: FileTask, on_piece: Any) -> Any:
        made = make(self, task, on_piece)
        names.append(task.name)
        return made

    with mock.patch.object(FileWorker, "make", noted):
        yield names


@pytest.mark.parametrize("formats", FORMATS)
def test_tasks_give_the_bytes_of_files_made_in_one_go(
    formats: str, given_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted_makes() as names:
        tokenmill.prepare(given_input, tmp_path / "tasks", format=formats, **SETTINGS)
    assert names
    commit = committing.commit
    with monkeypatch.context() as patch:
        patch.setattr(
            assembly.committing, "commit", lambda *a, **o: commit(*a, **{**o, "make_files": None})
        )
        tokenmill.prepare(given_input, tmp_path / "one-go", format=formats, **SETTINGS)
    assert dataset_bytes(tmp_path / "tasks") == dataset_bytes(tmp_path / "one-go")


def test_ranges_have_the_checksums_of_the_file_made_in_one_go(
    given_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second format's single file is made in many ranges, of two pieces each."""
    settings = {**SETTINGS, "format": "nanogpt,flat", "shard_tokens": None}
    monkeypatch.setattr(file_maker, "PIECE_BYTES", 1 << 10)
    tokenmill.prepare(given_input, tmp_path / "whole", **settings)
    monkeypatch.setattr(file_tasks, "RANGE_BYTES", 2 << 10)
    with counted_makes() as names:
        tokenmill.prepare(given_input, tmp_path / "ranges", **settings)
    assert len([name for name in names if "@" in name]) > 10
    assert dataset_bytes(tmp_path / "ranges") == dataset_bytes(tmp_path / "whole")


@pytest.mark.parametrize("formats", ["mds", "nanogpt,flat"])
def test_a_job_that_ended_while_files_were_made_makes_none_of_them_again(
    formats: str, given_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "format": formats}
    if formats != "mds":
        settings["shard_tokens"] = None
        monkeypatch.setattr(file_maker, "PIECE_BYTES", 1 << 10)
        monkeypatch.setattr(file_tasks, "RANGE_BYTES", 2 << 10)
    with counted_makes() as all_names:
        tokenmill.prepare(given_input, tmp_path / "clean", **settings)
    make, first = FileWorker.make, []

    def failing(self: FileWorker, task: FileTask, on_piece: Any) -> Any:
        if len(first) == 3:
            on_piece(1)
            self.files.write_at(task.working, task.start, b"half a file")
            raise KeyboardInterrupt
        made = make(self, task, on_piece)
        first.append(task.name)
        return made

    with mock.patch.object(FileWorker, "make", failing), pytest.raises(KeyboardInterrupt):
        tokenmill.prepare(given_input, tmp_path / "o", **settings)
    with counted_makes() as again:
        tokenmill.prepare(given_input, tmp_path / "o", **settings)
    assert sorted(first + again) == sorted(all_names)
    assert dataset_bytes(tmp_path / "o") == dataset_bytes(tmp_path / "clean")


def test_a_damaged_range_is_made_again_and_no_other(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "out")
    workspace.create()
    base = FileTask("one", 0, 0, "train", 0, 1, 0, 9, 0, 1)
    parts = [msgspec.structs.replace(base, start=at, stop=at + 4) for at in (0, 4, 8)]
    with contextlib.closing(FileMaker(workspace, "plan", lambda: None)) as maker:
        assert maker.missing(parts) == parts
        for part in parts:
            written = file_maker.write_pieces(
                maker.files, "one", [b"abcd"], lambda _: None, start=part.start
            )
            maker.note(part, *written)
        joined = maker.joined(parts)
        assert joined is not None
        assert (joined.size, len(joined.pieces)) == (12, 3)
    path = workspace.files / "one"
    path.write_bytes(b"abcdabXdabcd and what an earlier job left")
    with contextlib.closing(FileMaker(workspace, "plan", lambda: None)) as maker:
        assert maker.missing(parts) == parts[1:2]
        assert maker.joined(parts) is None
        maker.files.write_at("one", 4, b"abcd")
        assert maker.joined(parts) is not None
    assert path.read_bytes() == b"abcdabcdabcd"


def test_a_worker_that_goes_on_after_another_has_made_the_file_takes_nothing_away(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path / "out")
    workspace.create()
    with contextlib.closing(FileMaker(workspace, "plan", lambda: None)) as maker:
        maker.make("one", [b"all of it"])

        def late() -> Any:
            yield b"all"
            assert (workspace.files / "one").read_bytes() == b"all of it"
            yield b" of it"

        file_maker.write_pieces(maker.files, "one", late(), lambda _: None)
    assert (workspace.files / "one").read_bytes() == b"all of it"


def test_streams_are_read_from_framed_files_too(given_input: Path, tmp_path: Path) -> None:
    """`export` tells its workers of files in any format."""
    tokenmill.prepare(given_input, tmp_path / "hf", format="hf", **SETTINGS)
    tokenmill.export(tmp_path / "hf", tmp_path / "o", format="flat", workers=0)
    tokens = np.concatenate([np.fromfile(p, "<u4") for p in (tmp_path / "o").rglob("train*.bin")])
    assert len(tokens) == len(tokenmill.open_dataset(tmp_path / "hf")["train"].tokens)


@pytest.mark.parametrize(
    ("format", "refused"), [("parquet", True), ("hf", True), ("litdata", False)]
)
def test_a_document_too_large_for_memory_is_refused_with_the_memory_it_takes(
    format: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is encoded stays: with that much memory the same command makes the files."""
    source = write_jsonl(tmp_path / "a.jsonl", ["short", "some long text " * 4000, "short"])
    monkeypatch.setattr(editions, "BLOCK_TOKENS", 1000)
    fmt = get_format(format)
    much = msgspec.structs.replace(fmt, document_memory=fmt.document_memory * 5000)
    monkeypatch.setitem(ALL_FORMATS, format, much)
    settings = {"format": format, "val": "docs:1", "workers": 0}
    if not refused:
        tokenmill.prepare(source, tmp_path / "o", memory="650MB", **settings)
        return
    told = r"a.jsonl, row 1: a document of 12,002 tokens, which \w+ holds in one piece; that takes"
    with counted_makes() as names, pytest.raises(TooLargeError, match=told) as error:
        tokenmill.prepare(source, tmp_path / "o", memory="650MB", **settings)
    assert not names
    [memory] = re.findall(r"memory='(\d+MB)'", error.value.hint)
    result = tokenmill.prepare(source, tmp_path / "o", memory=memory, **settings)
    assert result.run["units_encoded"] == 0
    with pytest.raises(TooLargeError, match=told):
        tokenmill.export(tmp_path / "o", tmp_path / "e", format=format, memory="650MB", workers=0)


def test_a_file_that_a_worker_made_is_synced_with_its_name_before_it_is_told(
    given_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the log would note a file whose name a power cut may take away."""
    steps: list[str] = []
    sync, sync_names, make = OutputFiles.sync, OutputFiles.sync_names, FileWorker.make

    def noted_sync(self: OutputFiles, name: str) -> None:
        steps.append(f"sync {name}")
        sync(self, name)

    def noted_names(self: OutputFiles, folder: str) -> None:
        steps.append("names")
        sync_names(self, folder)

    def noted_make(self: FileWorker, task: FileTask, on_piece: Any) -> Any:
        steps.clear()
        made = make(self, task, on_piece)
        told.append(steps == [f"sync {task.working}", "names"])
        return made

    told: list[bool] = []
    monkeypatch.setattr(OutputFiles, "sync", noted_sync)
    monkeypatch.setattr(OutputFiles, "sync_names", noted_names)
    monkeypatch.setattr(FileWorker, "make", noted_make)
    tokenmill.prepare(given_input, tmp_path / "out", format="mds", **SETTINGS)
    assert told
    assert all(told)
