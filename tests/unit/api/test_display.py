"""What the Python functions show: on a terminal, in a notebook, elsewhere, and when quiet."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.inputs import write_parquet

import tokenmill
from tokenmill.api import display
from tokenmill.engines.observer import Observer, Snapshot
from tokenmill.errors import TokenmillError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "a.parquet", ["one two three", "", "four"] * 50)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Notebook:
    """IPython as a kernel has it: what is displayed, and updated in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.displayed: list[str] = []
        self.updated: list[str] = []
        ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
        shown.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", shown)
        monkeypatch.setattr(display, "NOTEBOOK_SECONDS", 0.0)

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.displayed.append(content["text/plain"])
        return SimpleNamespace(update=lambda new, raw: self.updated.append(new["text/plain"]))


def test_elsewhere_plain_lines_on_stderr_show_plan_and_summary(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenmill.prepare(source, tmp_path / "o", min_tokens=2, val="none", workers=0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan: 1 file, ")
    assert "train: 50 documents" in err
    assert "100 documents under min_tokens" in err, "keywords, not flags"
    assert "--" not in err
    assert "load it:\n  import numpy as np" in err
    assert "\x1b" not in err


def test_a_notebook_shows_one_line_that_is_updated(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook = Notebook(monkeypatch)
    tokenmill.prepare(source, tmp_path / "o", val="docs:3", workers=0)
    out, err = capsys.readouterr()
    assert err == "", "red in a notebook"
    assert out.startswith("plan: 1 file, ")
    assert "val:   3 documents" in out
    assert len(notebook.displayed) == 1
    assert notebook.displayed[0].startswith("encoding ")
    assert notebook.updated[-1] == "", "the bar goes, the summary stays"


def test_warnings_are_shown_and_speak_of_keywords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = [write_parquet(tmp_path / f"{name}.parquet", [name] * 20) for name in "ab"]
    result = tokenmill.prepare(several, tmp_path / "o", val="docs:3", workers=0)
    told = "; a fraction (such as val=0.01) takes some of each"
    assert any(warning.endswith(told) for warning in result.warnings)
    assert f"warning: {result.warnings[0]}" in capsys.readouterr().err


def test_a_terminal_gets_a_live_bar(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    tokenmill.prepare(source, tmp_path / "o", val="none", workers=0)
    assert "plan: 1 file" in terminal.getvalue()
    assert "encoding" in terminal.getvalue()
    assert "load it:" in terminal.getvalue()


def test_quiet_shows_nothing_and_so_does_an_observer(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    class Mine(Observer):
        def update(self, snapshot: Snapshot) -> None:
            seen.append(snapshot.tokens)

    tokenmill.prepare(source, tmp_path / "o", val="none", workers=0, quiet=True)
    tokenmill.export(tmp_path / "o", tmp_path / "e", format="hf", quiet=True)
    tokenmill.plan(source, tmp_path / "p", quiet=True)
    tokenmill.download(source, quiet=True)
    tokenmill.prepare(source, tmp_path / "q", val="none", workers=0, observer=Mine())
    assert capsys.readouterr() == ("", "")
    assert seen


def test_other_functions_show_what_they_did(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenmill.prepare(source, tmp_path / "o", val="none", workers=0, quiet=True)
    tokenmill.export(tmp_path / "o", tmp_path / "e", format="flat")
    assert "flat train: 150 documents" in capsys.readouterr().err
    for name in ("manifest.json", "run.json"):
        (tmp_path / "o" / name).unlink()
    for file in (tmp_path / "o" / "index").iterdir():
        file.unlink()
    (tmp_path / "o" / "index").rmdir()
    tokenmill.adopt(tmp_path / "o", format="nanogpt")
    assert "nanogpt train: 150 documents" in capsys.readouterr().err
    tokenmill.download(source)
    assert "prepare() with the same arguments goes on" in capsys.readouterr().err


class Gone(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stderr", [None, Gone()])
def test_a_stderr_that_has_gone_stops_nothing(
    stderr: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr("tokenmill.cli.progress.PLAIN_SECONDS", 0.0)
    assert tokenmill.prepare(source, tmp_path / "o", val="none", workers=0).manifest.counts


def test_notes_and_errors_speak_of_keywords(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenmill.prepare(source, tmp_path / "o", val="none", workers=0, quiet=True)
    with pytest.raises(TokenmillError) as error:
        tokenmill.prepare(source, tmp_path / "o", val="none", workers=0, seed=3)
    assert "overwrite=True" in error.value.hint
    assert str(error.value) == f"{error.value.message}\nhint: {error.value.hint}"
    display.PlainLines().note("fewer workers: --memory 500MB holds no more")
    assert "note: fewer workers: memory='500MB' holds no more" in capsys.readouterr().err
