"""The address of a folder in a bucket, taken apart. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokenmill.errors import UsageError, printable

SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}")
MOST_BYTES = 900  # of a folder's name: S3 and GCS allow 1,024 for all of a key


class BucketAddress(NamedTuple):
    scheme: str  # s3 or gs
    bucket: str
    folder: str  # "" for the whole bucket; without a slash at its ends

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.folder}" if self.folder else "")

    def key(self, name: str) -> str:
        """The key of a file, or of a folder, in the bucket."""
        return "/".join(part for part in (self.folder, name) if part)


def is_bucket(place: object) -> bool:
    if not isinstance(place, str):
        return False
    found = _ADDRESS.match(place)
    return found is not None and found[1].lower() in SCHEMES


def parse_address(text: str) -> BucketAddress:
    """Refuses what a store would take for another name, or not take at all."""
    scheme, _, rest = text.partition("://")
    bucket, _, folder = rest.partition("/")
    shown = printable(text)
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            f"{scheme}://***: holds credentials or a host, which do not belong into an address",
            hint="write s3://bucket/folder; credentials and AWS_ENDPOINT_URL are read from the "
            "environment",
        )
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(
            f"{shown}: {printable(bucket)!r} cannot be the name of a bucket",
            hint="write s3://bucket/folder or gs://bucket/folder",
        )
    folder = folder.strip("/")
    steps = folder.split("/") if folder else []
    odd = [step for step in steps if step in ("", ".", "..") or not step.isprintable()]
    if odd:
        raise UsageError(
            f"{shown}: {printable(odd[0])!r} cannot be a part of a name in a bucket",
            hint="leave out empty parts, '.', '..' and control characters",
        )
    if len(folder.encode()) > MOST_BYTES:
        raise UsageError(
            f"{shown}: the name has more than {MOST_BYTES} bytes", hint="use a shorter one"
        )
    return BucketAddress(SCHEMES[scheme.lower()], bucket, folder)
