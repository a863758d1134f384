"""Datasets in a bucket: made there, read there, and a store that fails in every way it can.

moto's server answers, behind a proxy that breaks what it is told to break.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.buckets import (
    OPTIONS,
    check_done,
    every,
    expected,  # noqa: F401
    folder,  # noqa: F401
    folder_of,  # noqa: F401
    inputs,  # noqa: F401
    server,  # noqa: F401
    servers,  # noqa: F401
    store,  # noqa: F401
)
from support.cases import quick
from support.commands import token_bytes

import tokenmill
from reliability.corpus import dataset_bytes, write_jsonl
from reliability.faulty_bucket import BUCKET, KEY, SECRET, Fault, FaultyBucket, Request
from tokenmill import pipeline
from tokenmill.dataset.status import status
from tokenmill.errors import (
    RefusedError,
    StorageError,
    TokenmillError,
    UsageError,
    VerificationError,
)
from tokenmill.output.file_maker import BufferSource
from tokenmill.output.objects.creating import create_once
from tokenmill.system.buckets.bucket import PART_BYTES, Bucket

MIX = """
tokens = 4000
[source.old]
inputs = ["dataset:{place}"]
weight = 0.5
[source.text]
inputs = ["{text}"]
weight = 0.5
max_epochs = 9
"""

# --- the store ---------------------------------------------------------------------------------


def test_a_file_is_written_whole_and_read_in_ranges(store: Bucket) -> None:
    store.write_whole("a/b", b"0123456789")
    assert store.size("a/b") == 10
    assert store.size("a/c") is None
    assert store.read("a/b", 2, 3) == b"234"
    assert store.read("a/b", 8, 9) == b"89"
    assert store.read("a/b", 10, 5) == b""
    assert store.read("a/b", 0, 0) == b""
    store.write_whole("empty", b"")
    assert store.read("empty", 0, 5) == b""
    assert bytes(store.view("empty")) == b""
    assert bytes(store.view("a/b")) == b"0123456789"
    with pytest.raises(FileNotFoundError):
        store.read("nothing", 0, 5)
    assert list(store.list("")) == ["a", "empty"]
    assert list(store.list("a")) == ["b"]
    assert list(store.names("")) == ["a/b", "empty"]
    assert list(store.names("a/")) == ["a/b"]
    store.remove("a/b")
    store.remove("a/b")
    assert list(store.names("")) == ["empty"]
    assert pickle.loads(pickle.dumps(store)).size("empty") == 0


def test_a_large_file_goes_up_in_parts_and_a_small_one_in_one_go(
    store: Bucket, server: FaultyBucket
) -> None:
    content = os.urandom(2 * PART_BYTES + 12345)
    cuts = [0, 3, PART_BYTES + 1, PART_BYTES + 7, len(content)]
    parts = [memoryview(content)[a:b] for a, b in itertools.pairwise(cuts)]
    store.write_parts("large", parts)
    assert server.count("part") == 3
    assert b"".join(map(bytes, store.stream("large", 0, len(content)))) == content
    store.write_parts("small", [b"ab", np.arange(3, dtype="u2"), b""])
    store.write_parts("none", [])
    assert server.count("begin") == 1
    assert store.read("small", 0, 99) == b"ab" + np.arange(3, dtype="u2").tobytes()
    assert store.size("none") == 0


def test_an_upload_that_fails_is_aborted_and_nothing_is_there(
    store: Bucket, server: FaultyBucket, folder: str
) -> None:
    def parts() -> Iterator[bytes]:
        yield os.urandom(2 * PART_BYTES + 5)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write_parts("x", parts())
    assert store.size("x") is None
    store.abort_uploads()  # a part that was under way may come after the library's own abort
    assert server.pending(folder) == []


def test_an_upload_whose_last_answer_is_lost_is_found_to_be_there(
    store: Bucket, server: FaultyBucket
) -> None:
    content = os.urandom(PART_BYTES + 5)
    server.faults = lambda request: Fault(cut="lost") if request.kind == "complete" else None
    store.write_parts("x", [content])
    assert store.read("x", 0, len(content)) == content
    store.write_parts("x", [content[::-1]])  # the same length: it is compared
    assert store.read("x", 0, len(content)) == content[::-1]


@pytest.mark.parametrize("again", [True, False], ids=["again", "once"])
@pytest.mark.parametrize("kind", ["begin", "complete"])
def test_an_upload_goes_on_if_the_answer_that_begins_or_ends_it_is_cut_off(
    store: Bucket, server: FaultyBucket, folder: str, kind: str, again: bool
) -> None:
    """`once`: its parts cannot be made a second time."""
    content = os.urandom(PART_BYTES + 5)
    parts = [content[:1000], content[1000:]]
    left = iter([Fault(cut="half"), Fault(200, "Cut", cut="half"), Fault(cut="half")])
    if kind == "complete" and not again:
        left = iter([Fault(cut="half")])
    server.faults = lambda request: next(left, None) if request.kind == kind else None
    store.write_parts("x", parts if again else iter(parts))
    assert store.read("x", 0, len(content)) == content
    store.abort_uploads()
    assert server.pending(folder) == []


def test_an_upload_that_was_not_ended_is_made_again(
    store: Bucket, server: FaultyBucket, folder: str
) -> None:
    """The store answers 200 at once when it ends an upload, and may fail after that."""
    content = os.urandom(PART_BYTES + 5)
    left = iter([Fault(200, "InternalServer", cut="half"), Fault(404, "NoSuchUpload")])
    server.faults = lambda request: next(left, None) if request.kind == "complete" else None
    made = 0

    def parts() -> Iterator[bytes]:
        nonlocal made
        made += 1
        yield content

    store.write_parts("x", BufferSource(parts))
    assert made == 3
    assert store.read("x", 0, len(content)) == content
    store.abort_uploads()
    assert server.pending(folder) == []


def test_uploads_of_processes_that_died_are_aborted(
    store: Bucket, server: FaultyBucket, folder: str
) -> None:
    for number in range(3):
        server.ask("POST", f"/{BUCKET}/{folder}/dead-{number}%20%C3%A4?uploads")
    server.ask("POST", f"/{BUCKET}/{folder}-other/dead?uploads")
    assert len(server.pending(folder)) == 3
    store.abort_uploads()
    assert server.pending(folder) == []
    assert len(server.pending(f"{folder}-other")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(500, "InternalError"),
        Fault(503, "SlowDown"),
        Fault(cut="before"),
        Fault(cut="lost"),
        Fault(cut="half"),
    ],
    ids=["500", "503", "cut", "lost", "half"],
)
def test_a_fault_that_passes_is_tried_again(
    store: Bucket, server: FaultyBucket, fault: Fault
) -> None:
    large = os.urandom(2 * PART_BYTES + 5)
    server.faults = every("any", 2, fault)
    store.write_whole("a", b"123")
    assert store.read("a", 1, 2) == b"23"
    assert store.size("a") == 3
    store.write_parts("large", [large])
    assert b"".join(map(bytes, store.stream("large", 0, len(large)))) == large
    create_once(store, "once", b"1")
    create_once(store, "once", b"1")
    with pytest.raises(RefusedError):
        create_once(store, "once", b"2")
    assert list(store.names("")) == ["a", "large", "once"]
    for name in ("a", "large", "once"):
        store.remove(name)
    assert list(store.names("")) == []
    store.abort_uploads()


def test_a_conflict_is_tried_again_until_the_file_is_there(
    store: Bucket, server: FaultyBucket
) -> None:
    left = iter([Fault(409, "ConditionalRequestConflict")] * 3)
    server.faults = lambda request: next(left, None) if request.kind == "create" else None
    store.create("x", b"1")
    assert store.read("x", 0, 9) == b"1"
    with pytest.raises(RefusedError, match="exists already"):
        store.create("x", b"1")


def test_the_local_copies_of_indexes_are_bounded(
    store: Bucket, server: FaultyBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENMILL_BUCKET_CACHE", "25")
    for number in range(5):
        store.write_whole(f"{number}", b"%d" % number * 10)
    views = [store.view(f"{number}") for number in range(5)]
    kept = list((tmp_path / "cache/tokenmill/buckets").iterdir())
    assert len(kept) == 2
    assert [bytes(view) for view in views] == [b"%d" % number * 10 for number in range(5)]
    before = server.count("get")
    store.view("4")
    assert server.count("get") == before
    store.write_whole("4", b"x" * 10)  # another version is another copy
    assert bytes(store.view("4")) == b"x" * 10


# --- datasets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", quick([0, 2], 2))
def test_a_dataset_in_a_bucket_is_that_of_a_folder(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    expected: dict[str, bytes],
    workers: int,
    tmp_path: Path,
    folder_of: Path,
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    result = pipeline.prepare(inputs, address, workers=workers, **OPTIONS)
    assert result.output == address
    check_done(server, folder, expected)
    assert pipeline.prepare(inputs, address, workers=workers, **OPTIONS).already_done
    assert tokenmill.verify(address).ok
    assert tokenmill.verify_deep(address).ok
    dataset = pickle.loads(pickle.dumps(tokenmill.open_dataset(address)))
    local = tokenmill.open_dataset(folder_of)
    assert (dataset["train"].tokens[:] == local["train"].tokens[:]).all()
    assert dataset["train"].documents[7].tolist() == local["train"].documents[7].tolist()
    assert dataset["train"].documents.source(9) == local["train"].documents.source(9)
    assert tokenmill.inspect(address).counts == local.manifest.counts
    for source, target in ((address, "one"), (folder_of, "other")):
        tokenmill.export(source, tmp_path / target, format="mds")
    assert dataset_bytes(tmp_path / "one") == dataset_bytes(tmp_path / "other")
    assert status(address).state == "finished"


def test_export_writes_to_a_bucket_and_import_gives_a_manifest_there(
    server: FaultyBucket, folder: str, inputs: list[Path], tmp_path: Path
) -> None:
    out, address = tmp_path / "out", f"s3://{BUCKET}/{folder}"
    pipeline.prepare(inputs, out, workers=0, **OPTIONS)
    tokenmill.export(out, tmp_path / "local", format="nanogpt")
    tokenmill.export(out, f"{address}/exported", format="nanogpt")
    check_done(server, f"{folder}/exported", dataset_bytes(tmp_path / "local"))
    bare = Bucket(f"{address}/bare")
    for name in ("train.bin", "val.bin"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        content = (tmp_path / "local" / name).read_bytes()
        (tmp_path / "bare" / name).write_bytes(content)
        bare.write_whole(name, content)
    tokenmill.adopt(tmp_path / "bare", format="nanogpt")
    tokenmill.adopt(f"{address}/bare", format="nanogpt")
    check_done(server, f"{folder}/bare", dataset_bytes(tmp_path / "bare"))
    with pytest.raises(UsageError, match="is the dataset itself"):
        tokenmill.export(f"{address}/exported", f"{address}/exported/", format="llmc")


def test_a_shuffled_dataset_in_a_bucket_is_that_of_a_folder(
    server: FaultyBucket, folder: str, inputs: list[Path], tmp_path: Path
) -> None:
    options = {**OPTIONS, "shuffle": True, "seed": 5}
    pipeline.prepare(inputs, tmp_path / "out", workers=0, **options)
    pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=2, **options)
    check_done(server, folder, dataset_bytes(tmp_path / "out"))


@pytest.mark.parametrize("workers", quick([0, 1], 0))
def test_a_dataset_in_a_bucket_is_reused_and_mixed_like_that_of_a_folder(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    folder_of: Path,
    tmp_path: Path,
    workers: int,
) -> None:
    address = f"s3://{BUCKET}/{folder}/old"
    pipeline.prepare(inputs, address, workers=0, **OPTIONS)
    options = {**OPTIONS, "shard_tokens": 1500, "workers": workers}
    result = pipeline.prepare(inputs, tmp_path / "new", reuse=address, **options)
    assert result.run["reused"]["documents"] == 70
    pipeline.prepare(inputs, tmp_path / "all", **options)
    assert dataset_bytes(tmp_path / "new") == dataset_bytes(tmp_path / "all")
    with pytest.raises(UsageError, match="is the output itself"):
        pipeline.prepare(inputs, f"{address}-x", reuse=f"{address}-x/", **options)
    for name, place in (("bucket", address), ("folder", folder_of)):
        mix = tmp_path / f"{name}.toml"
        mix.write_text(MIX.format(place=place, text=inputs[1]))
        pipeline.prepare([], tmp_path / name, mix=mix, **{**options, "val": 0.1})
    assert token_bytes(tmp_path / "bucket") == token_bytes(tmp_path / "folder")
    assert server.count("get") < 200


def test_a_changed_byte_of_a_dataset_in_a_bucket_that_is_mixed_is_an_error(
    server: FaultyBucket, folder: str, inputs: list[Path], tmp_path: Path
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    pipeline.prepare(inputs, address, workers=0, **OPTIONS)
    store, name = Bucket(address), "x_train_000001.bin"
    content = bytearray(store.read(name, 0, 1 << 30))
    content[-9] ^= 1
    store.write_whole(name, bytes(content))
    options = {**OPTIONS, "val": 0.1}
    (tmp_path / "mix.toml").write_text(MIX.format(place=address, text=inputs[1]))
    with pytest.raises(VerificationError, match=f"{address}/{name}: was changed"):
        pipeline.prepare([], tmp_path / "out", mix=tmp_path / "mix.toml", workers=0, **options)


def test_another_plan_is_refused_and_overwrite_removes_what_was_there(
    server: FaultyBucket, folder: str, inputs: list[Path], expected: dict[str, bytes]
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    pipeline.prepare(inputs, address, workers=0, **{**OPTIONS, "shard_tokens": 900})
    with pytest.raises(RefusedError):
        pipeline.prepare(inputs, address, workers=0, **OPTIONS)
    pipeline.prepare(inputs, address, workers=0, overwrite=True, **OPTIONS)
    check_done(server, folder, expected)


def test_a_versioned_bucket_and_odd_names_are_no_trouble(
    server: FaultyBucket, folder: str, inputs: list[Path], expected: dict[str, bytes]
) -> None:
    versioned = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert server.ask("PUT", "/mill-versioned")[0] == 200
    assert server.ask("PUT", "/mill-versioned?versioning", versioned)[0] == 200
    odd = "a b+c%20d/ä#&=/e?f"
    address = f"s3://mill-versioned/{odd}"
    pipeline.prepare(inputs, address, workers=0, **{**OPTIONS, "shard_tokens": 900})
    pipeline.prepare(inputs, address, workers=0, overwrite=True, **OPTIONS)
    store = Bucket(address)
    assert {*store.names("")} - {"run.json"} == expected.keys()
    assert all(store.read(name, 0, 1 << 30) == expected[name] for name in expected)
    assert tokenmill.verify(address).ok


def test_a_dataset_in_gcs_is_that_of_a_folder(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's client of GCS; the server is moto's, with the headers of GCS translated."""
    for name, value in server.gcs_environment().items():
        monkeypatch.setenv(name, value)
    address = f"gs://{BUCKET}/{folder}"
    server.faults = every("any", 4, Fault(503, "SlowDown"))
    pipeline.prepare(inputs, address, workers=0, **OPTIONS)
    server.faults = lambda request: None
    check_done(server, folder, expected)
    assert tokenmill.verify(address).ok
    store = Bucket(address)
    with pytest.raises(RefusedError):
        store.create("manifest.json", b"another")
    content = os.urandom(PART_BYTES + 5)
    store.write_parts("large", iter([content]))
    assert b"".join(map(bytes, store.stream("large", 0, len(content)))) == content


