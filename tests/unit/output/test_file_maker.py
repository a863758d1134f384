"""Files made after encoding, the log of them, and the patterns by which formats name files."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.formats import base
from tokenmill.output import file_maker
from tokenmill.output.file_maker import FileMaker, digested, made_file
from tokenmill.output.journal import framed, journal_header, read_log
from tokenmill.output.workspace import Workspace
from tokenmill.planning.options import Options, plan_settings
from tokenmill.system.store import FolderStore


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "out")
    workspace.create()
    return workspace


def maker(workspace: Workspace, fingerprint: str = "plan") -> Any:
    return contextlib.closing(FileMaker(workspace, fingerprint, lambda: None))


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_buffers_become_pieces_of_one_size_with_the_same_bytes(buffers: list[bytes]) -> None:
    with mock.patch.object(file_maker, "PIECE_BYTES", 16):
        pieces = [bytes(piece) for piece in file_maker._in_pieces(iter(buffers))]
    assert b"".join(pieces) == b"".join(buffers)
    assert all(len(piece) == 16 for piece in pieces[:-1])
    assert all(pieces)


def test_a_made_file_has_its_bytes_pieces_and_what_its_format_noted(workspace: Workspace) -> None:
    def buffers() -> Generator[Any, None, base.Info]:
        yield b"head"
        yield np.arange(3, dtype="<u2")
        return {"raw": 10}

    with maker(workspace) as making:
        made = making.make("one", buffers())
        listed = making.make("two", [b"a", b"", b"b"])
    content = (workspace.files / "one").read_bytes()
    assert content == b"head" + bytes([0, 0, 1, 0, 2, 0])
    assert (made.size, made.pieces.tolist()) == (10, [[10, xxhash.xxh3_64_intdigest(content)]])
    assert made.info == {"raw": 10}
    assert (listed.size, listed.info) == (2, {})


def test_a_file_that_is_noted_is_made_again_only_if_it_is_damaged(workspace: Workspace) -> None:
    with maker(workspace) as making:
        making.make("one", [b"same"])
    with maker(workspace) as making:
        assert making.make("one", [b"another"]).size == 4
    (workspace.files / "one").write_bytes(b"sane")
    with maker(workspace) as making:
        assert making.make("one", [b"another"]).size == 7
    with maker(workspace, "another plan") as making:
        assert making.make("one", [b"of that plan"]).size == 12


def test_the_log_has_the_form_that_earlier_versions_wrote(workspace: Workspace) -> None:
    """A list of name, pieces and info as msgpack: a job of 0.1.0 is resumed."""
    pieces = [[4, xxhash.xxh3_64_intdigest(b"same")]]
    record = framed(msgspec.msgpack.encode(["one", pieces, {"raw": 4}]))
    (workspace.files / "one").write_bytes(b"same")
    (workspace.files / "made").write_bytes(journal_header("plan") + record)
    with maker(workspace) as making:
        made = making.make("one", [b"another"])
        making.make("two", [])
    assert (made.pieces.tolist(), made.info) == (pieces, {"raw": 4})
    log = (workspace.files / "made").read_bytes()
    assert log == journal_header("plan") + record + framed(msgspec.msgpack.encode(["two", [], {}]))


def test_a_log_is_read_up_to_its_first_torn_or_foreign_record(tmp_path: Path) -> None:
    log, store = tmp_path / "log", FolderStore(tmp_path)
    header, good = journal_header("plan"), framed(msgspec.msgpack.encode(1))
    assert read_log(store, "log", "plan", msgspec.msgpack.decode) == ([], 0)
    log.write_bytes(header + good + good[:-1])
    assert read_log(store, "log", "plan", msgspec.msgpack.decode) == (
        [1],
        len(header + good),
    )
    log.write_bytes(header + good + framed(b"\xc1") + good)
    assert read_log(store, "log", "plan", msgspec.msgpack.decode) == (
        [1],
        len(header + good),
    )
    assert read_log(store, "log", "another", msgspec.msgpack.decode) == ([], 0)


def test_a_files_size_is_the_sum_of_its_pieces() -> None:
    assert made_file("", [], {}).size == 0
    assert made_file("", map(digested, [b"abc", b"de"]), {}).size == 5


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5), st.integers(0, 9))
def test_spans_follow_each_other(blocks: list[list[int]], start: int) -> None:
    found = list(base.spans((np.array(block, np.int64) for block in blocks), start))
    assert [len(begins) for begins, _ in found] == [len(block) for block in blocks]
    begins = [begin for some, _ in found for begin in some.tolist()]
    ends = [end for _, some in found for end in some.tolist()]
    sizes = [size for block in blocks for size in block]
    assert [end - begin for begin, end in zip(begins, ends, strict=True)] == sizes
    assert begins[:1] in ([], [start])
    assert begins[1:] == ends[:-1]


def test_patterns_give_names_globs_and_lines() -> None:
    settings = plan_settings(Options(format="llmc", name="a[1]{x}"), "out")
    layout = settings.first
    names = base.file_names("{split}/{name}_{number:03d}-of-{of}{packed}", first_of_train=1)
    assert names(layout, "train", 0, 2) == "train/a[1]{x}_001-of-2"
    assert names(layout, "val", 0, 2) == "val/a[1]{x}_000-of-2"
    assert base.globs("{split}/{name}_*")(layout) == ("train/a[[]1]{x}_*", "val/a[[]1]{x}_*")
    shown = base.lines("{path!r} {dtype}", "{split_folder} {split}")(
        settings, layout, "it's", "train/f"
    )
    assert shown == ['"it\'s/train/f" uint16', "it's/train train"]
