"""The command line as a person meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.inputs import SAMPLES


def test_prepare_in_threads_forked_and_daemonic_processes(tmp_path: Path) -> None:
    script = f"""
import multiprocessing, os, sys, threading
import tokenmill
path, out = {str(SAMPLES[1])!r}, {str(tmp_path)!r}
import functools
prepare = functools.partial(tokenmill.prepare, val="docs:9")
main = sys.modules["__main__"]
threads = [
    threading.Thread(target=prepare, args=(path, out + f"/t{{i}}")) for i in range(3)
]
[t.start() for t in threads]; [t.join() for t in threads]
assert sys.modules["__main__"] is main
if os.fork() == 0:
    prepare(path, out + "/forked")
    os._exit(0)
os.wait()
def inside():
    try:
        prepare(path, out + "/daemon")
    except tokenmill.TokenmillError as error:
        os._exit(error.exit_code)
child = multiprocessing.get_context("fork").Process(target=inside, daemon=True)
child.start(); child.join()
print(child.exitcode)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"
    manifests = {
        (tmp_path / n / "manifest.json").read_bytes() for n in ("t0", "t1", "t2", "forked")
    }
    assert len(manifests) == 1
