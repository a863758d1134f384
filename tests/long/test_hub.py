"""Inputs from the Hub: the real download code against a small Hub of our own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest
from support.commands import token_bytes
from support.hub import (
    FILES,
    INPUT,
    World,
    ok,
    world,  # noqa: F401  # noqa: F401  # noqa: F401
)
from support.loopback_hub import Answer, Request, sha256


@pytest.mark.parametrize("keep", ["--keep-downloads", "--no-keep-downloads"])
def test_killed_at_any_moment_it_resumes_and_fetches_no_complete_file_twice(
    world: World, keep: str
) -> None:
    world.hub.bytes_per_second = 4e6
    downloads = world.out / ".tokenmill" / "downloads"
    complete: set[str] = set()
    kills = 0
    for attempt in range(40):
        world.hub.requests.clear()
        command = [sys.executable, "-m", "tokenmill", "prepare", INPUT, "-o", str(world.out), keep]
        process = subprocess.Popen(
            [*command, "--downloads", "2"], env=world.env, stderr=subprocess.PIPE
        )
        try:
            process.wait(0.8 + 0.13 * attempt)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        asked = {sha256(world.contents[name]) for name in world.content_requests()}
        assert not asked & complete, "a complete file was fetched again"
        if keep == "--keep-downloads":
            complete |= world.blobs()
        else:
            sizes = {sha256(c): len(c) for c in world.contents.values()}
            for path in downloads.glob("*/sample/10BT/*.parquet"):
                digest = sha256(path.read_bytes())
                complete |= {digest} & sizes.keys()
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert kills >= 3
    assert token_bytes(world.out) == world.expected()
    left = list(world.folder.rglob("*.incomplete"))
    assert not left, "what killed runs left in the Hub's cache was not removed"


@pytest.mark.parametrize("workers", ["0", "3"])
@pytest.mark.parametrize("keep", ["--keep-downloads", "--no-keep-downloads"])
def test_manifest_and_tokens_are_the_same_however_they_were_fetched(
    world: World, workers: str, keep: str
) -> None:
    ok(world.prepare())
    other = world.folder / "other"
    ok(world.run("prepare", INPUT, "-o", other, "--workers", workers, keep, "--downloads", "2"))
    assert token_bytes(other) == world.expected()
    assert (other / "manifest.json").read_bytes() == (world.out / "manifest.json").read_bytes()


def test_deep_verification_reads_the_fetched_files_again(world: World) -> None:
    ok(world.prepare())
    deep = ok(world.run("verify", world.out, "--deep"))
    assert "every document encoded again" in deep.stdout
    blob = next((world.folder / "hf").rglob(f"blobs/{sha256(world.contents[FILES[2]])}"))
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    damaged = world.run("verify", world.out, "--deep")
    assert damaged.returncode == 3
    assert FILES[2] in damaged.stdout
    shutil.rmtree(world.folder / "hf")
    gone = world.run("verify", world.out, "--deep")
    assert gone.returncode == 2
    assert "--download-only" in gone.stderr
    root = world.folder / "root"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(world.contents[name])
    ok(world.run("verify", world.out, "--deep", "--source-root", root))


@pytest.mark.parametrize(
    ("where", "answer", "times"),
    [
        ("/tree/", Answer(status=429, headers={"Retry-After": "1"}), 1),
        ("/tree/", Answer(status=503), 2),
        ("/revision/", Answer(status=500), 2),
        ("/cdn/", Answer(status=429, headers={"Retry-After": "1"}), 1),
        ("/cdn/", Answer(status=503), 3),
        ("/cdn/", Answer(status=502), 3),
        ("/cdn/", Answer(cut_after=5000), 2),
        ("/cdn/", Answer(cut_after=0), 2),
    ],
)
def test_a_busy_server_and_a_line_that_drops_are_waited_for(
    world: World, where: str, answer: Answer, times: int
) -> None:
    world.hub.fault(where, answer, times)
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()
    assert not world.hub.faults[0](Request("GET", where, {}, {})), "the fault never came"