def test_in_gcs_a_file_that_is_gone_already_keeps_no_other_from_being_removed(
    server: FaultyBucket, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GCS answers 404 for it, and the library then leaves the rest of its list undone."""
    for name, value in server.gcs_environment().items():
        monkeypatch.setenv(name, value)
    store = Bucket(f"gs://{BUCKET}/{folder}")
    for number in range(25):
        store.write_whole(f"{number:02}", b"1")
    store.remove_all(["none", *(f"{number:02}" for number in range(25)), "neither"])
    assert list(store.names("")) == []
    store.remove("none")


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fault"),
    quick(
        [
            ("any", Fault(500, "InternalError")),
            ("any", Fault(503, "SlowDown")),
            ("create", Fault(409, "ConditionalRequestConflict")),
            ("any", Fault(cut="before")),
            ("any", Fault(cut="lost")),
            ("any", Fault(cut="half")),
        ],
        first=2,
        several=True,
    ),
    ids=["500", "503", "409", "cut", "lost", "half"],
)
def test_a_job_survives_a_store_that_fails_often(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    expected: dict[str, bytes],
    kind: str,
    fault: Fault,
) -> None:
    server.faults = every(kind, 3, fault)
    pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=0, **OPTIONS)
    server.faults = lambda request: None
    check_done(server, folder, expected)


def test_a_store_that_ignores_conditions_is_refused_and_left_clean(
    server: FaultyBucket, folder: str, inputs: list[Path]
) -> None:
    def ignore(request: Request) -> Fault | None:
        return Fault(unconditional=True) if request.kind == "create" else None

    server.faults = ignore
    with pytest.raises(RefusedError, match="does not honour conditions") as refused:
        pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=0, **OPTIONS)
    assert "copy it" in refused.value.hint
    assert server.objects(folder) == {}
    server.faults = lambda request: (
        Fault(501, "NotImplemented") if request.kind == "create" else None
    )
    with pytest.raises(RefusedError, match="does not honour conditions"):
        pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=0, **OPTIONS)


@pytest.mark.parametrize("workers", quick([0, 2], 0))
def test_credentials_that_expire_stop_the_run_and_new_ones_resume_it(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    expected: dict[str, bytes],
    workers: int,
) -> None:
    address = f"s3://{BUCKET}/{folder}"

    def expire(request: Request) -> Fault | None:
        written = sum(one.kind == "put" and "/units/" in one.key for one in server.requests)
        return Fault(400, "ExpiredToken") if written > 0 else None

    server.faults = expire
    with pytest.raises(StorageError, match="credentials have expired") as stopped:
        pipeline.prepare(inputs, address, workers=workers, **OPTIONS)
    assert "same command again: it resumes" in stopped.value.hint
    server.faults = lambda request: None
    assert status(address).state == "unfinished"
    pipeline.prepare(inputs, address, workers=workers, **OPTIONS)
    check_done(server, folder, expected)


def test_workers_get_the_credentials_that_are_set_now(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork server keeps the environment that it was started with."""
    with monkeypatch.context() as before:
        before.setenv("AWS_SECRET_ACCESS_KEY", "old")
        before.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        pipeline.prepare(inputs, tmp_path / "o", workers=1, **OPTIONS)
    pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=1, **OPTIONS)
    check_done(server, folder, expected)


