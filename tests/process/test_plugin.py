"""A package of somebody else's adds an input kind and a format: see tests/plugin."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.commands import command

import tokenmill
from tokenmill.errors import UsageError
from tokenmill.formats.base import Format
from tokenmill.inputs.kind import InputKind
from tokenmill.inputs.kinds import BUILT_IN
from tokenmill.system import plugins

CONTENT = 'id|text\n1|one, two\n2|"a line\nand another"\n3|\n4|"last"\n'
TEXTS = ["one, two", "a line\nand another", "", "last"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a.psv"
    path.write_text(CONTENT)
    return path


def test_the_command_reads_its_files_and_writes_its_format(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    ran = command("prepare", table, "-o", out, "--format", "ids32", "--workers", "2")
    assert ran.returncode == 0, ran.stderr
    assert "np.fromfile" in ran.stdout
    codec = reference.encoding("gpt2")
    expected = [id for text in TEXTS for id in (*codec.encode_ordinary(text), 50256)]
    assert np.fromfile(out / "train.ids32", "<u4").tolist() == expected
    for arguments in (["verify", out], ["verify", out, "--deep"], ["inspect", out]):
        assert command(*arguments).returncode == 0, arguments


def test_its_format_beside_one_of_ours_in_a_folder_of_its_own(table: Path, tmp_path: Path) -> None:
    tokenmill.prepare(table, tmp_path / "o", format="nanogpt,ids32", val="none", workers=0)
    assert (tmp_path / "o" / "ids32" / "train.ids32").exists()
    assert tokenmill.verify(tmp_path / "o").ok


def test_plan_estimates_and_errors_name_its_rows(table: Path, tmp_path: Path) -> None:
    shown = command("plan", table, "-o", tmp_path / "o")
    assert shown.returncode == 0, shown.stderr
    assert "a.psv" in shown.stdout
    table.write_text("id|text\n1|good\n2\n")
    ran = command("prepare", table, "-o", tmp_path / "o")
    assert ran.returncode == 1
    assert "a.psv: row 1: the row is too short" in ran.stderr
    ran = command("prepare", table, "-o", tmp_path / "p", "--text-column", "body")
    assert (ran.returncode, "columns are: id, text" in ran.stderr) == (2, True)


def test_nobody_looks_for_packages_when_all_names_are_ours(tmp_path: Path) -> None:
    script = """
import sys, importlib.metadata as metadata
def refuse(*a, **k): raise AssertionError("looked for entry points")
metadata.entry_points = refuse
import tokenmill
tokenmill.prepare(sys.argv[1], sys.argv[2], format="llmc,mds", val="none", workers=0)
assert tokenmill.verify(sys.argv[2]).ok
"""
    (tmp_path / "a.txt").write_text("some text")
    ran = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "a.txt", tmp_path / "o"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("value", ["nowhere:X", "os:getcwd"])
def test_a_broken_package_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("odd", value, "tokenmill.inputs")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    plugins.added.cache_clear()
    with pytest.raises(UsageError, match=r"tokenmill\.inputs 'odd'") as caught:
        plugins.added("tokenmill.inputs", InputKind)
    plugins.added.cache_clear()
    assert "uninstall the package" in caught.value.hint


def test_the_package_adds_one_of_each_and_nothing_else() -> None:
    found = {p.group for p in metadata.distribution("tokenmill-test-plugin").entry_points}
    assert found == {"tokenmill.inputs", "tokenmill.formats"}
    assert [kind.name for kind in plugins.added("tokenmill.inputs", InputKind)] == ["psv"]
    assert [one.name for one in plugins.added("tokenmill.formats", Format)] == ["ids32"]
    assert [kind.name for kind in BUILT_IN][:4] == ["parquet", "arrow", "jsonl", "text"]
