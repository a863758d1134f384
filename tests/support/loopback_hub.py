"""A small Hub on loopback: what `huggingface_hub` asks the real one, and faults on demand.

Repositories live in memory: commits are immutable sets of files, branches point to commits. A
`resolve` request redirects to a content address, as the real one does for large files. Every
request is written down, so that a test can say what was fetched and how often.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Repo:
    kind: str  # datasets or models
    name: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    token: str = ""  # needed to see it at all
    gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        stamp = json.dumps([sorted(self.commits), branch, sorted(files)]).encode()
        sha = hashlib.sha1(stamp + b"".join(files.values())).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        revision = self.branches.get(revision) or self.tags.get(revision) or revision
        return revision if revision in self.commits else None


@dataclass
class Answer:
    """What a fault makes of a request: a status with headers, or a body cut after some bytes."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    body: bytes | None = None


Fault = Callable[["Request"], Answer | None]


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]

    @property
    def start(self) -> int:
        found = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("range", ""))
        return int(found[1]) if found else 0


class Hub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.served: dict[str, int] = {}  # bytes of content, by file
        self.faults: list[Fault] = []
        self.page = 1000
        self.bytes_per_second = 0.0  # of all connections together; 0: as fast as it goes
        self._line_free = 0.0
        self.hold: Callable[[str], None] = lambda path: None  # may wait before content is sent
        self.hide_checksums = False
        self.lock = threading.Lock()
        self.blobs: dict[str, tuple[str, bytes]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.cdn = f"http://localhost:{self.server.server_address[1]}/cdn"  # another host
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def repo(self, name: str, kind: str = "datasets", **options: Any) -> Repo:
        self.repos[f"{kind}/{name}"] = Repo(kind, name, **options)
        return self.repos[f"{kind}/{name}"]

    def environment(self, home: Any) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}

    def times(self, fragment: str, method: str = "GET") -> int:
        """How often something was asked for."""
        return sum(r.method == method and fragment in r.path for r in self.requests)

    def fault(self, fragment: str, answer: Answer, times: int = 1, method: str = "GET") -> None:
        """The next `times` requests whose path holds the fragment are answered so."""
        left = [times]

        def maybe(request: Request) -> Answer | None:
            if request.method == method and fragment in request.path and left[0]:
                left[0] -= 1
                return answer
            return None

        self.faults.append(maybe)

    def line(self, size: int) -> None:
        """Wait as long as so many bytes take on a line that all share."""
        if not self.bytes_per_second:
            return
        with self.lock:
            now = time.monotonic()
            self._line_free = max(now, self._line_free) + size / self.bytes_per_second
            wait = self._line_free - now
        time.sleep(wait)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            request = Request(
                self.command,
                unquote(parts.path),
                parse_qs(parts.query),
                {key.lower(): value for key, value in self.headers.items()},
            )
            with hub.lock:
                hub.requests.append(request)
                answer = next(filter(None, (fault(request) for fault in hub.faults)), None)
            try:
                if answer is not None and answer.status:
                    self._send(answer.status, answer.body or b"", answer.headers)
                else:
                    self._route(request, answer)
            except (BrokenPipeError, ConnectionResetError):
                pass

        def _route(self, request: Request, answer: Answer | None) -> None:
            path = request.path
            if path.startswith("/cdn/"):
                return self._content(request, path.removeprefix("/cdn/"), answer)
            api = re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(.*))?", path)
            if api:
                return self._api(request, f"{api[1]}/{api[2]}", api[3] or "")
            found = re.fullmatch(r"(/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path)
            if found:
                kind = "datasets" if found[1] else "models"
                return self._resolve(request, f"{kind}/{found[2]}", found[3], found[4])
            return self._send(404)

        def _repo(self, request: Request, key: str) -> Repo | None:
            """The repository, or None after having said why not."""
            repo = hub.repos.get(key)
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if repo is None or (repo.token and token != repo.token and not repo.gated):
                self._send(404 if token else 401, headers={"X-Error-Code": "RepoNotFound"})
                return None
            return repo

        def _closed(self, request: Request, repo: Repo) -> bool:
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not repo.gated or token == repo.token:
                return False
            self._send(403 if token else 401, headers={"X-Error-Code": "GatedRepo"})
            return True

        def _api(self, request: Request, key: str, rest: str) -> None:
            repo = self._repo(request, key)
            if repo is None:
                return None
            if rest == "refs":
                refs = {
                    "branches": [
                        {"name": n, "ref": f"refs/heads/{n}", "targetCommit": c}
                        for n, c in repo.branches.items()
                    ],
                    "tags": [
                        {"name": n, "ref": f"refs/tags/{n}", "targetCommit": c}
                        for n, c in repo.tags.items()
                    ],
                    "converts": [],
                }
                return self._json(refs)
            if rest == "" or rest.startswith("revision/"):
                sha = repo.resolve(rest.removeprefix("revision/") or "main")
                if sha is None:
                    return self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
                siblings = [{"rfilename": name} for name in repo.commits[sha]]
                return self._json(
                    {
                        "id": repo.name,
                        "sha": sha,
                        "siblings": siblings,
                        "private": False,
                        "gated": "auto" if repo.gated else False,
                        "tags": [],
                        "downloads": 0,
                    }
                )
            tree = re.fullmatch(r"tree/([^/]+)(?:/(.*))?", rest)
            if tree:
                return self._tree(request, repo, tree[1], (tree[2] or "").strip("/"))
            return self._send(404)

        def _tree(self, request: Request, repo: Repo, revision: str, folder: str) -> None:
            if self._closed(request, repo):
                return None
            sha = repo.resolve(revision)
            if sha is None:
                return self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
            recursive = request.query.get("recursive", ["false"])[0].lower() == "true"
            prefix = f"{folder}/" if folder else ""
            entries: dict[str, dict[str, Any]] = {}
            for path, content in sorted(repo.commits[sha].items()):
                if not path.startswith(prefix):
                    continue
                steps = path.removeprefix(prefix).split("/")
                for depth in range(1, len(steps)):
                    name = prefix + "/".join(steps[:depth])
                    if recursive or depth == 1:
                        entries[name] = {"type": "directory", "path": name, "oid": "0" * 40}
                if recursive or len(steps) == 1:
                    entries[path] = _entry(path, content, hub.hide_checksums)
            if not entries and folder:
                return self._send(404, headers={"X-Error-Code": "EntryNotFound"})
            listed = list(entries.values())
            start = int(request.query.get("cursor", ["0"])[0])
            headers = {}
            if start + hub.page < len(listed):
                link = f"{hub.url}{request.path}?recursive={recursive}&cursor={start + hub.page}"
                headers["Link"] = f'<{link}>; rel="next"'
            return self._json(listed[start : start + hub.page], headers)

        def _resolve(self, request: Request, key: str, revision: str, path: str) -> None:
            repo = self._repo(request, key)
            if repo is None or self._closed(request, repo):
                return None
            sha = repo.resolve(revision)
            if sha is None:
                return self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
            if path not in repo.commits[sha]:
                headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha}
                return self._send(404, headers=headers)
            content = repo.commits[sha][path]
            digest = sha256(content)
            hub.blobs[digest] = (path, content)
            headers = {
                "Location": f"{hub.cdn}/{digest}",
                "X-Repo-Commit": sha,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(content)),
                "ETag": f'"{digest}"',
            }
            return self._send(302, headers=headers)

        def _content(self, request: Request, digest: str, answer: Answer | None) -> None:
            path, content = hub.blobs[digest]
            if request.method == "GET":
                hub.hold(path)
            if answer is not None and answer.body is not None:
                content = answer.body
            start = request.start
            body = content[start:]
            headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_response(206 if start else 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if request.method == "HEAD":
                return
            if answer is not None and answer.cut_after is not None:
                self.wfile.write(body[: answer.cut_after])
                self.wfile.flush()
                with hub.lock:
                    hub.served[path] = hub.served.get(path, 0) + answer.cut_after
                self.close_connection = True
                self.connection.close()
                return
            self._stream(path, body)

        def _stream(self, path: str, body: bytes) -> None:
            step = 1 << 16
            for i in range(0, len(body), step):
                self.wfile.write(body[i : i + step])
                with hub.lock:
                    hub.served[path] = hub.served.get(path, 0) + len(body[i : i + step])
                hub.line(len(body[i : i + step]))

        def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
            self._send(200, json.dumps(value).encode(), headers)

        def _send(
            self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def _entry(path: str, content: bytes, hide: bool) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob}
    if not hide and not path.endswith((".md", ".gitattributes")):
        entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
    return entry
