"""The real command, what a run left behind, and processes that are started and seen to end."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import psutil
import pytest

import tokenmill
from tokenmill.errors import TokenmillError
from tokenmill.output.journal import read_journal
from tokenmill.system.store import FolderStore

IN_PROCESS = ("prepare", "plan", "verify", "inspect", "status", "export", "import")


def command(*args: object, env: dict[str, str] | None = None) -> CompletedProcess[str]:
    """The command: in this process, which saves a second, where the process does not matter."""
    if env is None and str(args[0]) in IN_PROCESS:
        return in_process(*map(str, args))
    return process(*args, env=env)


def process(*args: object, env: dict[str, str] | None = None) -> CompletedProcess[str]:
    """The real command, as a shell starts it."""
    return subprocess.run(
        [sys.executable, "-m", "tokenmill", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **(env or {})},
    )


def in_process(*args: str) -> CompletedProcess[str]:
    """All of the command but the process: options, messages, exit code."""
    from tokenmill.cli import main

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["tokenmill", *args]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main._run()
    finally:
        sys.argv = before
    return CompletedProcess(["tokenmill", *args], code, out.getvalue(), err.getvalue())


def dataset_bytes(folder: Path) -> dict[str, bytes]:
    """All files of a dataset but run.json, which is about the run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


def token_bytes(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in dataset_bytes(folder).items() if name.endswith(".bin")}


OFTEN = {"TOKENMILL_SYNC_SECONDS": "0.05"}


def durable_units(output: Path) -> set[tuple[int, int, int]]:
    work = output / ".tokenmill"
    if not (work / "plan.json").exists():
        return set()
    from tokenmill.planning.plan import fingerprint_of

    plan = msgspec.json.decode((work / "plan.json").read_bytes())["plan"]
    records, _ = read_journal(FolderStore(work), "journal", fingerprint_of(plan))
    return {(r.unit.source, r.unit.segment, r.unit.part) for r in records}


def start(inputs: list[Path], output: Path, options: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "prepare", *map(str, inputs), "-o", str(output),
         "--workers", "2", "--quiet", *options],
        env={**os.environ, **OFTEN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def gone(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def interrupted(inputs: list[Path], output: Path, units: int = 3, **options: object) -> None:
    """A job that stopped by itself after some units, in this process."""
    from tokenmill.output.durability import UnitLog

    written = UnitLog.written

    def stop_after(self: UnitLog, record: object, *, here: bool = True) -> None:
        written(self, record, here=here)  # type: ignore[arg-type]
        if self.encoded_units == units:
            raise TokenmillError("that is enough")

    UnitLog.written = stop_after  # type: ignore[method-assign]
    try:
        with pytest.raises(TokenmillError, match="that is enough"):
            tokenmill.prepare(inputs, output, workers=0, **options)  # type: ignore[arg-type]
    finally:
        UnitLog.written = written  # type: ignore[method-assign]
