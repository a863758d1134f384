"""Parts of a job as processes of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PARTS = 16
SMALL = {"LEASE_BYTES": "700", "RANGE_BYTES": "2000", "MAX_RUNS": "4", "SYNC_SECONDS": "0"}


def words(given: list[Path], options: dict[str, Any]) -> list[str]:
    told = [str(path) for path in given]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        told += [option] if value is True else [option, str(value)]
    return told


def start(*arguments: str, **more: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, **{f"TOKENMILL_{k}": v for k, v in {**SMALL, **more}.items()}}
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *arguments],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(output: Path) -> tuple[int, str]:
    process = start("finish", str(output), "--workers", "1", "--json")
    told, _ = process.communicate(timeout=120)
    return process.returncode, told.decode()
