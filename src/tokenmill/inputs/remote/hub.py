"""The Hugging Face Hub: a revision to a commit, a path or pattern to files, faults to advice.

A commit never changes, so its list of files is asked for once and kept (`FileList`): a second run,
and one offline, need no request at all. `huggingface_hub` is imported on first use: it takes
half a second.

Lists are requested here, not by `HfApi`: `list_repo_tree` asks without a time limit (it passes
timeout=None, which also overrides that of a client of ours), and tries again unseen.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import xxhash

from tokenmill.errors import InputError, OfflineError, SourceError, StorageError, TokenmillError
from tokenmill.inputs.remote.address import (
    HubAddress,
    RemoteFile,
    crosses_folders,
    fixed_folder,
    has_magic,
    matcher,
    named_file,
)
from tokenmill.inputs.remote.retry import LASTING_ERRNO, chain_of, patiently, status_of, why

COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCHES_SHOWN = 12
DOWNLOAD_FIRST = "download it once with --download-only and without HF_HUB_OFFLINE"
ANSWER_TIMEOUTS = 3  # a list of a thousand files takes longer than an ETag
# Files of a repository that are not data.
NO_DATA = re.compile(
    r"(README|LICENSE|NOTICE)[^/]*|[^/]*\.(md|py|ya?ml)|dataset_infos?\.json", re.I
)


class HubFile(msgspec.Struct, frozen=True, array_like=True):
    """A file as the Hub lists it; sha256 of large files, the git blob's sha1 of small ones."""

    path: str
    size: int
    sha256: str
    blob: str

    @property
    def fingerprint(self) -> str:
        return f"sha256:{self.sha256}" if self.sha256 else f"git-sha1:{self.blob}"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A list of files as it was found: in the user's cache, under a name made of the question."""

    version: Literal[1] = 1
    commit: str
    files: list[HubFile]
    folders: list[str]


