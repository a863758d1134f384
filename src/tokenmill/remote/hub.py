"""The Hugging Face Hub: a revision to a commit, a path or pattern to files, faults to advice.

A commit never changes, so its list of files is asked for once and kept (`Kept`): a second run,
and one offline, need no request at all. `huggingface_hub` is imported on first use: it takes
half a second.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
import xxhash

from tokenmill.errors import (
    InputError,
    OfflineError,
    SourceError,
    StorageError,
    TokenmillError,
)
from tokenmill.remote.address import (
    HubAddress,
    RemoteFile,
    crosses_folders,
    fixed_folder,
    has_magic,
    matcher,
    page_of,
)
from tokenmill.remote.patience import LASTING_ERRNO, chain_of, patiently, status_of, why

COMMIT = re.compile(r"[0-9a-f]{40}")
SHOWN = 12
ANSWER_TIMEOUTS = 3  # a list of a thousand files takes longer than an ETag
# What stands beside the data in a repository.
NO_DATA = re.compile(
    r"(README|LICENSE|NOTICE)[^/]*|[^/]*\.(md|py|ya?ml)|dataset_infos?\.json", re.I
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A file as the Hub lists it; sha256 of large files, the git blob's sha1 of small ones."""

    path: str
    size: int
    sha256: str
    blob: str


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A list of files as it was found: in the user's cache, under a name made of the question."""

    version: int = 1
    commit: str
    files: list[Entry]
    folders: list[str]


