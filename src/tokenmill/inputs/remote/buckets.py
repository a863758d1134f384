"""Input files in buckets of S3 and GCS, by the library that also writes datasets there (obstore).

The few methods have the names that fsspec gives them, so that `stores` needs no second path.
Each answer comes from the store: nothing is remembered between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.errors import InputError, SourceError, StorageError, TokenmillError
from tokenmill.system.buckets.address import SCHEMES, BucketAddress, parse_address
from tokenmill.system.buckets.client import open_client
from tokenmill.system.buckets.faults import answer_of, bucket_fault

RETRIES = 1  # by the library: `patiently` waits longer, tells the user and ends with the run
PAGE = 1000  # files in one answer to a list
# Faults that the user has to mend before another try; all others are faults of the way to the file.
LASTING_CODES = {"NoSuchBucket", "RequestTimeTooSkewed"}
ODD_NAME = "InvalidPathError"


class BucketFiles:
    """The files of one bucket."""

    def __init__(self, url: str) -> None:
        address = parse_address(url)
        self._address = address._replace(folder="")
        self._client = open_client(self._address, RETRIES)

    @staticmethod
    def _strip_protocol(url: str) -> str:
        """BUCKET/KEY, from a URL or from the same again."""
        scheme, _, rest = url.rpartition("://")
        return str(parse_address(f"{scheme or 's3'}://{rest}"))[len("s3://") :]

    def invalidate_cache(self) -> None:
        """There is none."""

    def info(self, url: str) -> dict[str, Any]:
        """FileNotFoundError if neither a file nor a folder has this name."""
        import obstore

        bucket, _, key = self._strip_protocol(url).partition("/")
        if key:
            try:
                return _described(self._head(key))
            except FileNotFoundError:
                pass
        if not key or next(iter(obstore.list(self._client, key, chunk_size=PAGE)), None):
            return {"name": f"{bucket}/{key}", "size": 0, "type": "directory"}
        raise FileNotFoundError(f"{bucket}/{key}")

    def _head(self, key: str) -> Any:
        import obstore

        try:
            return obstore.head(self._client, key)
        except obstore.exceptions.BaseError as error:
            if 300 < answer_of(error).status < 500:  # this answer never has a text: why not?
                obstore.get_range(self._client, key, start=0, length=1)
            raise

    def find(
        self, path: str, maxdepth: int | None = None, detail: bool = True
    ) -> dict[str, dict[str, Any]]:
        """The files below a folder, by BUCKET/KEY; with `maxdepth` those directly in it."""
        import obstore

        bucket, _, key = path.partition("/")
        if maxdepth is not None:
            found: Sequence[Any] = obstore.list_with_delimiter(self._client, key or None)["objects"]
        else:
            pages = obstore.list(self._client, key or None, chunk_size=PAGE)
            found = [one for page in pages for one in page]
        return {f"{bucket}/{one['path']}": _described(one) for one in _without_markers(found, key)}

    def cat_file(self, url: str, start: int, end: int) -> bytes:
        import obstore

        key = self._strip_protocol(url).partition("/")[2]
        return bytes(obstore.get_range(self._client, key, start=start, end=end))


def _described(about: Any) -> dict[str, Any]:
    named = {"ETag": about["e_tag"], "LastModified": about["last_modified"]}
    return {"name": about["path"], "size": about["size"], "type": "file", **named}


def _without_markers(found: Sequence[Any], folder: str) -> list[Any]:
    """Consoles make an empty object for a folder; the library lists it as a file of that name."""
    parents = {folder}
    for one in found:
        path = str(one["path"])
        parents.update(path[:at] for at, letter in enumerate(path) if letter == "/")
    return [one for one in found if one["size"] or one["path"] not in parents]


def is_one(protocol: str) -> bool:
    return protocol in SCHEMES


def bucket_error(error: BaseException, url: str) -> TokenmillError:
    """What a store said, as an error of an input that says what to do."""
    address: BucketAddress = parse_address(url)
    answer = answer_of(error)
    if type(error).__name__ == ODD_NAME:
        return InputError(
            f"{address}: the store lists an object whose name has an empty part, '.' or '..'",
            hint="rename that object, or name the files one by one",
        )
    if isinstance(error, FileNotFoundError) and answer.code != "NoSuchBucket":
        return InputError(f"{url}: no such file or folder")
    fault = bucket_fault(error, "read", address)
    if not isinstance(fault, StorageError):
        return fault
    lasting = answer.status in (301, 307, 401, 403) or answer.code in LASTING_CODES
    kind = InputError if lasting else SourceError
    return kind(fault.message, hint=fault.hint)
