"""Inputs from the Hub: the real download code against a small Hub of our own."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from support.commands import command, token_bytes
from support.hub import (
    EDU,
    FILES,
    INPUT,
    World,
    ok,
    world,  # noqa: F401
)
from support.inputs import write_parquet
from support.loopback_hub import Answer, Repo, Request, sha256
from support.tokenizer_files import write_json

from tokenmill.amounts import show_bytes


def test_the_tokens_are_those_of_the_same_files_on_disk(world: World) -> None:
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()
    assert ok(world.run("verify", world.out)).stdout.startswith("ok")


def test_the_commit_and_the_sha256_of_every_file_are_recorded(world: World) -> None:
    ok(world.prepare())
    plan = json.loads((world.out / "manifest.json").read_bytes())["plan"]
    assert plan["revisions"] == {f"hf://datasets/{EDU}@main": world.commit}
    assert [source["name"] for source in plan["sources"]] == [
        f"hf://datasets/{EDU}@{world.commit}/{name}" for name in FILES
    ]
    assert [source["fingerprint"] for source in plan["sources"]] == [
        f"sha256:{sha256(world.contents[name])}" for name in FILES
    ]


def test_a_second_run_with_another_tokenizer_and_format_asks_for_no_byte(world: World) -> None:
    ok(world.prepare())
    fetched = world.content_requests()
    other = world.folder / "other"
    ok(world.run("prepare", INPUT, "-o", other, "--format", "llmc", "--tokenizer", "cl100k_base"))
    assert world.content_requests() == fetched
    assert sorted(fetched) == FILES
    assert world.hub.times("/tree/") == 1


def test_the_same_command_is_done_at_once_and_asks_the_hub_nothing(world: World) -> None:
    ok(world.prepare())
    asked = len(world.hub.requests)
    assert "already complete" in ok(world.prepare()).stdout
    assert len(world.hub.requests) == asked


def test_the_first_file_is_encoded_and_durable_before_the_second_has_come(world: World) -> None:
    arrived = threading.Event()

    def hold(path: str) -> None:
        if path != FILES[0]:
            assert arrived.wait(60), "file 1 was not encoded while file 2 was on its way"

    world.hub.hold = hold
    journal = world.out / ".tokenmill" / "journal"

    def watch() -> None:
        while not arrived.is_set():
            with contextlib.suppress(OSError):
                if journal.stat().st_size > 200:  # more than its header
                    arrived.set()
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    done = world.prepare()
    held = not arrived.is_set()
    arrived.set()
    watcher.join()
    ok(done)
    assert not held


def test_files_that_are_not_kept_are_gone_when_done_and_few_at_any_time(
    world: World, texts: list[str]
) -> None:
    many = {f"many/{i:02d}.parquet": world.contents[FILES[i % 5]] + b"" for i in range(16)}
    for i, name in enumerate(many):
        path = write_parquet(world.folder / "one.parquet", [f"{i} {text}" for text in texts[:60]])
        many[name] = path.read_bytes()
    world.repo.commit({**world.contents, **many})
    downloads = world.out / ".tokenmill" / "downloads"
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                most[0] = max(most[0], len(list(downloads.glob("*/many/*.parquet"))))
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        done = world.run(
            "prepare", f"hf://datasets/{EDU}/many", "-o", world.out,
            "--no-keep-downloads", "--downloads", "2",
        )  # fmt: skip
    finally:
        stop.set()
        watcher.join()
    ok(done)
    assert 1 <= most[0] <= 4  # two on their way and two ahead
    assert not downloads.exists()
    assert not world.blobs()
    assert len(world.content_requests()) == 16


def test_a_trial_run_fetches_no_more_than_it_reads(world: World) -> None:
    ok(world.prepare("--limit-docs", "20"))
    assert world.content_requests() == FILES[:1]


def test_download_only_fetches_everything_and_prepare_goes_on_offline(world: World) -> None:
    done = ok(world.prepare("--download-only"))
    assert "downloaded 5 files" in done.stdout
    assert not world.out.exists()
    asked = len(world.hub.requests)
    ok(world.prepare(HF_HUB_OFFLINE="1"))
    assert len(world.hub.requests) == asked
    assert token_bytes(world.out) == world.expected()


def test_a_hub_that_never_answers_is_not_waited_for_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library asks for lists without a limit in time."""
    from tokenmill.errors import SourceError
    from tokenmill.inputs.remote import hub, retry

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.1)
    monkeypatch.setattr(retry, "ATTEMPTS", 2)
    monkeypatch.setenv("TOKENMILL_RETRY_SECONDS", "0.01")
    address = hub.HubAddress(kind="dataset", repo=EDU, revision="main", path="sample/10BT")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        for pin in ("", world.commit):
            with pytest.raises(SourceError, match="timed out"):
                hub.find_on_hub(address, pin, hub.ListCache(lambda _: None), (".parquet",))


