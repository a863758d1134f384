"""Uploads that nobody will complete: the parts of a process that was killed.

They are in no list of files, and cost what their bytes cost. The library does not list them, so
these few requests to S3 are signed here (Signature Version 4). GCS removes them by a rule of the
bucket (see docs/stores.md).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from tokenmill.system.buckets.access import YES, S3Access, s3_access
from tokenmill.system.buckets.address import BucketAddress
from tokenmill.system.buckets.client import pause_seconds

log = logging.getLogger("tokenmill")
EMPTY = hashlib.sha256(b"").hexdigest()
TRIES = 8
PASSING = (500, 502, 503, 504, 429)


def abort_uploads(address: BucketAddress) -> int:
    """Abort every upload below an address; how many. Only while nobody writes there."""
    access = s3_access()
    if address.scheme != "s3" or access.keys is None:
        return 0  # by a rule of the bucket; keys that the library has found are not known here
    aborted = 0
    try:
        for key, upload in list(_pending(access, address)):
            _request(access, address, "DELETE", key, {"uploadId": upload})
            aborted += 1
    except (OSError, HTTPException, ElementTree.ParseError, ValueError) as error:
        said = getattr(error, "code", type(error).__name__)
        log.info("%s: pending uploads cannot be listed or aborted (%s)", address, said)
    return aborted


def _pending(access: S3Access, address: BucketAddress) -> Iterator[tuple[str, str]]:
    prefix = f"{address.folder}/" if address.folder else ""
    query = {"uploads": "", "prefix": prefix}
    while True:
        root = ElementTree.fromstring(_request(access, address, "GET", "", query))
        for one in root.iter():
            if one.tag.rpartition("}")[2] == "Upload":
                values = {part.tag.rpartition("}")[2]: part.text or "" for part in one}
                if values["Key"].startswith(prefix):
                    yield values["Key"], values["UploadId"]
        top = {one.tag.rpartition("}")[2]: one.text or "" for one in root}
        if top.get("IsTruncated") != "true" or not top.get("NextKeyMarker"):
            return
        query |= {"key-marker": top["NextKeyMarker"]}
        query |= {"upload-id-marker": top.get("NextUploadIdMarker", "")}


def _request(
    access: S3Access, address: BucketAddress, method: str, key: str, query: dict[str, str]
) -> bytes:
    for attempt in range(TRIES):
        if attempt:
            time.sleep(min(15.0, pause_seconds() * 2 ** (attempt - 1)))
        request = signed_request(access, address, method, key, query)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            error.close()
            if method == "DELETE" and error.code == 404:
                return b""  # somebody else was quicker
            if error.code not in PASSING or attempt == TRIES - 1:
                raise
        except (OSError, HTTPException):
            if attempt == TRIES - 1:
                raise
    raise AssertionError


def signed_request(
    access: S3Access,
    address: BucketAddress,
    method: str,
    key: str,
    query: dict[str, str],
    now: float | None = None,
) -> urllib.request.Request:
    assert access.keys is not None
    virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in YES
    base = access.endpoint or f"https://s3.{access.region}.amazonaws.com"
    if virtual and not access.endpoint:
        base = f"https://{address.bucket}.s3.{access.region}.amazonaws.com"
    steps = [] if virtual else [address.bucket]
    path = "/" + quote("/".join([*steps, *([key] if key else [])]), safe="/-_.~")
    parts = urlsplit(base)
    path = parts.path.rstrip("/") + path
    asked = "&".join(
        f"{quote(k, safe='-_.~')}={quote(query[k], safe='-_.~')}" for k in sorted(query)
    )
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    headers = {"host": parts.netloc, "x-amz-content-sha256": EMPTY, "x-amz-date": stamp}
    if access.keys.token:
        headers["x-amz-security-token"] = access.keys.token
    names = ";".join(sorted(headers))
    shown = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join((method, path, asked, shown, names, EMPTY))
    scope = f"{stamp[:8]}/{access.region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    secret = f"AWS4{access.keys.secret}".encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashed))
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access.keys.id}/{scope},SignedHeaders={names},"
        f"Signature={signature}"
    )
    headers.pop("host")
    return urllib.request.Request(
        f"{parts.scheme}://{parts.netloc}{path}?{asked}", headers=headers, method=method
    )
