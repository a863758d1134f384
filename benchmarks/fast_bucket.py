"""A small S3 server for measurements: objects are files in a folder, requests cost little.

`python benchmarks/fast_bucket.py FOLDER` prints its address. It checks no signature and knows only
the requests that tokenmill makes.
"""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import sys
import threading
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

CHUNK = 1 << 20
ROOT = Path()
LOCK = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def place(self, key: str) -> Path:
        return ROOT / "objects" / quote(key, safe="")

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def fail(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def save(self, path: Path) -> None:
        left = int(self.headers["Content-Length"] or 0)
        with open(path, "wb", buffering=0) as file:
            while left:
                content = self.rfile.read(min(CHUNK, left))
                file.write(content)
                left -= len(content)

    def do_PUT(self) -> None:
        query = self.query
        if "partNumber" in query:
            part = ROOT / "parts" / query["uploadId"][0] / query["partNumber"][0].zfill(6)
            self.save(part)
            self.answer(200, ETag=f'"{part.name}"')
            return
        new = ROOT / "new" / uuid.uuid4().hex
        self.save(new)
        target = self.place(self.key)
        with LOCK:
            exists = self.headers["If-None-Match"] == "*" and target.exists()
            if not exists:
                os.replace(new, target)
        self.fail(412, "PreconditionFailed") if exists else self.answer(200, ETag=f'"{new.name}"')

    def do_POST(self) -> None:
        query = self.query
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if "uploads" in query:
            upload = uuid.uuid4().hex
            (ROOT / "parts" / upload).mkdir()
            said = f"<UploadId>{upload}</UploadId>"
            self.answer(200, f"<R><Bucket>b</Bucket><Key>k</Key>{said}</R>".encode())
        elif "delete" in query:
            keys = [
                one.text or ""
                for one in ElementTree.fromstring(content).iter()
                if one.tag.endswith("Key")
            ]
            for key in keys:
                self.place(key).unlink(missing_ok=True)
            told = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self.answer(200, f"<DeleteResult>{told}</DeleteResult>".encode())
        else:
            folder, new = ROOT / "parts" / query["uploadId"][0], ROOT / "new" / uuid.uuid4().hex
            with open(new, "wb") as whole:
                for part in sorted(folder.iterdir()):
                    with open(part, "rb") as file:
                        shutil.copyfileobj(file, whole, CHUNK)
            os.replace(new, self.place(self.key))
            shutil.rmtree(folder)
            self.answer(200, b'<R><Location>x</Location><ETag>"x"</ETag></R>')

    def do_DELETE(self) -> None:
        if "uploadId" in self.query:
            shutil.rmtree(ROOT / "parts" / self.query["uploadId"][0], ignore_errors=True)
        else:
            self.place(self.key).unlink(missing_ok=True)
        self.answer(204)

    def do_GET(self) -> None:
        if not self.key:
            self.list()
            return
        try:
            file = open(self.place(self.key), "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            self.fail(404, "NoSuchKey")
            return
        with file:
            about = os.fstat(file.fileno())
            size, start, stop = about.st_size, 0, about.st_size
            if asked := self.headers["Range"]:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(size, int(last) + 1 if last else size)
                if start >= size:
                    self.fail(416, "InvalidRange")
                    return
            headers = {
                "Content_Length": str(stop - start),
                "ETag": f'"{about.st_mtime_ns:x}"',
                "Last_Modified": "Wed, 01 Jan 2025 00:00:00 GMT",
            }
            if asked:
                headers["Content_Range"] = f"bytes {start}-{stop - 1}/{size}"
            self.answer(206 if asked else 200, **headers)
            if self.command == "HEAD":
                return
            self.wfile.flush()
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    do_HEAD = do_GET

    def list(self) -> None:
        prefix = self.query.get("prefix", [""])[0]
        if "uploads" in self.query:
            self.answer(200, b"<ListMultipartUploadsResult/>")
            return
        keys = sorted(unquote(path.name) for path in (ROOT / "objects").iterdir())
        told = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{self.place(key).stat().st_size}</Size>"
            "<LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for key in keys
            if key.startswith(prefix)
        )
        self.answer(
            200,
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{told}</ListBucketResult>".encode(),
        )


def main() -> None:
    global ROOT
    ROOT = Path(sys.argv[1])
    for name in ("objects", "parts", "new"):
        (ROOT / name).mkdir(parents=True, exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