class ListCache:
    """Lists from earlier runs; new ones gather here until the caller writes them."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self.new: dict[str, bytes] = {}

    def get(self, name: str) -> FileList | None:
        content = self.new.get(name) or self._read(name) or b""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(content, type=FileList)
        return None

    def put(self, name: str, kept: FileList) -> None:
        self.new[name] = msgspec.json.encode(kept)


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def find_on_hub(
    address: HubAddress, pin: str, shelf: ListCache, extensions: tuple[str, ...]
) -> tuple[str, list[RemoteFile], list[tuple[str, str]]]:
    """The commit; the files an address means, in the order of their paths' bytes; what of a
    folder is passed over, and why. `pin`: the commit that an unfinished job is bound to."""
    search = _HubSearch(address, shelf)
    commit = pin or search.commit()
    files = search.files(commit, extensions)
    skipped = []
    if has_magic(address.path) or address.path not in (entry.path for entry in files):
        skipped = [(f"{address.root}/{e.path}", r) for e in files if (r := _passed_over(e.path))]
        files = [entry for entry in files if not _passed_over(entry.path)]
    if not files:
        raise search.nothing(commit)
    found = [
        named_file(address.name_of(commit, entry.path), entry.size, entry.fingerprint)
        for entry in sorted(files, key=lambda entry: entry.path.encode())
    ]
    return commit, found, skipped


def _passed_over(path: str) -> str:
    if any(step.startswith(".") for step in path.split("/")):
        return "hidden"
    return "no data" if NO_DATA.fullmatch(path.rsplit("/", 1)[-1]) else ""


class _HubSearch:
    def __init__(self, address: HubAddress, shelf: ListCache) -> None:
        self.address, self.shelf = address, shelf
        self.api_url = f"{endpoint()}/api/{address.kind}s/{address.repo}"
        # Under this name the shelf holds the commit of the revision asked for.
        self.name = "hub-" + xxhash.xxh3_128_hexdigest(f"{endpoint()} {address.root}".encode())

    def commit(self) -> str:
        revision = self.address.revision
        if COMMIT.fullmatch(revision):
            return revision
        try:
            with self.explained():
                url = f"{self.api_url}/revision/{quote(revision, safe='')}"
                return str(patiently(partial(self._get, url)).json()["sha"])
        except OfflineError:
            kept = self.shelf.get(self.name)
            known = kept.commit if kept is not None else _cached_commit(self.address)
            if not known:
                raise
            return known

    def files(self, commit: str, extensions: tuple[str, ...]) -> list[HubFile]:
        path = self.address.path
        if has_magic(path):
            matches = matcher(path).fullmatch
            listed = self.tree(commit, fixed_folder(path), crosses_folders(path))
            named = [entry for entry in listed.files if entry.path == path]  # brackets and all
            return named or [entry for entry in listed.files if matches(entry.path)]
        if path.lower().endswith(extensions):
            listed = self.tree(commit, path.rpartition("/")[0], False, named=path)
            if path not in listed.folders:
                return [entry for entry in listed.files if entry.path == path]
        return self.tree(commit, path, True).files

    def tree(self, commit: str, folder: str, deep: bool, named: str = "") -> FileList:
        """The files of a folder at a commit: from the shelf, or from the Hub, or offline from
        what its cache holds. `named`: the one file that is looked for."""
        kept = self._shelved(commit, folder, deep)
        if kept is None:
            try:
                with self.explained(commit):
                    kept = self._ask(commit, folder, deep)
            except OfflineError:
                kept = _below(commit, folder, _cached_tree(self.address, commit))
                if kept is not None:
                    return kept
                here = _below(commit, folder, _cached_files(self.address, commit))
                if here is None:
                    raise
                if named not in (entry.path for entry in here.files):
                    raise self._perhaps_not_all(commit, folder, len(here.files)) from None
                return here
            self.shelf.put(self._name_of(folder, deep), kept)
        self.shelf.put(self.name, FileList(commit=commit, files=[], folders=[]))
        return kept

    def _shelved(self, commit: str, folder: str, deep: bool) -> FileList | None:
        """A list without folders in it is also the deep one; a deep one holds the other."""
        for other in (deep, not deep):
            kept = self.shelf.get(self._name_of(folder, other))
            if kept is None or kept.commit != commit:
                continue
            if other or not deep or not kept.folders:
                return kept
        return None

    def _name_of(self, folder: str, deep: bool) -> str:
        return f"{self.name}.{xxhash.xxh3_64_hexdigest(f'{folder}/{deep}'.encode())}"

    def _ask(self, commit: str, folder: str, deep: bool) -> FileList:
        url = f"{self.api_url}/tree/{quote(commit, safe='')}"
        url += f"/{quote(folder, safe='')}" if folder else ""
        url += f"?recursive={str(deep).lower()}"
        files, folders = [], []
        while url:
            answer = patiently(partial(self._get, url))
            for entry in answer.json():
                if entry["type"] != "file":
                    folders.append(entry["path"])
                    continue
                sha256 = (entry.get("lfs") or {}).get("oid", "")
                files.append(HubFile(entry["path"], int(entry["size"]), sha256, entry["oid"]))
            url = answer.links.get("next", {}).get("url", "")
        return FileList(commit=commit, files=files, folders=folders)

    def _get(self, url: str) -> Any:
        """As the library asks, but with a time limit: a server that takes the request and never
        answers would hold us for ever."""
        from huggingface_hub import constants, get_session, utils

        library: Any = utils
        library.validate_repo_id(self.address.repo)
        headers = library.build_hf_headers(library_name="tokenmill")
        seconds = ANSWER_TIMEOUTS * constants.HF_HUB_ETAG_TIMEOUT
        answer = get_session().get(url, headers=headers, timeout=seconds)
        library.hf_raise_for_status(answer)
        return answer

    # --- what went wrong, and what to do -------------------------------------------------------

    def _perhaps_not_all(self, commit: str, folder: str, files: int) -> OfflineError:
        """A part of a dataset, taken for all of it, would be wrong tokens in silence."""
        where = cache_of(self.address) / "snapshots" / commit / folder
        return OfflineError(
            f"{self.address}: HF_HUB_OFFLINE is set, and no list is here that says whether the "
            f"{files} file{'s' * (files != 1)} in the cache are all",
            hint=f"{DOWNLOAD_FIRST}; or, if they are all, name them where they are: {where}",
        )

    def nothing(self, commit: str, of_pattern: str = "no file matches") -> InputError:
        what = of_pattern if has_magic(self.address.path) else "no such file or folder"
        return InputError(
            f"{self.address}: {what} at commit {commit[:12]}",
            hint=self._nearby(commit, self.address.path)
            or "check the path; an empty pattern is an error",
        )

    def _nearby(self, commit: str, path: str) -> str:
        """What is there, in the deepest folder of the path that exists."""
        folder = fixed_folder(path)
        while True:
            missing = path.removeprefix(folder).strip("/").split("/")[0]
            try:
                with quiet_hub():
                    kept = self._ask(commit, folder, False)
            except Exception:
                if not folder:
                    return ""
                folder = folder.rpartition("/")[0]
                continue
            names = [f"{name.rsplit('/', 1)[-1]}/" for name in kept.folders]
            names += [entry.path.rsplit("/", 1)[-1] for entry in kept.files]
            near = difflib.get_close_matches(missing, names, n=5, cutoff=0.7)
            where = f"in {folder}/" if folder else "at the top"
            if near:
                return f"{where}, did you mean: {_first_of(names, near)}"
            return f"{where} there are: {_first_of(names, names[:BRANCHES_SHOWN])}"

    def _revisions(self) -> str:
        with contextlib.suppress(Exception), quiet_hub():
            refs = self._get(f"{self.api_url}/refs").json()
            names = [ref["name"] for ref in (*refs["branches"], *refs["tags"])]
            return f"there are: {_first_of(names, names[:BRANCHES_SHOWN])}; or give a commit"
        return "give a branch, a tag or a commit"

    @contextlib.contextmanager
    def explained(self, commit: str = "") -> Iterator[None]:
        from huggingface_hub import errors

        address = self.address
        try:
            with quiet_hub():
                yield
        except TokenmillError:
            raise
        except errors.RevisionNotFoundError:
            raise InputError(
                f"{address.repo}: has no revision {address.revision!r}", hint=self._revisions()
            ) from None
        except errors.RemoteEntryNotFoundError:
            raise self.nothing(commit, "no such folder") from None
        except Exception as error:
            raise hub_error(error, address) from None


def _first_of(names: list[str], shown: list[str]) -> str:
    more = f" ... ({len(names)} in all)" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{more}"


# --- the library's own cache, as any program may have filled it --------------------------------


def cache_of(address: HubAddress) -> Path:
    """The folder of a repository in the library's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=address.repo, repo_type=address.kind)
    return Path(constants.HF_HUB_CACHE, name)