def test_a_server_that_stays_down_ends_the_run_with_a_message_and_it_resumes(world: World) -> None:
    world.hub.fault(sha256(world.contents[FILES[3]]), Answer(status=503), 10**6)
    done = world.prepare("--workers", "1", TOKENMILL_RETRY_SECONDS="0.01")
    assert done.returncode == 1
    assert FILES[3] in done.stderr
    assert "HTTP 503" in done.stderr
    assert "Traceback" not in done.stderr
    world.hub.faults.clear()
    before = world.blobs()
    world.hub.requests.clear()
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()
    asked = {sha256(world.contents[name]) for name in world.content_requests()}
    assert not asked & before


def test_a_file_damaged_on_its_way_is_fetched_once_more(world: World) -> None:
    content = world.contents[FILES[1]]
    bad = content[:3000] + bytes([content[3000] ^ 1]) + content[3001:]
    world.hub.fault(sha256(content), Answer(body=bad))
    done = ok(world.prepare())
    assert "downloaded once more" in done.stderr
    assert token_bytes(world.out) == world.expected()


def test_a_wrong_sha256_ends_the_run_and_leaves_no_bad_file(world: World) -> None:
    content = world.contents[FILES[1]]
    digest = sha256(content)
    world.hub.fault(digest, Answer(body=content[:-1] + b"?"), times=10**6)
    done = world.prepare()
    assert done.returncode == 1
    assert FILES[1] in done.stderr
    assert f"the Hub says {digest}" in done.stderr
    assert digest not in world.blobs()
    assert not (world.out / "manifest.json").exists()


def test_a_file_that_changes_between_listing_and_download_is_refused(world: World) -> None:
    original = world.repo.commits[world.commit]

    def after_listing(request: Request) -> Answer | None:
        if "/resolve/" in request.path:
            original[FILES[1]] = world.contents[FILES[0]]
        return None

    world.hub.faults[:] = [after_listing]
    done = world.prepare()
    assert done.returncode == 1
    assert FILES[1] in done.stderr
    assert "changed since it was listed" in done.stderr
    # What it was changed to is the content of another file: that one stays.
    assert sha256(world.contents[FILES[0]]) in world.blobs()


def test_a_private_repository_says_which_login_is_needed(world: World) -> None:
    world.repo.token = "hf_secret"
    done = world.prepare()
    assert done.returncode == 2
    assert "hf auth login" in done.stderr
    assert "HF_TOKEN" in done.stderr
    wrong = world.prepare(HF_TOKEN="hf_wrong")
    assert wrong.returncode == 2
    assert "you are logged in" in wrong.stderr
    ok(world.prepare(HF_TOKEN="hf_secret"))


def test_a_gated_repository_says_where_to_accept_its_terms(world: World) -> None:
    world.repo.token, world.repo.gated = "hf_secret", True
    for env in ({}, {"HF_TOKEN": "hf_other"}):
        done = world.prepare(**env)
        assert done.returncode == 2
        assert "gated" in done.stderr
        assert f"{world.hub.url}/datasets/{EDU}" in done.stderr
    ok(world.prepare(HF_TOKEN="hf_secret"))


def test_content_that_is_forbidden_is_not_asked_for_again_and_again(world: World) -> None:
    world.hub.fault("/cdn/", Answer(status=403), times=10**6)
    done = world.prepare("--downloads", "1")
    assert done.returncode == 2
    assert "hf auth login" in done.stderr
    assert world.hub.times("/cdn/") == 1


def test_the_token_is_nowhere_in_output_logs_or_files(world: World) -> None:
    world.repo.token = "hf_verysecret"
    done = ok(world.prepare(HF_TOKEN="hf_verysecret"))
    assert "verysecret" not in done.stdout + done.stderr
    for path in [*world.out.rglob("*"), *(world.folder / "cache").rglob("*")]:
        if path.is_file():
            assert b"verysecret" not in path.read_bytes(), path


def test_a_missing_revision_says_which_there_are(world: World) -> None:
    done = world.run("prepare", f"hf://datasets/{EDU}@v2/sample/10BT", "-o", world.out)
    assert done.returncode == 2
    assert "no revision 'v2'" in done.stderr
    assert "main, v1.0" in done.stderr


