"""Folders and names that come from somebody else, and what must not be printed."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support.inputs import write_jsonl

import tokenmill
from reliability.r17_security import (
    Scene,
    linked_file,
    planted_pipe,
    source_text,
)
from tokenmill.cli.progress import LiveProgress
from tokenmill.errors import (
    RefusedError,
    TokenmillError,
    UsageError,
    VerificationError,
    from_wire,
    without_secrets,
)
from tokenmill.output.manifest import Manifest


def test_a_link_is_refused_by_name(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.output.mkdir()
    (scene.output / ".tokenmill").symlink_to(scene.outside)
    with pytest.raises(RefusedError, match=r"\.tokenmill: is a symbolic link"):
        scene.prepare()


def test_a_linked_token_file_is_read_and_only_its_link_removed(tmp_path: Path) -> None:
    linked_file(Scene(tmp_path))


def test_a_manifest_names_its_own_files_only(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.prepare()
    manifest = Manifest.load(scene.output)
    for name in (
        "a/b.bin", "link/x", ".x", "run.json", "index/../x", "a\0b", "a\nb", "x" * 300, "/x",
        "a//b", "../x", "train/../x", "mds/a/x", "mds/train/a/x", "index/train/x", "train/.x",
        "train/",
    ):  # fmt: skip
        entry = msgspec.structs.replace(manifest.files[0], path=name)
        forged = msgspec.structs.replace(manifest, files=[entry, *manifest.files[1:]]).sealed()
        with pytest.raises(VerificationError, match="does not belong"):
            Manifest.decode(forged.encode(), "there")


@pytest.mark.parametrize("where", ["train.bin", "index/train.ends", "run.json"])
@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(where: str, tmp_path: Path) -> None:
    planted_pipe(Scene(tmp_path), where)


@pytest.mark.timeout(60)
def test_a_tokenizer_without_an_end_is_not_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(UsageError, match="not a regular file"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, tokenizer="/dev/zero")
    with pytest.raises(UsageError, match="unknown tokenizer"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, tokenizer="x" * 5000)


@pytest.mark.parametrize("name", ["x" * 250, "é" * 120, "a\nb", "a\x1b[31m", "../a", ".a", "a\0"])
def test_a_name_that_no_file_can_have_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    """A long one used to be found out when the shards were renamed, after all the work."""
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(UsageError, match="cannot begin a file name"):
        tokenmill.prepare(path, tmp_path / "o", workers=0, format="llmc", name=name)
    assert not (tmp_path / "o").exists()


def test_shards_with_a_name_of_brackets_are_told_from_strangers(tmp_path: Path) -> None:
    """The name is not a pattern: [1] would match 1."""
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    tokenmill.prepare(path, tmp_path / "o", workers=0, format="llmc", name="a[1]*")
    (tmp_path / "o" / "a1_train_000007.bin").write_bytes(b"")
    assert tokenmill.verify(tmp_path / "o").ok
    (tmp_path / "o" / "a[1]*_train_000007.bin").write_bytes(b"")
    assert not tokenmill.verify(tmp_path / "o").ok


def test_the_sources_have_no_danger_in_them(tmp_path: Path) -> None:
    source_text(tmp_path)


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.unfinished()
    for content in (b"{}", b"[]", b'{"plan": 3, "mtimes": {}}', b"\xff"):
        (scene.output / ".tokenmill" / "plan.json").write_bytes(content)
        with pytest.raises(RefusedError, match="damaged"):
            scene.prepare()


def test_passwords_in_urls_are_not_repeated(tmp_path: Path) -> None:
    url = "https://me:secret@host/a.parquet?sig=secret&x=y"
    with pytest.raises(UsageError) as refused:
        tokenmill.prepare(url, tmp_path / "o", workers=0)
    assert "secret" not in str(refused.value)
    assert "https://***@host/a.parquet?*** holds credentials" in refused.value.message
    with pytest.raises(UsageError, match="credentials") as refused:
        tokenmill.prepare(write_jsonl(tmp_path / "a.jsonl", ["x"]), "s3://key@bucket/x", workers=0)
    assert "key@" not in str(refused.value)
    assert not os.path.exists("s3:")
    assert without_secrets("C:/x@y and a@b.c?d") == "C:/***@y and a@b.c?d"
    assert without_secrets("no url: me@host?x=y") == "no url: me@host?x=y"


def test_messages_cannot_steer_a_terminal_or_forge_a_line() -> None:
    error = TokenmillError("a\x1b[31m\nerror: b", hint="c\x9bd", lines=["e\nf", "g"])
    assert error.message == "a\\x1b[31m\\nerror: b\n  e\\nf\n  g"
    assert error.hint == "c\\x9bd"
    again = from_wire(error.to_wire())
    assert (again.message, again.hint) == (error.message, error.hint)


def test_a_note_is_text_and_not_markup() -> None:
    """Names stand in notes: [/b] used to end the run, [red] to vanish."""
    progress = LiveProgress()
    progress.console = Console(file=io.StringIO(), width=200)
    progress.note("read [/b] and [red]x\x1b[0m")
    printed = progress.console.file.getvalue()  # type: ignore[attr-defined]
    assert "read [/b] and [red]x\\x1b[0m" in printed
