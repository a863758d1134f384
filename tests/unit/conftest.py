"""Tests in this folder start no process: what does belongs in tests/process.

The interpreter's own resource tracker is no such process: from Python 3.14 on a lock of
multiprocessing starts it, and so does every progress bar of tqdm.
"""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.util
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

TRACKER = "from multiprocessing.resource_tracker import main"


@pytest.fixture(autouse=True, scope="module")
def no_process() -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test in tests/unit starts a process; tests/process is its place")

    spawn = multiprocessing.util.spawnv_passfds

    def spawn_tracker(path: bytes, arguments: list[Any], passed: list[int]) -> int:
        if not any(str(argument).startswith(TRACKER) for argument in arguments):
            refuse()
        return spawn(path, arguments, passed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        patch.setattr(os, "fork", refuse)
        patch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
        patch.setattr(multiprocessing.util, "spawnv_passfds", spawn_tracker)
        yield
