"""A command with inputs on a web server or in S3, and an S3 of our own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.hub import environment

from reliability.faulty_bucket import moto_server


def command(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command, in this process."""
    with environment({**os.environ, **(env or {})}):
        return commands.command(*args)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TOKENMILL_RETRY_SECONDS": "0.05"}


def ok(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def s3(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an S3 of our own; the environment leads the command to it."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    boto3 = pytest.importorskip("boto3")
    servers = contextlib.ExitStack()
    host, port = servers.enter_context(moto_server())
    env.update(
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="verysecret",
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_DEFAULT_REGION="us-east-1",
    )
    client = boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        aws_access_key_id="key",
        aws_secret_access_key="verysecret",
        region_name="us-east-1",
    )
    urllib.request.urlopen(f"{env['AWS_ENDPOINT_URL']}/moto-api/reset", b"").close()
    client.create_bucket(Bucket="corpus")
    yield client
    client.close()
    servers.close()
