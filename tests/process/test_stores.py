"""Inputs on web servers and in object stores, and the words for what goes wrong there."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.commands import token_bytes
from support.inputs import write_jsonl, write_parquet
from support.stores import command, env, ok, s3  # noqa: F401

from reliability.faulty_bucket import BUCKET, Fault, faulty_bucket
from tokenmill.errors import InputError, SourceError
from tokenmill.inputs import download as fetching
from tokenmill.inputs.remote import retry, stores

VAL = ("--val", "docs:9")


class Web:
    """A web server with a few files; it may know nothing of ranges, change a file, or be busy."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.ranges, self.given_ranges = True, 0
        self.faults: list[int] = []
        self.statuses: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []
        self.on_get = lambda path: None
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                web.asked.append((self.command, self.path))
                if path in web.statuses:
                    return self._send(web.statuses[path], b"", {})
                if self.command == "GET" and web.faults:
                    return self._send(web.faults.pop(0), b"", {})
                if self.command == "GET":
                    web.on_get(path)
                content = web.files.get(path)
                if content is None:
                    return self._send(404, b"", {})
                headers = {"ETag": web.etags.get(path, '"1"')}
                status = 200
                if web.ranges:
                    headers["Accept-Ranges"] = "bytes"
                    found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                    if found:
                        start, size = int(found[1]), len(content)
                        stop = min(size, int(found[2]) + 1) if found[2] else size
                        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
                        content, status = content[start:stop], 206
                        web.given_ranges += 1
                return self._send(status, content, headers)

            def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web()
    yield server
    server.server.shutdown()
    server.server.server_close()


# --- the web -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_files_of_a_web_server_give_the_tokens_of_the_same_files_on_disk(
    web: Web, tmp_path: Path, texts: list[str], env: dict[str, str], ranges: bool
) -> None:
    local = [
        write_parquet(tmp_path / "a.parquet", texts),
        write_jsonl(tmp_path / "b.jsonl.gz", texts[:50]),
    ]
    web.ranges = ranges
    web.files = {f"/data/{path.name}": path.read_bytes() for path in local}
    urls = [f"{web.url}/data/{path.name}" for path in local]
    ok(command("prepare", *urls, "-o", tmp_path / "out", env=env))
    ok(command("prepare", *local, "-o", tmp_path / "same"))
    assert token_bytes(tmp_path / "out") == token_bytes(tmp_path / "same")
    assert bool(web.given_ranges) == ranges
    gets = [path for method, path in web.asked if method == "GET"]
    ok(command("prepare", *urls, "-o", tmp_path / "again", env=env))
    assert [path for method, path in web.asked if method == "GET"] == gets, "fetched again"


def test_a_signature_in_a_url_is_used_but_neither_shown_nor_stored(
    web: Web, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    web.files["/a.parquet"] = write_parquet(tmp_path / "a.parquet", texts[:40]).read_bytes()
    url = f"{web.url}/a.parquet?X-Amz-Signature=verysecret"
    done = ok(command("prepare", url, "-o", tmp_path / "out", env=env))
    assert "verysecret" in web.asked[-1][1]
    assert "verysecret" not in done.stdout + done.stderr
    for path in [*(tmp_path / "out").rglob("*"), *(tmp_path / "cache").rglob("*")]:
        assert "verysecret" not in path.name
        assert not path.is_file() or b"verysecret" not in path.read_bytes()


def test_a_url_with_a_password_is_refused_and_not_repeated(tmp_path: Path) -> None:
    done = command("prepare", "https://me:verysecret@host/a.parquet", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "credentials" in done.stderr
    assert "verysecret" not in done.stderr


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("/a b.jsonl", "/a%20b.jsonl"),
        ("/a%20b.jsonl", "/a%20b.jsonl"),
        ("/ä.jsonl", "/%C3%A4.jsonl"),
        ("/x.jsonl#part", "/x.jsonl"),
        ("/" + "n" * 240 + ".jsonl", "/" + "n" * 240 + ".jsonl"),
    ],
)
def test_odd_names_on_a_web_server_can_be_fetched(
    tmp_path: Path, web: Web, env: dict[str, str], texts: list[str], asked: str, path: str
) -> None:
    web.files[path] = write_jsonl(tmp_path / "x.jsonl", texts[:20]).read_bytes()
    done = command("prepare", web.url + asked, "-o", tmp_path / "out", env=env)
    assert done.returncode == 0, done.stderr
    assert command("prepare", tmp_path / "x.jsonl", "-o", tmp_path / "same").returncode == 0
    assert token_bytes(tmp_path / "out") == token_bytes(tmp_path / "same")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_slow_web_server_is_limited_in_silence_not_in_time(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    """aiohttp ends any answer after five minutes; begun anew each time, it would never come."""
    import aiohttp

    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=0.3))
    web.files["/x.jsonl"] = b"x" * 1000
    web.ranges = ranges
    fs = stores.filesystem(web.url)
    fs.clear_instance_cache()
    fs = stores.filesystem(web.url)
    web.on_get = lambda path: time.sleep(1)
    assert fs.cat_file(f"{web.url}/x.jsonl") == web.files["/x.jsonl"]