@pytest.mark.parametrize(
    ("kinds", "fault", "said", "advice"),
    [
        ("list", Fault(403, "AccessDenied"), "no permission to list", "s3:ListBucket"),
        ("create", Fault(403, "AccessDenied"), "no permission to write", "s3:PutObject"),
        ("delete", Fault(403, "AccessDenied"), "no permission to remove", "s3:DeleteObject"),
        ("get head", Fault(403, "AccessDenied"), "no permission to read", "s3:GetObject"),
        ("any", Fault(403, "RequestTimeTooSkewed"), "clock", "set the clock"),
        ("any", Fault(403, "InvalidAccessKeyId"), "credentials", "AWS_ACCESS_KEY_ID"),
        ("any", Fault(403, "SignatureDoesNotMatch"), "credentials", "AWS_SECRET_ACCESS_KEY"),
        ("any", Fault(301, "PermanentRedirect"), "another region", "AWS_REGION"),
        ("create", Fault(507, "XMinioStorageFull"), "full, or a quota", "raise the quota"),
        ("create", Fault(403, "QuotaExceeded"), "full, or a quota", "raise the quota"),
        ("create", Fault(400, "KeyTooLongError"), "does not accept this name", "-o"),
        ("any", Fault(500, "InternalError"), "after several tries", "resumes"),
        ("any", Fault(cut="before"), "does not answer", "AWS_ENDPOINT_URL"),
    ],
)
def test_a_fault_that_stays_is_a_sentence_that_says_what_to_do(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    kinds: str,
    fault: Fault,
    said: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokenmill.system.buckets.client.RETRIES", 1)
    monkeypatch.setattr("tokenmill.system.buckets.bucket.ATTEMPTS", 1)
    chosen = kinds.split()
    server.faults = lambda request: fault if {"any", request.kind} & {*chosen} else None
    with pytest.raises(TokenmillError) as stopped:
        pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=0, **OPTIONS)
    shown = f"{stopped.value} {stopped.value.hint}"
    assert said in stopped.value.message
    assert advice in stopped.value.hint
    assert f"s3://{BUCKET}/{folder}" in stopped.value.message
    assert KEY not in shown
    assert SECRET not in shown
    assert "on purpose" not in shown


