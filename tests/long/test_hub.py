"""Inputs from the Hub: the real download code against a small Hub of our own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
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
            [*command, "--downloads", "2", "--allow-empty-split"],
            env=world.env,
            stderr=subprocess.PIPE,
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


@pytest.mark.parametrize(
    "fault",
    [
        "coordinator:kill@1 create */.0.tmp",
        "coordinator:torn@1 write */.0.tmp",
        "coordinator:kill@2 rename *cuts*",
        "coordinator:kill@3 sync-folder *cuts",
        "coordinator:kill@2 rmdir *downloads*",
        "coordinator:kill@1 unlink *downloads*",
    ],
)
def test_killed_while_it_writes_down_how_a_file_is_cut_or_removes_it(
    world: World, fault: str
) -> None:
    command = ("--no-keep-downloads", "--downloads", "1")
    killed = world.prepare(*command, TOKENMILL_FAILPOINT=fault)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ok(world.prepare(*command))
    assert token_bytes(world.out) == world.expected()


@pytest.mark.parametrize("keep", ["--keep-downloads", "--no-keep-downloads"])
def test_what_killed_runs_left_of_files_does_not_pile_up(world: World, keep: str) -> None:
    world.hub.bytes_per_second = 3e5
    command = [sys.executable, "-m", "tokenmill", "prepare", INPUT, "-o", str(world.out), keep]
    for _ in range(3):
        world.hub.served.clear()
        with subprocess.Popen([*command, "--downloads", "1"], env=world.env) as process:
            while not world.hub.served and process.poll() is None:
                time.sleep(0.02)
            process.kill()
        assert len(list(world.folder.rglob("*.incomplete"))) == 1


def test_files_without_a_row_do_not_take_the_place_of_those_to_come(world: World) -> None:
    """Nothing of them ever becomes durable, and only a few files may lie on disk."""
    schema = pyarrow.schema([("text", pyarrow.string())])
    pyarrow.parquet.ParquetWriter(world.folder / "empty.parquet", schema).close()
    empty = (world.folder / "empty.parquet").read_bytes()
    files = {f"some/{i}.parquet": empty for i in range(5)}
    world.repo.commit({**files, "some/9.parquet": world.contents[FILES[0]]})
    words = [sys.executable, "-m", "tokenmill", "prepare", f"hf://datasets/{EDU}/some"]
    words += ["-o", str(world.out), "--no-keep-downloads", "--downloads", "1"]
    words += ["--allow-empty-split"]
    subprocess.run(words, env=world.env, check=True, capture_output=True, timeout=60)
    ok(command("prepare", world.local[0], "-o", world.folder / "same"))
    assert token_bytes(world.out) == token_bytes(world.folder / "same")


def test_an_unfinished_job_stays_with_its_commit_when_the_branch_moves_on(world: World) -> None:
    world.hub.fault("/cdn/", Answer(status=403), times=99)
    assert world.prepare().returncode == 2
    world.hub.faults.clear()
    changed = {**world.contents, FILES[0]: world.contents[FILES[1]], "new.txt": b"x"}
    later = world.repo.commit(changed)
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()
    assert world.commit in (world.out / "manifest.json").read_text()
    ok(world.prepare())  # a finished one, too
    ok(world.prepare("--overwrite"))
    assert later in (world.out / "manifest.json").read_text()
    assert token_bytes(world.out) != world.expected()


def test_offline_a_part_of_the_files_is_not_taken_for_all(world: World) -> None:
    """Another program has fetched one of five; only the Hub knows that there are five."""
    code = (
        "from huggingface_hub import hf_hub_download as fetch;"
        f"fetch('{EDU}', '{FILES[2]}', repo_type='dataset')"
    )
    subprocess.run([sys.executable, "-c", code], env=world.env, check=True, capture_output=True)
    for what in ("sample/10BT/*.parquet", "sample/10BT", FILES[1]):
        url = f"hf://datasets/{EDU}/{what}"
        done = world.run("prepare", url, "-o", world.out, HF_HUB_OFFLINE="1")
        assert done.returncode == 1
        assert f"snapshots/{world.commit}/sample/10BT" in done.stderr
        assert not world.out.exists()
    named = f"hf://datasets/{EDU}/{FILES[2]}"
    ok(world.run("prepare", named, "-o", world.out, HF_HUB_OFFLINE="1"))
    ok(command("prepare", world.local[2], "-o", world.folder / "same"))
    assert token_bytes(world.out) == token_bytes(world.folder / "same")


def test_fineweb_classic_is_the_other_repository(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    classic = world.hub.repo("HuggingFaceFW/fineweb")
    classic.commit({"sample/100BT/000_00000.parquet": world.contents[FILES[0]]})
    ok(world.run("fineweb", "--version", "100B", "--type", "classic", "--allow-empty-split"))
    assert (world.folder / "fineweb100B" / "fineweb_val_000000.bin").exists()


def test_a_source_whose_units_are_durable_is_needed_no_more(world: World) -> None:
    """Not kept, its file is gone; a resumed job must neither look for it nor fetch it."""
    last = sha256(world.contents[FILES[4]])
    world.hub.fault(last, Answer(status=403), times=10**6)
    assert world.prepare("--no-keep-downloads", "--downloads", "1").returncode == 2
    world.hub.faults.clear()
    world.hub.requests.clear()
    ok(world.prepare("--no-keep-downloads"))
    assert token_bytes(world.out) == world.expected()
    assert FILES[0] not in world.content_requests()


def test_the_python_call_does_what_the_command_does(world: World) -> None:
    code = (
        "import tokenmill; r = tokenmill.fineweb('10B', 'edu', 'out', shard_tokens='200k');"
        "print(r.manifest.counts['rows'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=world.env, cwd=world.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) > 0
    assert (world.out / "edu_fineweb_val_000000.bin").exists()


def test_a_file_that_was_in_the_cache_before_stays_there(world: World) -> None:
    ok(world.prepare())
    kept = world.blobs()
    other = world.folder / "other"
    ok(world.run("prepare", INPUT, "-o", other, "--no-keep-downloads"))
    assert world.blobs() == kept
    assert len(world.content_requests()) == len(FILES)


@pytest.mark.parametrize(
    "url",
    [
        f"hf://datasets/{EDU}/sample/10BT",
        f"hf://datasets/{EDU}@v1.0/sample/**/*.parquet",
        f"hf://datasets/{EDU}@v1.0/sample/*/00[0-4]_0000?.parquet",
        "{hub}/datasets/" + EDU + "/tree/main/sample/10BT",
    ],
)
def test_folders_tags_patterns_and_pages_of_the_browser_name_the_same_files(
    world: World, url: str
) -> None:
    ok(world.run("prepare", url.format(hub=world.hub.url), "-o", world.out))
    assert token_bytes(world.out) == world.expected()


def test_a_cache_filled_by_the_library_itself_is_used(world: World) -> None:
    code = f"from huggingface_hub import snapshot_download as s; s('{EDU}', repo_type='dataset')"
    subprocess.run([sys.executable, "-c", code], env=world.env, check=True, capture_output=True)
    before = len(world.content_requests())
    ok(world.prepare(HF_HUB_OFFLINE="1"))
    assert len(world.content_requests()) == before
    assert token_bytes(world.out) == world.expected()


@pytest.mark.parametrize("damage", ["flipped", "shorter"])
def test_a_file_damaged_in_the_cache_is_found_and_fetched_again(world: World, damage: str) -> None:
    ok(world.prepare("--download-only"))
    blob = next((world.folder / "hf").rglob(f"blobs/{sha256(world.contents[FILES[2]])}"))
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content if damage == "flipped" else content[:-7])
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()
    assert world.content_requests().count(FILES[2]) == 2


def test_a_file_with_brackets_in_its_name_can_be_named(world: World) -> None:
    world.repo.commit({"x/[a].parquet": world.contents[FILES[0]], "x/a.parquet": b"another"})
    ok(world.run("prepare", f"hf://datasets/{EDU}/x/[a].parquet", "-o", world.out))
    ok(command("prepare", world.local[0], "-o", world.folder / "same"))
    assert token_bytes(world.out) == token_bytes(world.folder / "same")


def test_a_busy_server_before_the_redirect_is_waited_for(world: World) -> None:
    world.hub.fault("/resolve/", Answer(status=503), 3, method="HEAD")
    world.hub.fault("/resolve/", Answer(status=429, headers={"Retry-After": "1"}), 1, method="HEAD")
    ok(world.prepare())
    assert token_bytes(world.out) == world.expected()


def test_files_can_be_named_one_by_one_and_mixed_with_local_ones(world: World) -> None:
    urls = [f"hf://datasets/{EDU}/{FILES[0]}", world.local[1], f"hf://datasets/{EDU}/{FILES[2]}"]
    ok(world.run("prepare", *urls, "-o", world.out))
    ok(command("prepare", *world.local[:3], "-o", world.folder / "same"))
    assert token_bytes(world.out) == token_bytes(world.folder / "same")


def test_a_list_of_many_pages_is_read_to_its_end(world: World) -> None:
    world.hub.page = 2
    ok(world.prepare())
    assert world.hub.times("/tree/") == 3
    assert token_bytes(world.out) == world.expected()


def test_fineweb_takes_a_dump_and_the_options_of_prepare(world: World) -> None:
    ok(
        world.run(
            "fineweb", "--version", "CC-MAIN-2024-10", "--format", "nanogpt", "--val", "docs:5",
            "--tokenizer", "cl100k_base", "-o", world.out,
        )
    )  # fmt: skip
    assert (world.out / "val.bin").exists()
    assert (world.out / "train.bin").stat().st_size % 4 == 0


def test_a_plan_passes_over_a_file_that_is_damaged_in_the_cache(world: World) -> None:
    ok(world.prepare("--download-only"))
    blob = next((world.folder / "hf").rglob(f"blobs/{sha256(world.contents[FILES[2]])}"))
    blob.write_bytes(blob.read_bytes()[:-7])
    assert "tokens  about" in ok(world.run("plan", INPUT, "-o", world.out)).stdout
    wrong = world.run("plan", INPUT, "-o", world.out, "--text-column", "body")
    assert "no column 'body'" in wrong.stderr
