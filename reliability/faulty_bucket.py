"""moto's S3 server behind a proxy that answers wrongly, late or not at all, as it is told."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "mill"
KEY, SECRET = "AKIAFAULTYBUCKET", "secret-of-the-faulty-bucket"
CREDENTIAL = f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True)
class Request:
    number: int  # from 1 on
    method: str
    key: str  # "": the bucket itself
    query: dict[str, list[str]]
    headers: dict[str, str]

    @property
    def kind(self) -> str:
        """What it is for: get, head, list, put, create, begin, part, complete, abort, delete ..."""
        if self.method == "PUT":
            if "uploadId" in self.query:
                return "part"
            return "create" if "if-none-match" in self.headers else "put"
        if self.method == "POST":
            if "delete" in self.query:
                return "delete"
            return "begin" if "uploads" in self.query else "complete"
        if self.method == "DELETE":
            return "abort" if "uploadId" in self.query else "delete"
        if self.method == "GET" and not self.key:
            return "uploads" if "uploads" in self.query else "list"
        return self.method.lower()


@dataclass(frozen=True)
class Fault:
    """status: answered so, and not carried out. cut: the connection ends before anything is done
    ("before"), after it was carried out ("lost"), or in the midst of the answer ("half", which with
    a status is an answer to what was not carried out).
    unconditional: carried out without its condition."""

    status: int = 0
    code: str = ""
    cut: str = ""
    unconditional: bool = False


Faults = Callable[[Request], Fault | None]


@dataclass
class FaultyBucket:
    """Its `faults` is asked before every request. `requests` holds what came."""

    url: str = ""
    faults: Faults = lambda request: None
    requests: list[Request] = field(default_factory=list)
    moto: tuple[str, int] = ("", 0)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "TOKENMILL_RETRY_SECONDS": "0.01",
            "NO_PROXY": "127.0.0.1",
        }

    def gcs_environment(self) -> dict[str, str]:
        """As GCS, of whose XML interface S3's is a twin but for the names of some headers."""
        return {"GOOGLE_BASE_URL": self.url, "TOKENMILL_RETRY_SECONDS": "0.01"}

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Past the faults."""
        with contextlib.closing(http.client.HTTPConnection(*self.moto, timeout=60)) as connection:
            connection.request(method, path, body, {"Authorization": CREDENTIAL})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Every object below a prefix, by the rest of its name."""
        from xml.etree import ElementTree

        found, after = {}, ""
        while True:
            _, page = self.ask("GET", f"/{BUCKET}?list-type=2&prefix={prefix}/{after}")
            root = ElementTree.fromstring(page)
            keys = [one.text or "" for one in root.iter() if one.tag.endswith("}Key")]
            for key in keys:
                status, content = self.ask("GET", f"/{BUCKET}/{_quoted(key)}")
                if status == 200:  # or it is gone meanwhile
                    found[key.removeprefix(f"{prefix}/")] = content
            more = next(
                (one.text for one in root if one.tag.endswith("}NextContinuationToken")), ""
            )
            if not more:
                return found
            after = f"&continuation-token={_quoted(more)}"

    def pending(self, prefix: str) -> list[str]:
        """The keys of uploads that were begun and neither completed nor aborted."""
        from xml.etree import ElementTree

        _, page = self.ask("GET", f"/{BUCKET}?uploads&prefix={prefix}/")
        root = ElementTree.fromstring(page)
        return [one.text or "" for one in root.iter() if one.tag.endswith("}Key")]

    def count(self, kind: str) -> int:
        return sum(request.kind == kind for request in self.requests)


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="/")


