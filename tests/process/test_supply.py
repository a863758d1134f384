"""In which order and how far ahead files are fetched, and what is left of it; no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tokenmill.system.disk import sweep_unlocked


def test_what_another_process_is_writing_stays_and_goes_when_that_was_killed(
    tmp_path: Path,
) -> None:
    """Told by a lock, not by a process id: a cache may be shared by machines, or containers."""
    program = (
        "import pathlib, sys, time\n"
        "from tokenmill.system.cache import GrowingFile\n"
        "growing = GrowingFile(pathlib.Path(sys.argv[1]))\n"
        "growing.write(b'half')\n"
        "print('writing', flush=True)\n"
        "time.sleep(60)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    sweep_unlocked(tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"half"]
    writer.kill()
    writer.wait()
    sweep_unlocked(tmp_path)
    assert not list(tmp_path.iterdir())
    writer.stdout.close()
