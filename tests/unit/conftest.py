"""Tests in this folder start no process: what does belongs in tests/process."""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.util
import os
import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_process() -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test in tests/unit starts a process; tests/process is its place")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        patch.setattr(os, "fork", refuse)
        patch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
        patch.setattr(multiprocessing.util, "spawnv_passfds", refuse)
        yield
