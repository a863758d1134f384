"""Inputs from the Hub: the real download code against a small Hub of our own."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import command, process, token_bytes
from support.inputs import write_parquet
from support.loopback_hub import Hub, Repo, running_hub

EDU = "HuggingFaceFW/fineweb-edu"


INPUT = f"hf://datasets/{EDU}/sample/10BT/*.parquet"


FILES = [f"sample/10BT/{i:03d}_00000.parquet" for i in range(5)]


@contextlib.contextmanager
def environment(env: dict[str, str]) -> Iterator[None]:
    """These variables alone, for us and for the library, which reads its own when imported."""
    from huggingface_hub import close_session, constants

    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(env)
        importlib.reload(constants)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        importlib.reload(constants)
        close_session()


class World:
    """A Hub with five parquet files, an empty cache, and the same files on disk."""

    def __init__(self, folder: Path, hub: Hub, texts: list[str]) -> None:
        self.folder, self.hub = folder, hub
        self.local: list[Path] = []
        contents: dict[str, bytes] = {"README.md": b"# card", ".gitattributes": b"*.parquet lfs"}
        (folder / "local").mkdir()
        for i, name in enumerate(FILES):
            path = write_parquet(folder / "local" / f"{i}.parquet", texts[i * 9 :] + texts[: i * 9])
            self.local.append(path)
            contents[name] = path.read_bytes()
        contents["data/CC-MAIN-2024-10/000_00000.parquet"] = contents[FILES[0]][:]
        self.contents = contents
        self.repo: Repo = hub.repo(EDU)
        self.commit = self.repo.commit(contents)
        self.repo.tags["v1.0"] = self.commit

    @property
    def env(self) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "HF_HUB_OFFLINE")},
            **self.hub.environment(self.folder / "hf"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TOKENMILL_RETRY_SECONDS": "0.05",
            "TOKENMILL_SYNC_SECONDS": "0.1",
        }

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        """The command, in this process where it can be: that saves two seconds."""
        if "TOKENMILL_FAILPOINT" in env:
            return process(*args, env={**self.env, **env})
        with environment({**self.env, **env}):
            return command(*args)

    def prepare(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("prepare", INPUT, "-o", self.out, *args, **env)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def expected(self, *args: object) -> dict[str, bytes]:
        """What the local files give."""
        out = self.folder / "expected"
        if not out.exists():
            done = command("prepare", *self.local, "-o", out, "--name", "out", *args)
            assert done.returncode == 0, done.stderr
        return token_bytes(out)

    def blobs(self) -> set[str]:
        """Files that are complete in the Hub's cache, by their hash."""
        return {
            path.name
            for path in (self.folder / "hf").rglob("blobs/*")
            if not path.name.endswith(".incomplete")
        }

    def content_requests(self) -> list[str]:
        """Paths of the files whose content was asked for."""
        asked = [r.path.removeprefix("/cdn/") for r in self.hub.requests if r.method == "GET"]
        return [self.hub.blobs[d][0] for d in asked if d in self.hub.blobs]


@pytest.fixture
def world(tmp_path: Path, texts: list[str]) -> Iterator[World]:
    with running_hub() as hub:
        yield World(tmp_path, hub, texts)


def ok(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done