def test_a_missing_sample_or_dump_says_which_there_are(world: World) -> None:
    sample = world.run("prepare", f"hf://datasets/{EDU}/sample/12BT", "-o", world.out)
    assert sample.returncode == 2
    assert "10BT" in sample.stderr
    dump = world.run("fineweb", "--version", "CC-MAIN-2024-11", "-o", world.out)
    assert dump.returncode == 2
    assert "CC-MAIN-2024-10" in dump.stderr
    pattern = world.run("prepare", f"hf://datasets/{EDU}/sample/10BT/*.csv", "-o", world.out)
    assert pattern.returncode == 2
    assert "000_00000.parquet" in pattern.stderr
    assert not world.out.exists()


def test_json_about_the_data_is_refused_before_the_data_is_fetched(world: World) -> None:
    world.repo.commit({**world.contents, "sample/10BT/zz_stats.json": b'{"rows": 5}'})
    done = world.run("prepare", f"hf://datasets/{EDU}/sample", "-o", world.out)
    assert done.returncode == 2
    assert "zz_stats.json" in done.stderr
    assert "/**/*.parquet" in done.stderr
    assert not world.content_requests()
    ok(world.run("prepare", f"hf://datasets/{EDU}/sample/**/*.parquet", "-o", world.out))


def test_a_repository_that_is_not_there_is_said_to_be_so(world: World) -> None:
    done = world.run("prepare", "hf://datasets/nobody/nothing/x.parquet", "-o", world.out)
    assert done.returncode == 2
    assert "no such dataset" in done.stderr
    model = world.run("prepare", f"hf://{EDU}/sample/10BT", "-o", world.out)
    assert model.returncode == 2
    assert f"a dataset is hf://datasets/{EDU}" in model.stderr


