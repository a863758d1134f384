"""The rule of this folder holds: a test that starts a process fails."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import forkserver

import pytest


def test_every_way_to_start_a_process_is_refused() -> None:
    for start in (
        lambda: subprocess.run([sys.executable, "-c", ""], check=False),
        os.fork,
        multiprocessing.get_context("spawn").Process(target=print).start,
        multiprocessing.get_context("fork").Process(target=print).start,
        forkserver.ForkServer().ensure_running,
    ):
        with pytest.raises(AssertionError, match="tests/process is its place"):
            start()


def test_a_lock_may_start_the_resource_tracker() -> None:
    """As tqdm's does, if the default start method is not fork: from Python 3.14 on."""
    multiprocessing.get_context("spawn").RLock()