@pytest.mark.parametrize("first", [200, 503])
def test_a_busy_web_server_is_waited_for(
    web: Web, tmp_path: Path, texts: list[str], env: dict[str, str], first: int
) -> None:
    web.files["/a.jsonl"] = write_jsonl(tmp_path / "a.jsonl", texts[:40]).read_bytes()
    web.faults = [first, 503, 429, 502]  # the first is asked whether there are ranges
    ok(command("prepare", f"{web.url}/a.jsonl", "-o", tmp_path / "out", env=env))
    assert not web.faults


def test_what_a_web_server_does_not_have_is_said_to_be_missing(
    web: Web, tmp_path: Path, env: dict[str, str]
) -> None:
    done = command("prepare", f"{web.url}/a.jsonl", "-o", tmp_path / "out", env=env)
    assert done.returncode == 2
    assert "no such file" in done.stderr
    done = command("prepare", f"{web.url}/*.jsonl", "-o", tmp_path / "out", env=env)
    assert done.returncode == 2
    assert "name each file" in done.stderr


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [(403, 2, "refused (HTTP 403)"), (401, 2, "refused (HTTP 401)"), (503, 1, "HTTP 503")],
)
def test_what_a_web_server_refuses_is_not_said_to_be_missing(
    web: Web, tmp_path: Path, env: dict[str, str], status: int, code: int, said: str
) -> None:
    """fsspec makes one error of them all."""
    web.files["/a.jsonl"], web.statuses = b"{}", {"/a.jsonl": status}
    env = {**env, "TOKENMILL_RETRY_SECONDS": "0.01"}
    done = command("prepare", f"{web.url}/a.jsonl", "-o", tmp_path / "out", env=env)
    assert done.returncode == code
    assert said in done.stderr
    assert "no such file" not in done.stderr


def test_a_web_server_that_is_down_is_not_said_to_miss_a_file(
    tmp_path: Path, env: dict[str, str]
) -> None:
    env = {**env, "TOKENMILL_RETRY_SECONDS": "0.01"}
    done = command("prepare", "http://127.0.0.1:1/a.jsonl", "-o", tmp_path / "out", env=env)
    assert done.returncode == 1
    assert "cannot be downloaded" in done.stderr


