"""Every command with an address of a bucket in place of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.buckets import (
    check_done,
    folder,  # noqa: F401
    folder_of,  # noqa: F401
    inputs,  # noqa: F401
    server,  # noqa: F401
    servers,  # noqa: F401
)
from support.commands import command

from reliability.corpus import dataset_bytes
from reliability.faulty_bucket import BUCKET, KEY, SECRET, FaultyBucket
from tokenmill.system.buckets.bucket import Bucket


def said_by(*args: object, code: int = 0) -> str:
    done = command(*args)
    assert done.returncode == code, done.stdout + done.stderr
    for secret in (KEY, SECRET):
        assert secret not in done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def address(server: FaultyBucket, folder: str, folder_of: Path) -> str:
    """A finished dataset, copied as it is."""
    store = Bucket(f"s3://{BUCKET}/{folder}")
    for path in (one for one in folder_of.rglob("*") if one.is_file()):
        store.write_whole(str(path.relative_to(folder_of)), path.read_bytes())
    return store.address


def test_what_reads_a_folder_reads_a_bucket(address: str, folder_of: Path, tmp_path: Path) -> None:
    for args in (
        ("verify",),
        ("verify", "--deep"),
        ("inspect", "--json"),
        ("inspect", "--document", 3),
        ("inspect", "--source", "b.jsonl", "--row", 7),
        ("inspect", "--token", 900),
    ):
        verb, *options = args
        here = said_by(verb, address, *options)
        there = said_by(verb, folder_of, *options)
        assert here.replace(address, "D") == there.replace(str(folder_of), "D") or verb == "verify"
    assert "finished" in said_by("status", address)
    said_by("export", address, "-o", tmp_path / "one", "--format", "megatron")
    said_by("export", folder_of, "-o", tmp_path / "two", "--format", "megatron")
    assert dataset_bytes(tmp_path / "one") == dataset_bytes(tmp_path / "two")


def test_a_changed_and_a_missing_file_in_a_bucket_are_named(address: str) -> None:
    store, name = Bucket(address), "x_train_000001.bin"
    content = bytearray(store.read(name, 0, 1 << 30))
    content[-9] ^= 1
    store.write_whole(name, bytes(content))
    assert f"{name}: " in said_by("verify", address, code=3)
    store.remove(name)
    assert f"{name}: missing" in said_by("verify", address, code=3)
    assert f"{name}: missing" in said_by("export", address, "-o", f"{address}-x", "--format", "mds",
                                         code=3)  # fmt: skip


def test_import_by_the_command_gives_a_bucket_its_manifest(
    server: FaultyBucket, folder: str, folder_of: Path, tmp_path: Path
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    (tmp_path / "bare").mkdir()
    for path in folder_of.glob("*.bin"):
        Bucket(address).write_whole(path.name, path.read_bytes())
        shutil.copy(path, tmp_path / "bare")
    said_by("import", address, "--format", "llmc")
    said_by("import", tmp_path / "bare", "--format", "llmc")
    check_done(server, folder, dataset_bytes(tmp_path / "bare"))
