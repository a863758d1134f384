"""A folder of a bucket as a store of whole files (`ObjectStore`)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import xxhash

from tokenmill.amounts import show_bytes
from tokenmill.errors import RefusedError, StorageError, TokenmillError
from tokenmill.system.buckets.address import parse_address
from tokenmill.system.buckets.client import open_client, pause_seconds, refuse_after_fork
from tokenmill.system.buckets.faults import Action, answer_of, bucket_fault, passes
from tokenmill.system.buckets.local_copies import copy_of
from tokenmill.system.buckets.upload import PartsFailed, Upload
from tokenmill.system.buckets.uploads import abort_uploads
from tokenmill.system.disk import Buffer
from tokenmill.system.store import ObjectStore

T = TypeVar("T")
Views = list[memoryview]  # `Bucket.list` is something else
Keys = list[str]
PART_BYTES = 8 << 20  # S3 wants 5 MiB and more, but for the last part
MOST_PARTS = 10_000
PARTS_AT_ONCE = 3  # so many parts of an upload are in memory
READ_BYTES = 8 << 20  # asked for at once of a file that is read as a whole
ATTEMPTS = 4  # of a step, beside those that the library makes of each request
BULK = 1000  # files that are removed with one request


class Bucket(ObjectStore):
    ranged = True

    def __init__(self, address: str) -> None:
        self._address = parse_address(address)
        self.address = str(self._address)
        self._opened: Any = None
        self._seen = False  # something is there: the bucket exists

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.address,)

    @property
    def _client(self) -> Any:
        refuse_after_fork(self.address)
        if self._opened is None:
            self._opened = open_client(self._address)
        return self._opened

    def where(self, name: str = "") -> str:
        return f"{self.address}/{name}" if name else self.address

    # --- reading -------------------------------------------------------------------------------

    def size(self, name: str) -> int | None:
        about = self._about(name)
        return None if about is None else int(about["size"])

    def _about(self, name: str) -> Any:
        import obstore

        key = self._key(name)

        def head() -> Any:
            try:
                return obstore.head(self._client, key)
            except obstore.exceptions.BaseError as error:
                if 300 < answer_of(error).status < 500:  # this answer never has a text: why not?
                    obstore.get_range(self._client, key, start=0, length=1)
                raise

        try:
            found = self._try("read", name, head)
        except FileNotFoundError:
            self._refuse_missing_bucket()
            return None
        self._seen = True
        return found

    def _refuse_missing_bucket(self) -> None:
        """A store that is asked for one file does not tell that there is no bucket."""
        if self._seen:
            return
        try:
            self._try("list", "", lambda: next(iter(self._found("")), None))
        except StorageError as error:
            if "no such bucket" in error.message:
                raise
        self._seen = True

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._read(name, offset, length))

    def _read(self, name: str, offset: int, length: int) -> Buffer:
        """FileNotFoundError: there is none. A store that cannot be asked is a StorageError: its
        file may be whole."""
        import obstore

        if length <= 0:
            if self.size(name) is None:
                raise self._missing(name)
            return b""
        key = self._key(name)

        def get() -> Buffer:
            try:
                content: Buffer = obstore.get_range(self._client, key, start=offset, length=length)
            except obstore.exceptions.BaseError as error:
                if answer_of(error).status == 416:  # behind its end
                    return b""
                raise
            return content

        try:
            return self._try("read", name, get)
        except FileNotFoundError:
            raise self._missing(name) from None

    def _missing(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(name))

    def stream(self, name: str, offset: int, length: int) -> Iterator[Buffer]:
        end = offset + length
        while offset < end:
            content = self._read(name, offset, min(READ_BYTES, end - offset))
            if not len(content):
                return
            yield memoryview(content)
            offset += len(content)

    def view(self, name: str) -> memoryview:
        """A local copy, mapped: indexes, and files that can only be read as a whole."""
        about = self._about(name)
        if about is None:
            raise self._missing(name)
        version = str(about.get("e_tag") or about.get("last_modified"))
        size = int(about["size"])
        return copy_of(self.where(name), version, size, lambda: self.stream(name, 0, size))

    def list(self, folder: str) -> Iterator[str]:
        import obstore

        above = self._address.key(folder)
        found = self._try(
            "list", folder, lambda: obstore.list_with_delimiter(self._client, above or None)
        )
        paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return iter(sorted(path.rstrip("/").rpartition("/")[2] for path in paths))

    def names(self, prefix: str) -> Iterator[str]:
        """Sorted here: not every store does it."""
        folder = prefix.rpartition("/")[0]
        found = self._try("list", folder, lambda: list(self._found(folder)))
        return iter(sorted(name for name in found if name.startswith(prefix)))

    def _found(self, folder: str) -> Iterator[str]:
        import obstore

        above = self._address.key(folder)
        begin = len(self._address.folder) + 1 if self._address.folder else 0
        for page in obstore.list(self._client, above or None, chunk_size=1000):
            yield from (str(one["path"])[begin:] for one in page)

    # --- writing -------------------------------------------------------------------------------

    def write_whole(self, name: str, content: bytes) -> None:
        import obstore

        key = self._key(name)
        self._try(
            "write", name, lambda: obstore.put(self._client, key, content, use_multipart=False)
        )

    def write_parts(self, name: str, parts: Iterable[Buffer], size: int = 0) -> None:
        """A file that fits into one part is written in one go. `size`: about how long it gets.
        Parts that can be gone through again are sent again, if their upload fails."""
        part_bytes = max(_part_bytes(), -(-size // (MOST_PARTS - 1)))
        first: list[memoryview] = []
        length, rest = 0, iter(parts)
        for part in rest:
            first.append(memoryview(part).cast("B"))
            length += first[-1].nbytes
            if length > part_bytes:
                break
        else:
            self.write_whole(name, b"".join(first))
            return
        ready = [itertools.chain(_popped(first), rest)]
        once = isinstance(parts, Iterator)

        def upload() -> None:
            given = ready.pop() if ready else iter(parts)
            self._upload(name, given, part_bytes, begins=ATTEMPTS if once else 1)

        try:
            self._try("write", name, upload, attempts=1 if once else ATTEMPTS)
        except PartsFailed as failed:
            raise failed.error from None

    def _upload(self, name: str, parts: Iterator[Buffer], part_bytes: int, begins: int) -> None:
        """In parts, of which few are in memory. What fails is aborted; what a dead process leaves
        is aborted when its job ends (`abort_uploads`)."""
        import obstore

        upload = Upload(
            lambda buffers: obstore.put(
                self._client,
                self._key(name),
                buffers,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=PARTS_AT_ONCE,
            ),
            begins,
        )

        def given() -> Iterator[Buffer]:
            for part in parts:
                if upload.length + memoryview(part).nbytes > part_bytes * MOST_PARTS:
                    raise self._too_long(name, upload.length)
                yield part

        try:
            upload.send(given())
        except Exception:
            # It may have ended, and its answer been lost: then the store knows of it no more. Or
            # the store is still at work on it.
            if not upload.all_taken or not self._comes_to_hold(name, upload):
                raise

    def _comes_to_hold(self, name: str, upload: Upload) -> bool:
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(attempt)
            if self._holds(name, upload.length, upload.digest):
                return True
        return False

    def _holds(self, name: str, length: int, digest: bytes) -> bool:
        """Whether the file is there as it was sent."""
        try:
            if self.size(name) != length:
                return False
            found = xxhash.xxh3_128()
            for content in self.stream(name, 0, length):
                found.update(content)
            return found.digest() == digest
        except (OSError, StorageError):
            return False

    def _too_long(self, name: str, length: int) -> StorageError:
        return StorageError(
            f"{self.where(name)}: longer than an upload of {MOST_PARTS:,} parts can be "
            f"({show_bytes(length)})",
            hint="use a format with shards, or smaller ones with --shard-tokens",
        )

    def create(self, name: str, content: bytes) -> None:
        import obstore

        key = self._key(name)
        for attempt in range(ATTEMPTS * 2):
            if attempt:
                self._pause(attempt)
            try:
                obstore.put(self._client, key, content, mode="create", use_multipart=False)
                return
            except obstore.exceptions.AlreadyExistsError:
                # Two requests at once may both be told so, and neither be carried out.
                if self.size(name) is not None:
                    raise RefusedError(f"{self.where(name)}: exists already") from None
                last: BaseException = _unfinished(self.where(name))
            except Exception as error:
                last = bucket_fault(error, "write", self._address, name)
                if not passes(error):
                    raise last from None
        raise last from None

    def remove(self, name: str) -> bool:
        """Always true: a bucket does not tell whether there was a file."""
        self.remove_all([name])
        return True

    def remove_all(self, names: Iterable[str]) -> None:
        import obstore

        keys = [self._key(name) for name in names]
        for at in range(0, len(keys), BULK):
            some = keys[at : at + BULK]
            folder = "" if len(keys) > 1 else keys[0].removeprefix(self._address.folder).strip("/")
            try:
                self._try("remove", folder, lambda some=some: obstore.delete(self._client, some))  # type: ignore[misc]
            except FileNotFoundError:
                # GCS says so, and the library has left the rest of the list undone.
                self._remove_each(some, folder)

    def _remove_each(self, keys: Keys, folder: str) -> None:
        import obstore

        for key in keys if len(keys) > 1 else ():
            with contextlib.suppress(FileNotFoundError):
                self._try("remove", folder, lambda key=key: obstore.delete(self._client, key))  # type: ignore[misc]

    def abort_uploads(self) -> None:
        abort_uploads(self._address)

    def check_conditions(self) -> None:
        """A store that does not create a file once only is refused, before anything is written; and
        so is one where we may not list, write, read or remove."""
        name, where = f".tokenmill/probe-{os.urandom(8).hex()}", self.where()
        try:
            for content in (b"first", b"second"):
                with contextlib.suppress(
                    RefusedError
                ):  # an answer may be lost; what is there counts
                    self.create(name, content)
            if self.read(name, 0, 9) != b"first":
                self.remove(name)
                raise _unconditional(where)
            if name not in self.names(".tokenmill/"):
                raise StorageError(
                    f"{where}: a file that was just written is not in the list of files",
                    hint="use a store that lists what it has: S3, GCS, R2, MinIO, Ceph",
                )
        except StorageError as error:
            if "(NotImplemented)" in error.message or "HTTP 501" in error.message:
                raise _unconditional(where) from None
            raise
        self.remove(name)

    # --- trying again --------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return self._address.key(name)

    def _pause(self, attempt: int) -> None:
        time.sleep(min(15.0, pause_seconds() * 2 ** (attempt - 1)) * random.uniform(0.7, 1.3))

    def _try(
        self, action: Action, name: str, step: Callable[[], T], attempts: int | None = None
    ) -> T:
        """A step that may be made twice. FileNotFoundError where there is no such file."""
        for attempt in range(ATTEMPTS if attempts is None else attempts):
            if attempt:
                self._pause(attempt)
            try:
                return step()
            except TokenmillError:
                raise
            except Exception as error:
                missing = isinstance(error, FileNotFoundError) and action != "write"
                if missing and answer_of(error).code != "NoSuchBucket":
                    raise
                last = bucket_fault(error, action, self._address, name)
                if not passes(error):
                    break
        raise last from None


def _popped(views: Views) -> Iterator[Buffer]:
    """They are not kept any longer than needed."""
    while views:
        yield views.pop(0)


def _part_bytes() -> int:
    value = os.environ.get("TOKENMILL_PART_BYTES", "")  # tests have no gigabytes
    return int(value) if value.isdigit() else PART_BYTES


def _unfinished(where: str) -> StorageError:
    return StorageError(
        f"{where}: cannot be created: the store answers that another request is under way",
        hint="run the same command again: it resumes",
    )


def _unconditional(where: str) -> RefusedError:
    return RefusedError(
        f"{where}: this store does not honour conditions (If-None-Match): two coordinators could "
        "overwrite each other's work without an error",
        hint="use a store that does (S3, GCS, R2, newer versions of MinIO and Ceph), or write to "
        "a local folder and copy it",
    )