def _cached_commit(address: HubAddress) -> str:
    """What a branch or tag pointed to when somebody last looked; '' where nobody did."""
    with contextlib.suppress(OSError):
        path = cache_of(address).joinpath("refs", *address.revision.split("/"))
        return path.read_text().strip()
    return ""


def _cached_tree(address: HubAddress, commit: str) -> list[HubFile]:
    """All files of a commit, where the library has listed them."""
    try:
        content = (cache_of(address) / "trees" / f"{commit}.json").read_bytes()
        return [
            HubFile(path, int(at["size"]), at.get("lfs_sha256") or "", at["blob_id"])
            for path, at in msgspec.json.decode(content)["files"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _cached_files(address: HubAddress, commit: str) -> list[HubFile]:
    """The files of a commit that somebody has downloaded."""
    root = cache_of(address) / "snapshots" / commit
    files = []
    for path in filter(os.path.isfile, root.rglob("*")):
        blob = path.resolve().name  # called by its hash
        sha256 = blob if re.fullmatch(r"[0-9a-f]{64}", blob) else ""
        files.append(HubFile(str(path.relative_to(root)), path.stat().st_size, sha256, blob))
    return files


def _below(commit: str, folder: str, files: list[HubFile]) -> FileList | None:
    prefix = f"{folder}/" if folder else ""
    files = [entry for entry in files if entry.path.startswith(prefix)]
    return FileList(commit=commit, files=files, folders=[]) if files else None


def hub_error(error: BaseException, address: HubAddress, what: str = "") -> TokenmillError:
    """What the Hub or the line said, as an error that says what to do."""
    from huggingface_hub import errors, get_token

    what = what or str(address)
    page = address.page(endpoint())
    login = "you are not logged in: run `hf auth login`, or set HF_TOKEN to a token that may read"
    with contextlib.suppress(OSError):  # a home that cannot be read holds no token
        if get_token():
            login = "you are logged in, but this account may not read it"
    if any(isinstance(one, errors.OfflineModeIsEnabled) for one in chain_of(error)):
        return OfflineError(
            f"{what}: not downloaded yet, and HF_HUB_OFFLINE is set",
            hint=DOWNLOAD_FIRST,
        )
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            f"{address.repo}: is gated: its terms must be accepted first",
            hint=f"accept them on {page}; {login}",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        dataset = f"a dataset is hf://datasets/{address.repo}; " if address.kind == "model" else ""
        return InputError(
            f"{address.repo}: no such {address.kind} on {endpoint()}, or it is private",
            hint=f"{dataset}check the name on {page}; if it is private: {login}",
        )
    status = status_of(error)
    if status in (401, 403):
        return InputError(f"{what}: the Hub refuses it (HTTP {status})", hint=login)
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{address.repo}: cannot be the name of a repository")
    for one in chain_of(error):
        if isinstance(one, OSError) and one.errno in LASTING_ERRNO:
            return StorageError(
                f"{what}: cannot be downloaded: {one.filename or 'the cache'}: {one.strerror}",
                hint="name a folder that can be written with HF_HOME (or XDG_CACHE_HOME)",
            )
    return SourceError(
        f"{what}: cannot be downloaded from {endpoint()}: {why(error)}",
        hint="the same command goes on where it stopped; to use only what is here already, set "
        "HF_HUB_OFFLINE=1",
    )


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    """The library's warnings would tear the progress bar; what matters we say ourselves."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