class Shelf:
    """What is kept of earlier answers; new ones gather here until somebody writes them."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self.new: dict[str, bytes] = {}

    def get(self, name: str) -> Kept | None:
        content = self.new.get(name) or self._read(name)
        try:
            kept = msgspec.json.decode(content, type=Kept) if content else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return kept if kept is not None and kept.version == 1 else None

    def put(self, name: str, kept: Kept) -> None:
        self.new[name] = msgspec.json.encode(kept)


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def find_on_hub(
    address: HubAddress, pin: str, shelf: Shelf, extensions: tuple[str, ...]
) -> tuple[str, list[RemoteFile], list[tuple[str, str]]]:
    """The commit; the files an address means, in the order of their paths' bytes; what of a
    folder is passed over, and why. `pin`: the commit that an unfinished job is bound to."""
    finder = _Finder(address, shelf)
    commit = pin or finder.commit()
    files = finder.files(commit, extensions)
    skipped = []
    if has_magic(address.path) or address.path not in (entry.path for entry in files):
        skipped = [(f"{address.root}/{e.path}", r) for e in files if (r := _passed_over(e.path))]
        files = [entry for entry in files if not _passed_over(entry.path)]
    if not files:
        raise finder.nothing(commit)
    found = [
        RemoteFile(
            name=address.name_of(commit, entry.path),
            size=entry.size,
            fingerprint=f"sha256:{entry.sha256}" if entry.sha256 else f"git-sha1:{entry.blob}",
            kind=address.kind,
            repo=address.repo,
            commit=commit,
            path=entry.path,
        )
        for entry in sorted(files, key=lambda entry: entry.path.encode())
    ]
    return commit, found, skipped


def _passed_over(path: str) -> str:
    if any(step.startswith(".") for step in path.split("/")):
        return "hidden"
    return "no data" if NO_DATA.fullmatch(path.rsplit("/", 1)[-1]) else ""


class _Finder:
    def __init__(self, address: HubAddress, shelf: Shelf) -> None:
        self.address, self.shelf = address, shelf
        self.cache = HubCache(address)

    def commit(self) -> str:
        address = self.address
        if COMMIT.fullmatch(address.revision):
            return address.revision
        try:
            with quiet_hub(), self.explained():
                url = f"{self.api_url}/revision/{quote(address.revision, safe='')}"
                return str(patiently(partial(self._get, url)).json()["sha"])
        except OfflineError:
            kept = self.shelf.get(self._question())
            known = kept.commit if kept is not None else self.cache.commit()
            if not known:
                raise
            return known

    def files(self, commit: str, extensions: tuple[str, ...]) -> list[Entry]:
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

    def tree(self, commit: str, folder: str, deep: bool, named: str = "") -> Kept:
        """The files of a folder at a commit: from the shelf, or from the Hub, or offline from
        what its cache holds. `named`: the one file that is looked for."""
        kept = self._shelved(commit, folder, deep)
        if kept is None:
            try:
                with quiet_hub(), self.explained(commit, folder):
                    kept = self._ask(commit, folder, deep)
            except OfflineError:
                kept = self.cache.tree(commit, folder)
                if kept is not None:
                    return kept
                here = self.cache.here(commit, folder)
                if here is None:
                    raise
                if named not in (entry.path for entry in here.files):
                    raise self._perhaps_not_all(commit, folder, len(here.files)) from None
                return here
            self.shelf.put(self._name(folder, deep), kept)
        self.shelf.put(self._question(), Kept(commit=commit, files=[], folders=[]))
        return kept

    def _shelved(self, commit: str, folder: str, deep: bool) -> Kept | None:
        """A list without folders in it is also the deep one; a deep one holds the other."""
        for other in (deep, not deep):
            kept = self.shelf.get(self._name(folder, other))
            if (
                kept is not None
                and kept.commit == commit
                and (other or not deep or not kept.folders)
            ):
                return kept
        return None

    def _name(self, folder: str, deep: bool) -> str:
        return f"{self._question()}.{xxhash.xxh3_64_hexdigest(f'{folder}/{deep}'.encode())}"

    def _ask(self, commit: str, folder: str, deep: bool) -> Kept:
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
                files.append(Entry(entry["path"], int(entry["size"]), sha256, entry["oid"]))
            url = answer.links.get("next", {}).get("url", "")
        return Kept(commit=commit, files=files, folders=folders)

    @property
    def api_url(self) -> str:
        return f"{endpoint()}/api/{self.address.kind}s/{self.address.repo}"

    def _get(self, url: str) -> Any:
        """As the library asks, but not without a limit in time, as it does for lists: a server
        that takes the request and never answers would hold us for ever."""
        from huggingface_hub import constants, get_session, utils

        library: Any = utils
        library.validate_repo_id(self.address.repo)
        headers = library.build_hf_headers(library_name="tokenmill")
        seconds = ANSWER_TIMEOUTS * constants.HF_HUB_ETAG_TIMEOUT
        answer = get_session().get(url, headers=headers, timeout=seconds)
        library.hf_raise_for_status(answer)
        return answer

    def _question(self) -> str:
        return "hub-" + xxhash.xxh3_128_hexdigest(f"{endpoint()} {self.address.root}".encode())

    # --- what went wrong, and what to do -------------------------------------------------------

    def _perhaps_not_all(self, commit: str, folder: str, files: int) -> OfflineError:
        """A part of a dataset, taken for all of it, would be wrong tokens in silence."""
        where = os.path.join(self.cache.folder, "snapshots", commit, folder)
        return OfflineError(
            f"{self.address}: HF_HUB_OFFLINE is set, and no list is here that says whether the "
            f"{files} file{'s' * (files != 1)} in the cache are all",
            hint="fetch it once with the same command, --download-only, and without "
            f"HF_HUB_OFFLINE; or, if they are all, name them where they are: {where}",
        )

    def nothing(self, commit: str) -> TokenmillError:
        lines = self._nearby(commit, self.address.path)
        what = "no file matches" if has_magic(self.address.path) else "no such file or folder"
        return InputError(
            f"{self.address}: {what} at commit {commit[:12]}",
            hint=lines or "check the path; an empty pattern is an error",
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
            shown = near or names[:SHOWN]
            more = f" ... ({len(names)} in all)" if len(names) > len(shown) else ""
            return f"{where} there {'is near it' if near else 'are'}: {', '.join(shown)}{more}"

    def _revisions(self) -> str:
        with contextlib.suppress(Exception), quiet_hub():
            refs = self._get(f"{self.api_url}/refs").json()
            names = [ref["name"] for ref in (*refs["branches"], *refs["tags"])]
            more = f" ... ({len(names)} in all)" if len(names) > SHOWN else ""
            return f"there are: {', '.join(names[:SHOWN])}{more}; or give a commit"
        return "give a branch, a tag or a commit"

    @contextlib.contextmanager
    def explained(self, commit: str = "", folder: str = "") -> Iterator[None]:
        from huggingface_hub import errors

        address = self.address
        try:
            yield
        except TokenmillError:
            raise
        except errors.RevisionNotFoundError:
            raise InputError(
                f"{address.repo}: has no revision {address.revision!r}", hint=self._revisions()
            ) from None
        except errors.RemoteEntryNotFoundError:
            if not has_magic(address.path) and commit and folder:
                raise self.nothing(commit) from None
            raise InputError(
                f"{address}: no such folder at commit {commit[:12]}",
                hint=self._nearby(commit, address.path) or "check the path",
            ) from None
        except Exception as error:
            raise explained_fault(error, address) from None


class HubCache:
    """The library's own cache, as any program may have filled it: refs, trees, snapshots."""

    def __init__(self, address: HubAddress) -> None:
        self.address = address

    @property
    def folder(self) -> str:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        name = repo_folder_name(repo_id=self.address.repo, repo_type=self.address.kind)
        return os.path.join(constants.HF_HUB_CACHE, name)

    def commit(self) -> str:
        """What a branch or tag pointed to when somebody last looked; '' where nobody did."""
        with contextlib.suppress(OSError), open(self._ref()) as file:
            return file.read().strip()
        return ""

    def _ref(self) -> str:
        return os.path.join(self.folder, "refs", *self.address.revision.split("/"))

    def tree(self, commit: str, folder: str) -> Kept | None:
        """The files below a folder as the library has listed them: all of them."""
        try:
            with open(os.path.join(self.folder, "trees", f"{commit}.json"), "rb") as file:
                listed = msgspec.json.decode(file.read())["files"]
            files = [
                Entry(path, int(at["size"]), at.get("lfs_sha256") or "", at["blob_id"])
                for path, at in listed.items()
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return _below(commit, folder, files)

    def here(self, commit: str, folder: str) -> Kept | None:
        """Those of them that somebody has fetched."""
        return _below(commit, folder, self._snapshot(commit))

    def _snapshot(self, commit: str) -> list[Entry]:
        root = os.path.join(self.folder, "snapshots", commit)
        files = []
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                blob = os.path.basename(os.path.realpath(path))  # called by its hash
                with contextlib.suppress(OSError):
                    size = os.path.getsize(path)
                    sha256 = blob if re.fullmatch(r"[0-9a-f]{64}", blob) else ""
                    files.append(Entry(os.path.relpath(path, root), size, sha256, blob))
        return files


def _below(commit: str, folder: str, files: list[Entry]) -> Kept | None:
    prefix = f"{folder}/" if folder else ""
    files = [entry for entry in files if entry.path.startswith(prefix)]
    return Kept(commit=commit, files=files, folders=[]) if files else None


def explained_fault(error: BaseException, address: HubAddress, what: str = "") -> TokenmillError:
    """What the Hub or the line said, as an error that says what to do."""
    from huggingface_hub import errors, get_token

    what = what or str(address)
    page = page_of(address, endpoint())
    login = "you are not logged in: run `hf auth login`, or set HF_TOKEN to a token that may read"
    with contextlib.suppress(OSError):  # a home that cannot be read holds no token
        if get_token():
            login = "you are logged in, but this account may not read it"
    kinds = {type(one).__name__ for one in chain_of(error)}
    if "OfflineModeIsEnabled" in kinds:
        return OfflineError(
            f"{what}: not fetched yet, and HF_HUB_OFFLINE is set",
            hint="fetch it once with the same command, --download-only, and without HF_HUB_OFFLINE",
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
                f"{what}: cannot be fetched: {one.filename or 'the cache'}: {one.strerror}",
                hint="name a folder that can be written with HF_HOME (or XDG_CACHE_HOME)",
            )
    return SourceError(
        f"{what}: cannot be fetched from {endpoint()}: {why(error)}",
        hint="the same command goes on where it stopped; to use only what is here already, set "
        "HF_HUB_OFFLINE=1",
    )


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    """The library's warnings would tear the progress bar; what matters we say ourselves."""
    import logging

    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