class _Tracked(socketserver.ThreadingMixIn):
    """Its connections end with it. A socket that is left open is a warning in some later test."""

    daemon_threads = True
    request_queue_size = 64

    def process_request(self, request: Any, client_address: Any) -> None:
        given = (request, client_address)
        thread = threading.Thread(target=self.process_request_thread, args=given, daemon=True)
        busy = self.__dict__.setdefault("busy", {})
        for ended in [one for one in busy if not one.is_alive()]:
            del busy[ended]
        busy[thread] = request
        thread.start()

    def end(self) -> None:
        """Of a server that is not served any more."""
        for request in self.__dict__.get("busy", {}).values():
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        for thread, request in self.__dict__.get("busy", {}).items():
            thread.join(10)
            request.close()


@contextlib.contextmanager
def _served(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.socket.close()
        server.end()


@contextlib.contextmanager
def moto_server() -> Iterator[tuple[str, int]]:
    """moto's S3 server on loopback: host and port. All of a process share what is stored."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import ThreadedWSGIServer

    class Moto(_Tracked, ThreadedWSGIServer):
        pass

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = Moto("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app))
    with _served(server):
        yield "127.0.0.1", server.server_port


@contextlib.contextmanager
def faulty_bucket() -> Iterator[FaultyBucket]:
    with moto_server() as moto:
        bucket = FaultyBucket(moto=moto)
        server = _Server(("127.0.0.1", 0), _handler_of(bucket))
        bucket.url = f"http://127.0.0.1:{server.server_address[1]}"
        bucket.ask("PUT", f"/{BUCKET}")
        with _served(server):
            yield bucket


@contextlib.contextmanager
def in_environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Server(_Tracked, http.server.HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed end their connections in the midst."""


def _handler_of(bucket: FaultyBucket) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            _, _, key = unquote(parts.path).lstrip("/").partition("/")
            headers = {name.lower(): value for name, value in self.headers.items()}
            google = headers.get("authorization", "Bearer").startswith("Bearer")  # or none
            if google:
                headers["authorization"] = CREDENTIAL
            if headers.pop("x-goog-if-generation-match", "") == "0":  # as GCS has it
                headers["if-none-match"] = "*"
            with bucket.lock:
                number = len(bucket.requests) + 1
                query = parse_qs(parts.query, keep_blank_values=True)
                request = Request(number, self.command, key, query, headers)
                bucket.requests.append(request)
            fault = bucket.faults(request) or Fault()
            if fault.cut == "before":
                self._cut()
                return
            length = int(headers.get("content-length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:  # its client was killed; moto would wait for the rest
                self._cut()
                return
            if fault.status:
                told = _error(fault.code or str(fault.status))
                self._answer(fault.status, {}, told, half=fault.cut == "half")
                return
            if fault.unconditional:
                headers.pop("if-none-match", None)
            if google and request.kind == "delete" and bucket.ask("HEAD", self.path)[0] == 404:
                self._answer(404, {}, _error("NoSuchKey"))  # S3 does not mind
                return
            status, answered, content = self._forward(headers, body)
            if fault.cut == "lost":
                self._cut()
            elif fault.cut == "half":
                self._answer(status, answered, content, half=True)
            else:
                self._answer(status, answered, content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def _forward(
            self, headers: dict[str, str], body: bytes
        ) -> tuple[int, dict[str, str], bytes]:
            sent = {k: v for k, v in headers.items() if k not in ("connection", "expect")}
            with contextlib.closing(http.client.HTTPConnection(*bucket.moto, timeout=60)) as moto:
                moto.request(self.command, self.path, body or None, sent)
                answer = moto.getresponse()
                content = answer.read()
            kept = {k: v for k, v in answer.getheaders() if k.lower() not in HOP}
            kept["x-goog-generation"] = "1"
            if self.command == "HEAD":
                kept["content-length"] = answer.getheader("content-length") or "0"
            return answer.status, kept, content

        def _answer(
            self, status: int, headers: dict[str, str], content: bytes, *, half: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "content-length" not in headers:
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if half else content)
            if half:
                self._cut()

        def _cut(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


def _error(code: str) -> bytes:
    message = f"told on purpose, to {KEY}"  # which must not get into a message of ours
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
