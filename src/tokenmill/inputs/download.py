"""A remote file to a local path: complete, and with the content that the plan is bound to.

`huggingface_hub` downloads files of the Hub into its own cache, where any other program finds
them. Files of other stores go into our cache:

    $XDG_CACHE_HOME/tokenmill/downloads/KEY/DIGEST-NAME

KEY is of the URL and its ETag, DIGEST of the content, so that neither a file that changed nor one
that was damaged since is taken for it. What the Hub says of the content (sha256) is compared
every time, also of a file that was in the cache: a wrong byte would become wrong tokens.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import xxhash

from tokenmill.errors import SourceError, StorageError, TokenmillError
from tokenmill.inputs.remote import hub, stores
from tokenmill.inputs.remote.address import HubAddress, RemoteFile
from tokenmill.inputs.remote.retry import chain_of, patiently
from tokenmill.system.cache import GrowingFile, cache_folder
from tokenmill.system.disk import content_digest, remove_file, sweep_unlocked

DOWNLOAD_STEP_BYTES = 16 << 20
READ_BYTES = 1 << 20
NAME_BYTES = 150  # of a URL's last step: with the digest it must not be too long for the disk


class DownloadStop(Exception):  # noqa: N818 - not a fault
    """The run has ended: nothing more is to be downloaded."""


class Download:
    """One download. Written by the thread that downloads the file, read by any."""

    def __init__(self, file: RemoteFile, stop: Event, note: Callable[[str], None]) -> None:
        self.file, self.stop, self.note = file, stop, note
        self.received = 0  # bytes of it that are here
        self.transferred = 0  # bytes that came over the line for it, also in vain

    def add(self, count: int) -> None:
        if self.stop.is_set():
            raise DownloadStop
        self.received = max(0, self.received + count)
        self.transferred += max(0, count)

    def compared(self, count: int) -> None:
        """So much of a file that was here already is right: as good as received."""
        if self.stop.is_set():
            raise DownloadStop
        self.received = max(self.received, count)

    def waiting(self, why: str, seconds: float) -> None:
        self.note(f"{self.file.name}: {why}; again in {seconds:.0f} s")

    def sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise DownloadStop


def at_hand_already(
    file: RemoteFile, folder: Path | None = None, *, compare: bool = True, shared: bool = False
) -> str:
    """Where the file is, if it has been downloaded; '' if not. Asks no server. `shared`: other
    machines read it, which see the folder and not the cache."""
    at = file.hub
    if at is None:
        return _kept_copy(_store_folder(file, folder), compare)
    if folder is not None and (folder / at.path).is_file():
        return str(folder / at.path)
    if shared:
        return ""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(at.repo, at.path, revision=at.revision, repo_type=at.kind)
    return cached if isinstance(cached, str) else ""


def fetch(flow: Download, folder: Path | None, *, shared: bool = False) -> str:
    """The file's path, once it is here and right. `folder`: not into a cache, but there; `shared`:
    with other machines."""
    file = flow.file
    try:
        for again in (False, True):
            path = at_hand_already(file, folder, shared=shared)
            flow.received = 0
            if not path and file.hub is not None:
                path = _from_hub(flow, file.hub, folder)
            elif not path:
                path = _from_store(flow, folder)
            fault = copy_fault(path, file, flow)
            if not fault:
                flow.received = file.size
                return path
            _discard(path, file)
            if not again:
                flow.note(f"{file.name}: {fault}; downloaded once more")
    except (TokenmillError, DownloadStop):
        raise
    except Exception as error:
        raise _explained(error, file) from None
    raise SourceError(
        f"{file.name}: {fault}",
        hint="it has changed since it was listed, or is damaged where it comes from; "
        "the same command tries again",
    )


def _discard(path: str, file: RemoteFile) -> None:
    """Remove a wrong copy. In the Hub's cache it is a link to a blob called by its hash: a blob of
    another name is not damaged, it is what another file has, which may be read right now."""
    blob = os.path.realpath(path)
    kind, _, expected = file.fingerprint.partition(":")
    name = os.path.basename(blob)
    remove_file(Path(path))
    if kind != "sha256" or name == expected or not re.fullmatch(r"[0-9a-f]{64}", name):
        remove_file(Path(blob))


def _explained(error: Exception, file: RemoteFile) -> TokenmillError:
    for one in chain_of(error):
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageError(
                f"{file.name}: the disk is full ({file.size} bytes were to be downloaded)",
                hint="free some space and run the same command again; or use another disk with "
                "HF_HOME (or XDG_CACHE_HOME), or --no-keep-downloads",
            )
    if file.hub is None:
        return stores.store_error(error, file.url)
    return hub.hub_error(error, file.hub, file.name)


def copy_fault(path: str, file: RemoteFile, flow: Download | None = None) -> str:
    """What is wrong with a copy of a file; '' where nothing is."""
    size = os.path.getsize(path)
    if size != file.size:
        return f"is {size} bytes long, {file.size} when it was listed"
    kind, _, expected = file.fingerprint.partition(":")
    if kind not in ("sha256", "git-sha1"):
        return ""  # bound by its ETag, compared when it was downloaded
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as content:
        while piece := content.read(READ_BYTES):
            digest.update(piece)
            if flow is not None:
                flow.compared(content.tell())
    if digest.hexdigest() == expected:
        return ""
    return f"its {kind} is {digest.hexdigest()}, the Hub says {expected}"


# --- the Hub -----------------------------------------------------------------------------------


def _from_hub(flow: Download, at: HubAddress, folder: Path | None) -> str:
    from huggingface_hub import hf_hub_download

    _sweep(flow.file, at, folder)

    def download() -> str:
        flow.received = 0  # the library begins the file again
        return hf_hub_download(
            at.repo,
            at.path,
            repo_type=at.kind,
            revision=at.revision,
            local_dir=folder,
            endpoint=hub.endpoint(),
            library_name="tokenmill",
            tqdm_class=_bar_of(flow),
        )

    return str(_again(flow, download))


def _bar_of(flow: Download) -> Any:
    """What the library takes for a progress bar: counts for ours, and ends with the run."""

    class Bar:
        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.n, self.total = initial, total

        def update(self, count: float | None = 1) -> None:
            flow.add(int(count or 0))

        def ignore(self, *_: Any, **__: Any) -> None:
            pass

        update_transfer = ignore  # the same bytes, before they are put together
        set_postfix_str = set_transfer_postfix_str = refresh = close = reset = ignore

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar


def _sweep(file: RemoteFile, at: HubAddress, folder: Path | None) -> None:
    """Remove what a killed run left of this very file: the library never does, nor goes on
    with it. In its cache only under its lock, so that nobody else is at it."""
    if folder is not None:  # in our work folder, which is locked
        for path in (folder / ".cache").rglob("*.incomplete"):
            remove_file(path)
        return
    from huggingface_hub.utils._fixes import WeakFileLock

    digest = file.fingerprint.partition(":")[2]
    cache = hub.cache_of(at)
    left = list((cache / "blobs").glob(f"{digest}*.incomplete"))
    if left:
        lock = cache.parent / ".locks" / cache.name / f"{digest}.lock"
        with contextlib.suppress(Exception), WeakFileLock(lock, timeout=0.1):
            for path in left:
                remove_file(path)


# --- other stores ------------------------------------------------------------------------------


def _store_folder(file: RemoteFile, folder: Path | None) -> Path:
    if folder is not None:
        return folder
    key = xxhash.xxh3_128_hexdigest(f"{file.name} {file.size} {file.fingerprint}".encode())
    return cache_folder() / "downloads" / key


def _kept_copy(folder: Path, compare: bool) -> str:
    """A copy whose content is what its name says."""
    for path in sorted(folder.glob("[0-9a-f]*-*")):
        if not compare or path.name.startswith(content_digest(path)):
            return str(path)
    return ""


def _from_store(flow: Download, folder: Path | None) -> str:
    file = flow.file
    target = _store_folder(file, folder)
    sweep_unlocked(target)
    fs = stores.filesystem(file.url)
    web = file.url.startswith(("http://", "https://"))
    info = _again(flow, lambda: stores.look(fs, file.url))
    if stores.binding(info) != file.fingerprint or info["size"] != file.size:
        raise _changed(file)
    if web and not stores.gives_ranges(file.url):  # a download that breaks off begins again
        return str(_again(flow, lambda: _write(fs, flow, target, _whole)))
    return _write(fs, flow, target, _in_pieces)


def _write(fs: Any, flow: Download, target: Path, content: Callable[[Any, Download], Any]) -> str:
    file = flow.file
    flow.received = 0
    with GrowingFile(target) as growing:
        for piece in content(fs, flow):
            growing.write(piece)
            flow.add(len(piece))
        if growing.length != file.size:
            raise OSError(f"{growing.length} bytes came where {file.size} were announced")
        if stores.binding(_again(flow, lambda: stores.look(fs, file.url))) != file.fingerprint:
            raise _changed(file)
        name = file.name.rsplit("/", 1)[-1].encode()[-NAME_BYTES:].decode(errors="ignore")
        return str(growing.finish(f"{growing.digest}-{name}", time.time_ns()))


def _in_pieces(fs: Any, flow: Download) -> Iterator[bytes]:
    for start in range(0, flow.file.size, DOWNLOAD_STEP_BYTES):
        stop = min(flow.file.size, start + DOWNLOAD_STEP_BYTES)
        yield _again(flow, partial(_piece, fs, flow.file, start, stop))


def _whole(fs: Any, flow: Download) -> Iterator[bytes]:
    with fs.open(flow.file.url, "rb", block_size=0) as content:
        while piece := content.read(READ_BYTES):
            yield piece


def _again(flow: Download, action: Callable[[], Any]) -> Any:
    return patiently(
        action, on_wait=flow.waiting, progress=lambda: flow.transferred, sleep=flow.sleep
    )


def _piece(fs: Any, file: RemoteFile, start: int, stop: int) -> bytes:
    content: bytes = fs.cat_file(file.url, start=start, end=stop)
    if len(content) != stop - start:
        raise OSError(f"{len(content)} bytes came where {stop - start} were asked for")
    return content


def _changed(file: RemoteFile) -> SourceError:
    return SourceError(
        f"{file.name}: has changed since it was listed (its size, ETag or time)",
        hint="run the command again: it lists the files again",
    )
