"""Object stores and web servers: what is there, its size, and what binds it.

obstore reads S3 and GCS (`buckets`), fsspec everything else.

Credentials come from the environment and the usual files of each store, as its library reads
them; none is taken from a URL.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from tokenmill.errors import InputError, SourceError, TokenmillError, UsageError
from tokenmill.inputs.remote import buckets
from tokenmill.inputs.remote.address import (
    RemoteFile,
    crosses_folders,
    fixed_folder,
    has_magic,
    matcher,
    public_name,
    refuse_credentials,
)
from tokenmill.inputs.remote.retry import passes, patiently, status_of, why

WEB = ("http", "https")
SILENCE_SECONDS = 60


def filesystem(url: str) -> Any:
    """The fsspec file system of a URL; of a bucket, what can be used like one."""
    refuse_credentials(url)
    protocol = url.partition("://")[0].lower()
    if buckets.is_one(protocol):
        return buckets.BucketFiles(url)
    import fsspec

    if protocol not in fsspec.available_protocols():
        raise UsageError(
            f"{protocol}://: no such kind of input",
            hint="read are local files, hf://, https://, s3://, gs:// and what fsspec knows",
        )
    try:
        if protocol in WEB:
            return fsspec.filesystem(protocol, client_kwargs=_web_client())
        kind = fsspec.get_filesystem_class(protocol)
        if "host" not in kind._get_kwargs_from_urls(url):
            return fsspec.filesystem(protocol)
    except ImportError as error:
        raise UsageError(
            f"{protocol}://: needs a package that is not installed ({error})", hint="install it"
        ) from None
    except Exception as error:
        raise UsageError(f"{protocol}://: cannot be opened: {why(error)}") from None
    raise UsageError(
        f"{protocol}://: a host in the URL of such a store is not understood",
        hint="mount it, or download the files first and name them where they are",
    )


def _web_client() -> dict[str, Any]:
    """Proxies and ~/.netrc as everywhere; a limit for silence, as aiohttp's own of five minutes is
    for a whole answer, however large it is and however steadily it comes."""
    import aiohttp

    limit = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE_SECONDS)
    return {"trust_env": True, "timeout": limit}


def find_in_store(url: str) -> tuple[list[RemoteFile], list[tuple[str, str]]]:
    """The files a URL or a pattern means, in the order of their paths' bytes."""
    fs = filesystem(url)
    fs.invalidate_cache()  # a process that lives long asks again
    protocol = url.partition("://")[0].lower()
    try:
        if protocol in WEB:
            return [_on_the_web(fs, url.partition("#")[0])], []
        return _in_store(fs, url, protocol)
    except TokenmillError:
        raise
    except Exception as error:
        raise store_error(error, url) from None


def _on_the_web(fs: Any, url: str) -> RemoteFile:
    if has_magic(url.partition("?")[0]):
        raise InputError(f"{url}: a web server has no lists of files", hint="name each file's URL")
    info = patiently(lambda: fs.info(url))
    if info.get("size") is None:
        raise InputError(
            f"{url}: the server does not say how long the file is", hint="download it first"
        )
    return _file(url, info)


def _in_store(fs: Any, url: str, protocol: str) -> tuple[list[RemoteFile], list[tuple[str, str]]]:
    path = str(fs._strip_protocol(url))
    if has_magic(path):
        folder, depth = fixed_folder(path), None if crosses_folders(path) else 1
        found = patiently(lambda: fs.find(folder, maxdepth=depth, detail=True))
        matches = matcher(path).fullmatch
        found = {name: info for name, info in found.items() if matches(name)}
        if not found:
            raise InputError(f"{url}: no file matches", hint="an empty pattern is an error")
    else:
        info = patiently(lambda: fs.info(path))
        if info.get("type") != "directory":
            return [_file(f"{protocol}://{path}", info)], []
        found = patiently(lambda: fs.find(path, detail=True))
        if not found:
            raise InputError(f"{url}: no files in this folder")
    files, skipped = [], []
    for name in sorted(found, key=str.encode):
        full = f"{protocol}://{name}"
        if any(step.startswith((".", "_")) for step in name.split("/")[1:]):
            skipped.append((full, "hidden"))
        else:
            files.append(_file(full, found[name]))
    return files, skipped


def _file(url: str, info: dict[str, Any]) -> RemoteFile:
    size = int(info["size"])
    return RemoteFile(name=public_name(url), size=size, fingerprint=binding(info), url=url)


def look(fs: Any, url: str) -> dict[str, Any]:
    """What the store says of a file now. Not what fsspec remembers of its list: a file that was
    replaced since would come half old, half new, and nobody would know."""
    fs.invalidate_cache()
    info: dict[str, Any] = fs.info(url)
    return info


def binding(info: dict[str, Any]) -> str:
    """What changes when the file does: its ETag or hash, else its time, else nothing ("size")."""
    for key in ("ETag", "etag", "md5Hash", "crc32c", "content_md5", "checksum"):
        if info.get(key):
            return "etag:" + re.sub(r'^W/|"', "", str(info[key]))
    for key in ("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created"):
        if info.get(key):
            return f"time:{info[key]}"
    return "size"


def gives_ranges(url: str) -> bool:
    """Whether a web server gives parts of a file: asked for one byte, so that one that does not
    is left before it has sent all."""
    import urllib.request  # takes longer to load than the rest of us together
    from http.client import HTTPException

    quoted = quote(url, safe="%/:=&?~+!$,;'@()*[]")  # blanks and letters that are not ASCII
    request = urllib.request.Request(quoted, headers={"Range": "bytes=0-0"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bool(answer.status == 206)
    except (OSError, ValueError, HTTPException):
        return False


def store_error(error: BaseException, url: str) -> TokenmillError:
    """What a store or a server said, as an error that says what to do."""
    if buckets.is_one(url.partition("://")[0].lower()):
        return buckets.bucket_error(error, url)
    name = public_name(url)
    status = status_of(error)
    # fsspec calls everything that a web server says, or does not, a file that is not there.
    missing = isinstance(error, FileNotFoundError) and not status and not passes(error)
    if status == 404 or missing:
        return InputError(f"{name}: no such file or folder")
    if status in (401, 403) or isinstance(error, PermissionError):
        said = f" (HTTP {status})" if status else ""
        return InputError(f"{name}: access is refused{said}", hint="log in, or ask for access")
    return SourceError(
        f"{name}: cannot be downloaded: {why(error)}",
        hint="the same command goes on where it stopped",
    )