def test_offline_without_the_files_says_what_to_fetch(world: World) -> None:
    done = world.prepare(HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "--download-only" in done.stderr
    ok(world.prepare("--download-only"))
    for blob in list((world.folder / "hf").rglob("blobs/*"))[:2]:
        blob.unlink()
    done = world.prepare(HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "2 files of the inputs are not here" in done.stderr
    assert not (world.out / ".tokenmill").exists()


@pytest.mark.parametrize("listed", [False, True])
def test_a_cache_that_cannot_be_written_is_said_at_once(world: World, listed: bool) -> None:
    if listed:
        ok(world.run("prepare", INPUT, "-o", world.folder / "before"))
    (world.folder / "file").write_text("no folder")
    began = time.monotonic()
    done = world.prepare(HF_HOME=str(world.folder / "file" / "hf"), TOKENMILL_RETRY_SECONDS="9")
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Not a directory" in done.stderr
    assert "HF_HOME" in done.stderr


def test_a_column_that_is_not_there_is_said_with_the_url(world: World) -> None:
    done = world.prepare("--text-column", "body")
    assert done.returncode == 2
    assert f"{FILES[0]}: no column 'body'" in done.stderr


def test_ctrl_c_while_files_come_in_ends_soon_and_the_same_command_resumes(world: World) -> None:
    world.hub.bytes_per_second = 2e5
    command = [sys.executable, "-m", "tokenmill", "prepare", INPUT, "-o", str(world.out)]
    process = subprocess.Popen(command, env=world.env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not world.hub.served and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = time.monotonic()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - said < 15
    assert "resume with: " in told
    world.hub.bytes_per_second = 0
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()


def test_the_plan_says_what_is_fetched_needed_and_free(world: World) -> None:
    size = sum(len(world.contents[name]) for name in FILES)
    plan = json.loads(ok(world.run("plan", INPUT, "-o", world.out, "--json")).stdout)
    needs = plan["needs"]
    assert (needs["fetch_files"], needs["fetch_bytes"], needs["here_files"]) == (5, size, 0)
    assert needs["held_bytes"] == size
    assert needs["output_bytes"] > 0
    assert needs["output_free"] > 0
    told = ok(world.prepare()).stderr
    assert "download: 5 files" in told
    assert " free" in told
    again = json.loads(ok(world.run("plan", INPUT, "-o", world.folder / "b", "--json")).stdout)
    assert (again["needs"]["fetch_files"], again["needs"]["here_files"]) == (0, 5)


def test_fetching_only_counts_all_files_also_of_a_trial(world: World) -> None:
    size = sum(len(world.contents[name]) for name in FILES)
    told = ok(world.prepare("--download-only", "--limit-docs", "5")).stderr
    assert f"({show_bytes(size)} downloaded" in told
    assert sorted(world.content_requests()) == FILES


@pytest.mark.parametrize("free", [10_000, 10**12])
def test_what_cannot_fit_is_refused_before_a_byte_is_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    import tokenmill as library

    for key, value in world.env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(world.folder / "hf" / "hub"))
    usage = type("Usage", (), {"free": free, "total": free, "used": 0})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    if free > 10**9:
        library.prepare(INPUT, world.out, workers=0)
        assert token_bytes(world.out) == world.expected()
        return
    with pytest.raises(library.TokenmillError, match=r"free, .* are needed") as refused:
        library.prepare(INPUT, world.out, workers=0)
    assert refused.value.exit_code == 2
    assert not world.content_requests()
    assert not world.out.exists()


def test_fineweb_names_files_and_folder_as_llm_c_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    done = ok(world.run("fineweb", "--version", "10B", "--shard-tokens", "200k"))
    assert "type edu (edu is the default" in done.stderr
    names = sorted(path.name for path in (world.folder / "edu_fineweb10B").glob("*.bin"))
    assert names[0] == "edu_fineweb_train_000001.bin"
    assert names[-1] == "edu_fineweb_val_000000.bin"
    expected = world.expected("--format", "llmc", "--shard-tokens", "200k")
    ours = token_bytes(world.folder / "edu_fineweb10B")
    assert {n.replace("edu_fineweb", "out"): c for n, c in ours.items()} == expected


def test_an_unknown_part_of_fineweb_says_which_there_are(world: World) -> None:
    done = world.run("fineweb", "--version", "11B")
    assert done.returncode == 2
    assert "10B, 100B, 350B" in done.stderr
    assert not world.hub.requests
    assert world.run("fineweb", "--type", "both").returncode == 2


# --- names of the Hub where people type them ----------------------------------------------------


def model(world: World, **options: Any) -> Repo:
    repo = world.hub.repo("org/model", kind="models", **options)
    path = write_json(world.folder / "tokenizer.json", "qwen2")
    repo.commit({"tokenizer.json": path.read_bytes(), "config.json": b"{}"})
    return repo


def test_a_tokenizer_by_its_name_on_the_hub(world: World) -> None:
    repo = model(world)
    options = ("--val", "docs:9", "--eot-token", "8004")
    source = world.local[0]
    ok(world.run("prepare", source, "-o", world.out, "--tokenizer", "org/model", *options))
    file = world.folder / "tokenizer.json"
    ok(command("prepare", source, "-o", world.folder / "same", "--tokenizer", file, *options))
    assert token_bytes(world.out) == token_bytes(world.folder / "same")
    first = repo.branches["main"]
    plan = json.loads((world.out / "manifest.json").read_bytes())["plan"]
    assert plan["revisions"] == {"hf://org/model@main": first}
    repo.commit({"tokenizer.json": b"{}"})  # main moves on; the dataset is bound to the commit
    done = ok(world.run("prepare", source, "-o", world.out, "--tokenizer", "org/model", *options))
    assert "already complete" in done.stdout
    at = f"org/model@{first}"
    ok(world.run("prepare", source, "-o", world.folder / "at", "--tokenizer", at, *options))
    assert token_bytes(world.folder / "at") == token_bytes(world.out)


def test_a_tokenizer_of_the_hub_that_cannot_be_had(world: World) -> None:
    words = ("prepare", world.local[0], "-o", world.out, "--tokenizer")
    done = world.run(*words, "org/none")
    assert (done.returncode, "no such model" in done.stderr) == (2, True), done.stderr
    assert "not a file or folder here" in done.stderr
    model(world, token="hf_secret", gated=True)
    done = world.run(*words, "org/model")
    assert (done.returncode, "hf auth login" in done.stderr) == (2, True), done.stderr
    world.hub.repo("org/bare", kind="models").commit({"tokenizer.bin": b"x"})
    done = world.run(*words, "org/bare")
    assert (done.returncode, "tokenizer.json or tokenizer.model" in done.stderr) == (2, True)
    assert not world.out.exists()


def test_a_dataset_by_its_bare_name_is_not_asked_for_but_suggested(world: World) -> None:
    done = world.run("prepare", "roneneldan/TinyStories", "-o", world.out)
    assert done.returncode == 2
    assert "hf://datasets/roneneldan/TinyStories" in done.stderr
    assert world.hub.requests == []