def test_a_file_that_changes_while_it_is_fetched_is_refused(
    web: Web, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    web.files["/a.jsonl"] = write_jsonl(tmp_path / "a.jsonl", texts).read_bytes()

    def change(path: str) -> None:
        web.etags["/a.jsonl"] = '"2"'

    web.on_get = change
    done = command("prepare", f"{web.url}/a.jsonl", "-o", tmp_path / "out", env=env)
    assert done.returncode == 1
    assert "has changed since it was listed" in done.stderr


def test_a_copy_damaged_in_our_cache_is_fetched_again(
    web: Web, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    web.files["/a.jsonl"] = write_jsonl(tmp_path / "a.jsonl", texts[:60]).read_bytes()
    ok(command("prepare", f"{web.url}/a.jsonl", "-o", tmp_path / "out", env=env))
    copy = next((tmp_path / "cache").rglob("*-a.jsonl"))
    content = bytearray(copy.read_bytes())
    content[1000] ^= 1
    copy.write_bytes(content)
    ok(command("prepare", f"{web.url}/a.jsonl", "-o", tmp_path / "again", env=env))
    assert token_bytes(tmp_path / "again") == token_bytes(tmp_path / "out")


# --- S3 ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_an_object_of_s3_gives_the_tokens_of_the_same_file_on_disk(
    s3: Any, tmp_path: Path, texts: list[str], env: dict[str, str]
) -> None:
    local = write_parquet(tmp_path / "0.parquet", texts)
    s3.put_object(Bucket="corpus", Key="web/0.parquet", Body=local.read_bytes())
    ok(command("prepare", local, "-o", tmp_path / "same", *VAL))
    done = ok(
        command("prepare", "s3://corpus/web/*.parquet", "-o", tmp_path / "out", *VAL, env=env)
    )
    assert token_bytes(tmp_path / "out") == token_bytes(tmp_path / "same")
    assert "verysecret" not in done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("when", ["before", "between two pieces"])
def test_an_object_that_is_replaced_between_listing_and_the_end_of_its_download_is_refused(
    s3: Any, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fetching, "DOWNLOAD_STEP_BYTES", 1000)
    old, new = b"a" * 3000, b"b" * 3000
    s3.put_object(Bucket="corpus", Key="web/a.txt", Body=old)
    [file], _ = stores.find_in_store("s3://corpus/web/*.txt")
    flow = fetching.Download(file, threading.Event(), lambda note: None)
    replaced = []

    def replace(count: int) -> None:
        if not replaced:
            replaced.append(s3.put_object(Bucket="corpus", Key="web/a.txt", Body=new))

    if when == "before":
        replace(0)
    else:
        monkeypatch.setattr(flow, "add", replace)
    with pytest.raises(SourceError, match="has changed since it was listed"):
        fetching.fetch(flow, tmp_path / "here")
    [listed], _ = stores.find_in_store("s3://corpus/web/*.txt")
    assert listed.fingerprint != file.fingerprint


@pytest.mark.filterwarnings("ignore")
def test_folders_patterns_and_odd_names_of_s3_are_found(
    s3: Any, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    keys = ["a.txt", "d/", "d/b.txt", "d/e/c.txt", "d/_x.txt", "x y%20+#ä.txt", "empty/"]
    for key in keys:
        s3.put_object(Bucket="corpus", Key=key, Body=b"" if key.endswith("/") else b"abc")

    def found(url: str) -> list[str]:
        return [file.name.removeprefix("s3://corpus/") for file in stores.find_in_store(url)[0]]

    assert found("s3://corpus/*.txt") == ["a.txt", "x y%20+#ä.txt"]
    assert found("s3://corpus/d") == ["d/b.txt", "d/e/c.txt"]
    assert found("s3://corpus/d/*") == ["d/b.txt"]
    assert found("s3://corpus/**/*.txt") == ["a.txt", "d/b.txt", "d/e/c.txt", "x y%20+#ä.txt"]
    assert found("s3://corpus/x y%20+#ä.txt") == ["x y%20+#ä.txt"]
    assert stores.find_in_store("s3://corpus/d")[1] == [("s3://corpus/d/_x.txt", "hidden")]
    [file] = stores.find_in_store("s3a://corpus/a.txt")[0]
    assert (file.name, file.size) == ("s3a://corpus/a.txt", 3)
    assert file.fingerprint == f"etag:{hashlib.md5(b'abc').hexdigest()}"
    s3.put_object(Bucket="corpus", Key="odd//b.txt", Body=b"abc")
    with pytest.raises(InputError, match="whose name has an empty part"):
        found("s3://corpus/odd")


@pytest.mark.long
def test_inputs_in_a_bucket_are_read_from_a_store_that_fails_often(
    tmp_path: Path, texts: list[str], env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of S3 and of GCS: the library's client of GCS, moto's server."""
    monkeypatch.setattr(fetching, "DOWNLOAD_STEP_BYTES", 4000)
    local = write_jsonl(tmp_path / "a.jsonl", texts)
    ok(command("prepare", local, "-o", tmp_path / "same", *VAL))
    with faulty_bucket() as bucket:
        bucket.ask("PUT", f"/{BUCKET}/web/a.jsonl", local.read_bytes())
        for scheme, place in (("s3", bucket.environment()), ("gs", bucket.gcs_environment())):
            faults = itertools.cycle(
                [Fault(503, "SlowDown"), None, Fault(cut="half"), None, Fault(cut="before"), None]
            )
            bucket.faults = lambda request, faults=faults: next(faults)
            out = tmp_path / scheme
            url = f"{scheme}://{BUCKET}/web/*.jsonl"
            ok(command("prepare", url, "-o", out, *VAL, env={**env, **place}))
            assert token_bytes(out) == token_bytes(tmp_path / "same")
        bucket.faults = lambda request: Fault(403, "AccessDenied")
        done = command("prepare", url, "-o", out, *VAL, env={**env, **place})
        assert done.returncode == 2
        assert "storage.objects.get" in done.stderr


def test_a_store_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    done = command("prepare", "gs://bucket/a.parquet", "-o", tmp_path / "out", *VAL)
    assert done.returncode == 2
    assert "tokenmill[gcs]" in done.stderr
    done = command("prepare", "nosuch://bucket/a.parquet", "-o", tmp_path / "out", *VAL)
    assert done.returncode == 2
    assert "no such kind of input" in done.stderr
    done = command("prepare", "ftp://127.0.0.1:1/a.parquet", "-o", tmp_path / "out", *VAL)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "download the files first" in done.stderr
    assert command("prepare", tmp_path, "-o", "s3://bucket/out", *VAL).returncode == 2


# --- addresses -----------------------------------------------------------------------------------


# --- retry ---------------------------------------------------------------------------------------


class SaidError(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        self.response = type("R", (), {"status_code": status, "headers": headers})()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408])
def test_a_busy_server_passes(status: int) -> None:
    assert retry.passes(SaidError(status))


LASTING = [
    *map(SaidError, (401, 403, 404)),
    FileNotFoundError(2, "x"),
    PermissionError(13, "x"),
    OSError(28, "full"),
    NotADirectoryError(20, "x"),
    OSError(36, "name too long"),
    ValueError(),
]


@pytest.mark.parametrize("error", LASTING)
def test_what_no_waiting_cures_is_raised_at_once(error: Exception) -> None:
    calls = []

    def action() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retry.patiently(action, sleep=lambda s: None)
    assert len(calls) == 1


def test_it_gives_up_after_so_many_failures_in_a_row_but_not_while_bytes_come() -> None:
    calls, waits, came = [], [], [0]

    def action() -> str:
        calls.append(1)
        if len(calls) < 30:
            came[0] += 1
            raise ConnectionError("dropped")
        return "done"

    assert retry.patiently(action, progress=lambda: came[0], sleep=waits.append) == "done"
    assert max(waits) < 2
    calls.clear()
    waits.clear()
    with pytest.raises(ConnectionError):
        retry.patiently(action, sleep=waits.append)
    assert len(calls) == retry.ATTEMPTS
    assert waits == sorted(waits)
    assert waits[-1] > 16 * waits[0] > 0


def test_it_gives_up_after_long_silence_though_a_library_tried_for_most_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight times a library's own five tries of ten seconds would be a quarter of an hour."""
    now, calls = [0.0], []
    monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])

    def action() -> None:
        calls.append(1)
        now[0] += 65
        raise TimeoutError("timed out")

    with pytest.raises(TimeoutError):
        retry.patiently(action, sleep=lambda seconds: None)
    assert len(calls) == 2


def test_the_server_decides_how_long_to_wait_where_it_says_so() -> None:
    waits: list[float] = []
    answers: list[Exception] = [SaidError(429, **{"Retry-After": "7"}), SaidError(503)]

    def action() -> str:
        if answers:
            raise answers.pop(0)
        return "done"

    assert retry.patiently(action, sleep=waits.append) == "done"
    assert waits[0] == 7
    assert waits[1] < 7


def test_a_wrapped_error_is_known_by_what_it_was_raised_from() -> None:
    wrapped = FileNotFoundError("an error happened while trying to locate the file")
    wrapped.__cause__ = SaidError(503)
    assert retry.passes(wrapped)
    assert retry.why(wrapped) == "HTTP 503"


def test_a_server_that_is_waited_for_is_told_of_without_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_RETRY_SECONDS", "3")
    failures = [ConnectionError("reset: https://me:key@host/a?sig=secret"), None]

    def action() -> str:
        if error := failures.pop(0):
            raise error
        return "done"

    assert retry.patiently(action, sleep=lambda seconds: None) == "done"
    assert "reset: https://***@host/a?***" in caplog.text
    assert "another try in" in caplog.text
    assert "secret" not in caplog.text
