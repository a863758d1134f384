"""Run the real command, as a user does: another process, its own environment and folder."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240.0


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what steers tokenmill or Python; this checkout is what is imported."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENMILL_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **(changes or {})}


def argv(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tokenmill", *map(str, arguments)]


def tokenmill(
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command to its end; `before` runs in the new process, before Python does."""
    return subprocess.run(
        argv(*arguments),
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
        env=environment(env),
        cwd=cwd,
        preexec_fn=before,
    )


def succeed(done: subprocess.CompletedProcess[str], code: int = 0) -> None:
    assert done.returncode == code, (
        f"exit {done.returncode}, should be {code}: {(done.stderr or done.stdout)[-1500:]}"
    )


def in_process(*arguments: object) -> tuple[int, str]:
    """The command without a new interpreter: its exit code and all that it printed."""
    from tokenmill.cli.main import main

    before = sys.argv
    sys.argv = ["tokenmill", *map(str, arguments)]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as stop:
        return int(stop.code or 0), printed.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("the command did not end with an exit code")
