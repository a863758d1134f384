"""`ray job submit`, as docs/cluster.md has it: the driver is killed, and the same job is submitted
again. Needs Ray's job server: `pip install 'ray[default]'`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from reliability.corpus import dataset_bytes, documents, write_jsonl
from reliability.r19_cluster import wait_for_units
from tokenmill import pipeline

HAS_SERVER = importlib.util.find_spec("aiohttp_cors") is not None
pytestmark = pytest.mark.skipif(not HAS_SERVER, reason="pip install 'ray[default]'")
PAGE = (Path(__file__).parents[2] / "docs/cluster.md").read_text()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def head(env: dict[str, str]) -> Iterator[tuple[str, int]]:
    """A cluster with its job server: the address of the server, and the process that ends it."""
    port = free_port()
    # A socket's path is short, and those of pytest are not.
    with tempfile.TemporaryDirectory(prefix="rj", ignore_cleanup_errors=True) as folder:
        words = f"ray start --head --block --num-cpus 2 --port {free_port()} --temp-dir {folder} "
        words += f"--dashboard-port {port} --include-dashboard true --disable-usage-stats"
        started = subprocess.Popen(words.split(), env=env, stdout=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}", started.pid
        finally:
            below = psutil.Process(started.pid).children(recursive=True)
            started.terminate()
            started.wait(60)
            for process in psutil.wait_procs(below, 10)[1]:
                process.kill()


def documented(address: str, corpus: Path, output: Path) -> list[str]:
    """The command of the page, for our folders."""
    found = re.search(r"^ray job submit (?:.*\\\n)*.*$", PAGE, re.MULTILINE)
    assert found
    told = found[0].replace("\\\n", " ").replace("http://HEAD:8265", address)
    told = told.replace("/shared/corpus/", str(corpus)).replace("/shared/out", str(output))
    return shlex.split(told)


def driver_of(pid: int, output: Path) -> psutil.Process:
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if str(output) in words and "python" in Path(words[0]).name:
                return process
    raise AssertionError("there is no driver")


def wait_for_server(address: str, env: dict[str, str]) -> None:
    command = ["ray", "job", "list", "--address", address]
    for _ in range(60):
        if subprocess.run(command, env=env, capture_output=True).returncode == 0:
            return
        time.sleep(1)
    raise AssertionError("the job server does not answer")


def test_a_job_that_was_submitted_goes_on_when_it_is_submitted_again(tmp_path: Path) -> None:
    corpus, output = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    for number in range(60):
        write_jsonl(corpus / f"{number:02}.jsonl", documents(200, number))
    settings = ["--shard-tokens", "50k", "--name", "x", "--workers", "1"]
    pipeline.prepare(corpus, tmp_path / "one", format="llmc", shard_tokens="50k", name="x")
    # Ray demands a token, of the job's driver as well: it has the environment of the node.
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    with head(env) as (address, pid):
        wait_for_server(address, env)
        words = [*documented(address, corpus, output), *settings]
        first = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL)
        wait_for_units(output, 3, first)
        assert first.poll() is None, "it ended before it was killed"
        driver_of(pid, output).send_signal(signal.SIGKILL)
        assert first.wait(120) != 0, "a job whose driver was killed has not failed"
        assert not (output / "manifest.json").exists()
        recorded = len(list((output / ".tokenmill/records").iterdir()))
        again = subprocess.run(words, env=env, capture_output=True, text=True, timeout=500)
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-2000:]
    assert dataset_bytes(output) == dataset_bytes(tmp_path / "one")
    done = re.search(r"(\d+) units done before", again.stdout)
    assert done
    assert int(done[1]) >= recorded > 2