MID_RUN = [
    ("part", Fault(507, "XMinioStorageFull"), "full, or a quota", "raise the quota"),
    ("delete", Fault(403, "AccessDenied"), "no permission to remove", "s3:DeleteObject"),
    ("put", Fault(403, "AccessDenied"), "no permission to write", "s3:PutObject"),
    ("begin", Fault(403, "AccessDenied"), "no permission to write", "s3:PutObject"),
    ("part", Fault(403, "QuotaExceeded"), "full, or a quota", "raise the quota"),
    ("complete", Fault(400, "ExpiredToken"), "credentials have expired", "get new ones"),
    ("get", Fault(400, "ExpiredToken"), "credentials have expired", "get new ones"),
    ("get", Fault(403, "RequestTimeTooSkewed"), "clock", "set the clock"),
    ("list", Fault(403, "AccessDenied"), "no permission to list", "s3:ListBucket"),
    ("put", Fault(404, "NoSuchBucket"), "there is no such bucket", "create the bucket"),
]


@pytest.mark.parametrize(
    ("kind", "fault", "said", "advice"),
    [*MID_RUN[:2], *(pytest.param(*case, marks=pytest.mark.long) for case in MID_RUN[2:])],
)
def test_a_fault_in_mid_run_says_what_to_do_and_the_same_command_resumes(
    server: FaultyBucket,
    folder: str,
    inputs: list[Path],
    expected: dict[str, bytes],
    kind: str,
    fault: Fault,
    said: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_PART_BYTES", "1500")
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    address = f"s3://{BUCKET}/{folder}"
    at_work = False

    def faults(request: Request) -> Fault | None:
        nonlocal at_work
        at_work |= "/units/" in request.key and request.kind in ("put", "begin")
        return fault if at_work and request.kind == kind else None

    server.faults = faults
    with pytest.raises(StorageError) as stopped:
        pipeline.prepare(inputs, address, workers=0, **OPTIONS)
    assert said in stopped.value.message
    assert advice in stopped.value.hint
    if fault.code != "NoSuchBucket":
        assert "same command again: it resumes" in stopped.value.hint
    server.faults = lambda request: None
    assert status(address).state in ("unfinished", "finished")
    pipeline.prepare(inputs, address, workers=0, **OPTIONS)
    check_done(server, folder, expected)


def test_a_key_that_may_not_list_or_abort_uploads_makes_the_dataset_all_the_same(
    server: FaultyBucket, folder: str, inputs: list[Path], expected: dict[str, bytes]
) -> None:
    server.faults = lambda request: (
        Fault(403, "AccessDenied") if request.kind in ("uploads", "abort") else None
    )
    pipeline.prepare(inputs, f"s3://{BUCKET}/{folder}", workers=0, **OPTIONS)
    check_done(server, folder, expected)


def test_a_dataset_in_a_bucket_is_not_called_damaged_when_credentials_have_expired(
    server: FaultyBucket, folder: str, folder_of: Path
) -> None:
    address = f"s3://{BUCKET}/{folder}"
    for path in (one for one in folder_of.rglob("*") if one.is_file()):
        Bucket(address).write_whole(str(path.relative_to(folder_of)), path.read_bytes())
    server.faults = lambda request: (
        Fault(400, "ExpiredToken") if request.key.endswith(".bin") else None
    )
    for read in (tokenmill.verify, tokenmill.verify_deep):
        with pytest.raises(StorageError, match="credentials have expired"):
            read(address)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a//b", "cannot be a part of a name"),
        ("../a", "cannot be a part of a name"),
        ("a\nb", "cannot be a part of a name"),
        ("a" * 901, "more than 900 bytes"),
    ],
)
def test_a_name_that_no_store_takes_is_refused_before_anything_is_asked(
    server: FaultyBucket, inputs: list[Path], name: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as stopped:
        pipeline.prepare(inputs, f"s3://{BUCKET}/{name}", workers=0, **OPTIONS)
    assert stopped.value.hint
    assert not server.requests


def test_a_bucket_that_is_not_there_is_a_sentence_that_says_what_to_do(
    server: FaultyBucket, inputs: list[Path]
) -> None:
    for step in (
        lambda: pipeline.prepare(inputs, "s3://no-such-mill/x", workers=0, **OPTIONS),
        lambda: tokenmill.open_dataset("s3://no-such-mill/x"),
        lambda: tokenmill.verify("s3://no-such-mill/x"),
        lambda: status("s3://no-such-mill/x"),
    ):
        with pytest.raises(StorageError, match="there is no such bucket") as stopped:
            step()
        assert "create the bucket no-such-mill" in stopped.value.hint


def test_without_credentials_the_variables_are_named(
    server: FaultyBucket, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UsageError, match="no credentials are set") as stopped:
        pipeline.prepare(inputs, f"s3://{BUCKET}/x", workers=0, **OPTIONS)
    assert "AWS_ACCESS_KEY_ID" in stopped.value.hint
    (tmp_path / "keys").write_text(
        f"[other]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert Bucket(f"s3://{BUCKET}/x").size("nothing") is None


# --- kills -------------------------------------------------------------------------------------

COMMAND = """
import sys
from tokenmill import pipeline
pipeline.prepare(sys.argv[2:], sys.argv[1], workers=2, format="nanogpt", val="docs:5",
                 encoder_check="none")
"""


@pytest.mark.long
def test_killed_between_the_parts_of_an_upload_and_resumed_nothing_is_left_over(
    server: FaultyBucket, folder: str, tmp_path: Path
) -> None:
    letters = random.Random(5)
    words = [letters.randbytes(4).hex() for _ in range(1 << 18)]
    text = [" ".join(words[at : at + 64]) for at in range(0, len(words), 64)]
    write_jsonl(tmp_path / "large.jsonl", [one * 8 for one in text])
    inputs = [str(tmp_path / "large.jsonl")]
    address = f"s3://{BUCKET}/{folder}"
    kills = iter(["part", "complete", "part"])
    running: list[subprocess.Popen[bytes]] = []
    wanted = next(kills)

    def kill(request: Request) -> Fault | None:
        nonlocal wanted
        if request.kind == wanted and request.query.get("partNumber") != ["1"] and running:
            wanted = ""
            os.killpg(running.pop().pid, signal.SIGKILL)
            return Fault(cut="lost")
        return None

    server.faults = kill
    left = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, address, *inputs], start_new_session=True
        )
        running[:] = [process]
        code = process.wait(120)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        time.sleep(0.2)
        left += len(server.pending(folder))
        wanted = next(kills, "")
    assert code == 0
    assert left > 0
    pipeline.prepare(inputs, tmp_path / "out", workers=0, format="nanogpt", val="docs:5")
    check_done(server, folder, dataset_bytes(tmp_path / "out"))


def test_a_forked_process_is_told_that_it_cannot_use_a_bucket(store: Bucket) -> None:
    store.write_whole("a", b"123")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            store.read("a", 0, 3)
        except StorageError as error:
            os.write(write, f"{error.message} {error.hint}".encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(read, 10_000).decode()
    os.close(read)
    assert "forked" in said
    assert "multiprocessing_context='spawn'" in said
