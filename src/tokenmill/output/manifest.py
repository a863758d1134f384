"""The manifest: what a finished dataset holds, strict, versioned and self-checking.

The manifest holds nothing of the run: no time, host, worker count or absolute path. The same plan
gives the same manifest, byte for byte.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

from tokenmill.errors import StorageError, VerificationError
from tokenmill.formats import is_format
from tokenmill.settings import PlanSettings, is_plain_name, is_plain_path
from tokenmill.system.store import NotAFileError, Place, read_whole, store_of

MANIFEST_VERSION = 2
MANIFEST = "manifest.json"
NOT_DATA = (MANIFEST, "run.json", "index")  # never among a dataset's files


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the dataset. `checksum` is the xxh3 of its pieces' digests in order."""

    path: str
    kind: str  # tokens, sidecar, ends, runs, rows, units, pieces, quarantine
    size: int
    checksum: str
    pieces: int
    format: str = ""  # whose file it is; '' where it is ours
    split: str = ""
    stream: str = ""
    first_token: int = 0  # where in its stream the file begins
    tokens: int = 0


class SplitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [first_token, first_token + tokens) of a stream, as one format has it."""

    name: str
    format: str
    stream: str
    first_token: int
    tokens: int
    documents: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    fingerprint: str
    plan: dict[str, Any]
    counts: dict[str, int]
    splits: list[SplitEntry]
    sources: list[dict[str, Any]]
    set_aside: list[dict[str, Any]]  # source, row, reason: what the bytes depend on but the plan
    files: list[FileEntry]
    checksum: str = ""

    @property
    def settings(self) -> PlanSettings:
        return PlanSettings.from_dict(self.plan["settings"])

    def sealed(self) -> Manifest:
        return msgspec.structs.replace(self, checksum=self._digest())

    def _digest(self) -> str:
        blank = msgspec.structs.replace(self, checksum="")
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(blank, order="deterministic"))

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def decode(cls, content: bytes, where: str) -> Manifest:
        try:
            manifest = msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise VerificationError(f"{where}: not a manifest of tokenmill: {error}") from None
        if manifest.version != MANIFEST_VERSION:
            raise VerificationError(
                f"{where}: version {manifest.version}; this tokenmill reads {MANIFEST_VERSION}"
            )
        manifest._check_names(where)
        # The bytes as well as the values: a flipped bit in white space is a change too.
        if manifest.checksum != manifest._digest() or manifest.encode() != content:
            raise VerificationError(f"{where}: damaged (its own checksum does not match)")
        return manifest

    def _check_names(self, where: str) -> None:
        """These are opened and removed: files of the folder and of those in it, and no others."""
        for path in [entry.path for entry in self.files]:
            if not _is_own(path):
                raise VerificationError(
                    f"{where}: names a file that does not belong to the dataset: {path!r}"
                )
        for stream in {entry.stream for entry in self.splits}:
            if not is_plain_name(stream):
                raise VerificationError(
                    f"{where}: names an index that does not belong to the dataset: {stream!r}"
                )

    @classmethod
    def load(cls, place: Place, name: str = MANIFEST) -> Manifest:
        store = store_of(place)
        try:
            content = read_whole(store, name)
        except OSError as error:
            told = f"{store.where(name)}: cannot be read: {error.strerror or error}"
            if isinstance(error, FileNotFoundError | NotAFileError):
                raise VerificationError(told) from None
            raise StorageError(told) from None
        return cls.decode(content, store.where(name))


def _is_own(path: str) -> bool:
    """In the folder itself, its index, or the folders of formats and splits; as `refuse_links`."""
    *folders, _ = path.split("/")
    if folders[:1] == ["index"] and len(folders) == 1:
        return is_plain_path(path)
    if folders and folders[0] not in ("train", "val") and is_format(folders[0]):
        folders = folders[1:]
    known = not folders or folders in (["train"], ["val"])
    return known and is_plain_path(path) and path not in NOT_DATA


def checksum_of_digests(digests: bytes) -> str:
    """A file's checksum: xxh3 of the little-endian 64-bit digests of its pieces, in order."""
    return xxhash.xxh3_128_hexdigest(digests)
