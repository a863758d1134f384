"""URLs to addresses: which repository, revision and path; which files a pattern means. Pure.

A URL is named in plans, manifests and logs without whatever might be secret in it. One that holds
a user's name or key is refused: these belong into the environment.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec

from tokenmill.errors import UsageError

URL = r"[A-Za-z][A-Za-z0-9+.-]*://"
RepoKind = Literal["dataset", "model", "space"]

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_MAGIC = re.compile(r"[*?\[]")
# Revisions of the Hub's own that hold slashes.
_REVISION = r"(?P<revision>refs/(?:convert/[^/]+|pr/\d+)|[^/]+)"
_HUB = re.compile(
    r"hf://(?:(?P<kind>datasets|models|spaces)/)?"
    r"(?P<repo>(?!(?:datasets|models|spaces|buckets)/)[^/@]+/[^/@]+)"
    rf"(?:@{_REVISION})?(?:/(?P<path>.*))?"
)
_HUB_PAGE = re.compile(
    r"/(?:(?P<kind>datasets|spaces)/)?(?P<repo>[^/]+/[^/]+)"
    rf"(?:/(?:resolve|blob|tree|raw)/{_REVISION}(?:/(?P<path>.*))?)?/?"
)


class HubAddress(msgspec.Struct, frozen=True, kw_only=True):
    kind: RepoKind
    repo: str
    revision: str  # as asked for: a branch, a tag or a commit
    path: str  # a file, a folder ('' the whole repository) or a pattern

    @property
    def root(self) -> str:
        """The repository at the revision asked for: what a plan's pin is kept under."""
        return f"hf://{self._full_repo}@{self.revision}"

    @property
    def _full_repo(self) -> str:
        return self.repo if self.kind == "model" else f"{self.kind}s/{self.repo}"

    def name_of(self, commit: str, path: str) -> str:
        return f"hf://{self._full_repo}@{commit}/{path}"

    def page(self, endpoint: str) -> str:
        """The repository's page, for a person."""
        return f"{endpoint}/{quote(self._full_repo)}"

    def __str__(self) -> str:
        return f"{self.root}/{self.path}".rstrip("/")


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A remote file: its name in plans and messages, what binds it, and how it is downloaded."""

    name: str
    size: int
    fingerprint: str  # sha256: of the Hub's large files, git-sha1: of its small ones, else etag:
    url: str = ""  # for fsspec; may hold a signature, so it is never shown nor stored
    hub: HubAddress | None = None  # of a file on the Hub; its revision is a commit


def is_url(argument: str) -> bool:
    return re.match(URL, argument) is not None


def hub_address(argument: str, endpoint: str = "") -> HubAddress | None:
    """An hf:// URL, or a page of the Hub as copied from a browser; None for any other URL."""
    if argument.startswith("hf://"):
        found = _HUB.fullmatch(argument)
        if found is None:
            raise UsageError(
                f"{argument}: not an address on the Hub",
                hint="write hf://datasets/ORG/NAME[@REVISION]/path/*.parquet",
            )
    else:
        try:
            parts = urlsplit(argument)
        except ValueError as error:
            raise UsageError(f"{argument}: not a URL: {error}") from None
        hosts = (*HUB_HOSTS, urlsplit(endpoint).netloc)
        found = None
        if parts.scheme in ("http", "https") and parts.netloc in hosts:
            found = _HUB_PAGE.fullmatch(parts.path)
        if found is None:
            return None
    kind = (found["kind"] or "models").removesuffix("s")
    path = (found["path"] or "").strip("/")
    return HubAddress(
        kind=kind,  # type: ignore[arg-type]
        repo=found["repo"],
        revision=unquote(found["revision"] or "main"),
        path=path if argument.startswith("hf://") else unquote(path),
    )


def named_file(name: str, size: int, fingerprint: str) -> RemoteFile:
    """A file by the name that a plan has given it: of the Hub, with its commit."""
    hub = hub_address(name)
    return RemoteFile(name=name, size=size, fingerprint=fingerprint, url=name, hub=hub)


def path_below(name: str) -> str:
    """The path of a file with such a name inside its repository or on its host."""
    address = hub_address(name)
    return address.path if address is not None else urlsplit(name).path.lstrip("/")


def public_name(url: str) -> str:
    """A URL as it may be shown and stored: no query, where signatures are."""
    return re.split("[?#]", url)[0] if url.startswith(("http://", "https://")) else url


def refuse_credentials(url: str) -> None:
    host = urlsplit(url).netloc
    # A secret with a slash in it ends the host too soon: what follows is not a port.
    cut_off = "@" in url and not host.startswith("[") and re.search(r":(?!\d*$)", host)
    if ("@" in host or cut_off) and not url.startswith("hf://"):
        scheme, name = url.partition("://")[0], url.rpartition("@")[2]
        raise UsageError(
            f"{scheme}://***@{name}: holds credentials, which would end up in logs and in your "
            "shell's history",
            hint="leave them out of the URL: they are read from the environment and the usual "
            "files (AWS_ACCESS_KEY_ID or ~/.aws, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN)",
        )


def has_magic(path: str) -> bool:
    return _MAGIC.search(path) is not None


def fixed_folder(pattern: str) -> str:
    """The folders before the first that has a wildcard: all that has to be listed."""
    steps = pattern.split("/")
    fixed = next((i for i, step in enumerate(steps) if has_magic(step)), len(steps) - 1)
    return "/".join(steps[:fixed])


def crosses_folders(pattern: str) -> bool:
    """Whether more has to be listed than the files of the fixed folder."""
    return "**" in pattern or any(map(has_magic, pattern.split("/")[:-1]))


def matcher(pattern: str) -> re.Pattern[str]:
    """As a shell has it: * and ? stay within a folder, ** crosses folders."""
    from fsspec.utils import glob_translate

    # ** inside a name is *, and [^a] is [!a], as shells have it.
    steps = [step if step == "**" else re.sub(r"\*+", "*", step) for step in pattern.split("/")]
    return re.compile(glob_translate("/".join(steps).replace("[^", "[!")))
