"""What a job with remote inputs will take: bytes to download, and space on the disks.

The bytes to download are known exactly. What the tokens will take is not, before the text is
here: it is put at what is typical for such files (docs/fineweb.md), and said to be so.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tokenmill.amounts import show_bytes
from tokenmill.errors import OfflineError, RefusedError, warning
from tokenmill.formats import copies_of
from tokenmill.formats.base import itemsize
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.source import Source
from tokenmill.planning.plan import Plan
from tokenmill.settings import PlanSettings
from tokenmill.system.cache import cache_folder
from tokenmill.system.disk import free_bytes, nearest

TYPICAL_EXPANSION = {"": 1.0, "gz": 2.6, "zst": 2.8, "bz2": 3.2, "xz": 3.4}
SURE = 0.7  # of the tokens' estimate: less than that it will hardly be


def typical_of(source: Source) -> tuple[float, float]:
    """Bytes of text and tokens that a source may hold."""
    text, tokens = kind_named(source.kind).typical
    size = source.size * TYPICAL_EXPANSION[source.compression]
    return size * text, size * tokens


class FinishedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that was stopped has left in the output folder."""

    documents: int = 0
    tokens: int = 0
    input_share: float = 0.0  # of the bytes of the inputs
    committed: bool = False  # the dataset is finished
    written_bytes: int = 0


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    fetch_files: int
    fetch_bytes: int
    here_files: int  # remote ones that were downloaded before
    held_bytes: int  # of downloads, on disk at once
    output_bytes: int  # about
    downloads: str  # the folder they go to
    downloads_free: int
    output_free: int
    one_disk: bool

    @property
    def needed(self) -> int:
        return self.held_bytes + self.output_bytes

    def refuse_if_short(self) -> None:
        """Before a byte is downloaded, not after a day."""
        sure = int(self.output_bytes * SURE)
        hint = "free some space; or --no-keep-downloads, which removes each file once it is done"
        free, held = show_bytes(self.output_free), show_bytes(self.held_bytes)
        tokens = show_bytes(self.output_bytes)
        if self.one_disk:
            if 0 <= self.output_free < self.held_bytes + sure:
                raise RefusedError(
                    f"the disk has {free} free, {show_bytes(self.needed)} are needed: {held} for "
                    f"{self.fetch_files} files to download, about {tokens} for the tokens",
                    hint=hint,
                )
            return
        if 0 <= self.downloads_free < self.held_bytes:
            raise RefusedError(
                f"{self.downloads}: {show_bytes(self.downloads_free)} are free, {held} are needed "
                f"for {self.fetch_files} files to download",
                hint=f"{hint}; HF_HOME (or XDG_CACHE_HOME) names another disk",
            )
        if 0 <= self.output_free < sure:
            raise RefusedError(
                f"the disk has {free} free, about {tokens} are needed for the tokens",
                hint="free some space, or write to another disk with -o",
            )

    def lines(self) -> list[str]:
        files = f"{self.fetch_files} file{'s' * (self.fetch_files != 1)}"
        download = f"download: {files}, {show_bytes(self.fetch_bytes)}"
        if not self.fetch_files:
            download = f"download: nothing, {self.here_files} downloaded before are here"
        elif self.here_files:
            download += f" ({self.here_files} more are here already)"
        disk = f"disk: about {show_bytes(self.needed)} needed"
        free = f"{show_bytes(self.output_free)} free"
        if self.held_bytes:
            parts = f"{show_bytes(self.held_bytes)} downloaded + {show_bytes(self.output_bytes)}"
            disk += f" ({parts} of tokens)"
            if not self.one_disk:
                there = f"{show_bytes(self.downloads_free)} free in {self.downloads}"
                free = f"{there}, {free} for the output"
        return [download, f"{disk}, {free}"]


def needs_of(
    plan: Plan,
    output: Path,
    missing: list[Source],
    *,
    work: Path | None = None,
    at_once: int = 0,
    written: int = 0,
) -> Needs | None:
    """None where all inputs are local.

    `missing`: the sources that must be downloaded. `work`: the folder for downloads that are
    removed when they are done; then at most `at_once` of them are on the disk. `written`: bytes
    of tokens that are on disk already.
    """
    remote = [source for source in plan.sources if source.remote is not None]
    if not remote:
        return None
    sizes = sorted((source.size for source in missing), reverse=True)
    kept = len(sizes) if work is None else at_once
    if plan.settings.reads_part:  # it ends long before: one file at a time is downloaded
        kept = 1
    tokens = sum(typical_of(source)[1] for source in plan.sources)
    output_bytes = int(tokens * _token_bytes(plan.settings)) - written
    folder = work or _downloads_folder(remote)
    return Needs(
        fetch_files=len(missing),
        fetch_bytes=sum(sizes),
        here_files=len(remote) - len(missing),
        held_bytes=sum(sizes[:kept]),
        output_bytes=0 if plan.settings.reads_part else max(0, output_bytes),
        downloads=str(folder),
        downloads_free=free_bytes(folder),
        output_free=free_bytes(output),
        one_disk=_device(folder) == _device(output),
    )


def _token_bytes(settings: PlanSettings) -> int:
    """On the disk for each token of the inputs. A shuffled job has its tokens once more until the
    commit; of a limited one, what the limit leaves is little beside that."""
    sorted_bytes = itemsize(settings.first) if settings.by_key else 0
    if settings.by_key and settings.limited:
        return sorted_bytes
    return sum(map(itemsize, copies_of(settings))) + sorted_bytes


def disk_warning(plan: Plan, output: str, written: int) -> str:
    """Where all inputs are here: whether the tokens will probably not fit on the disk; ''."""
    if plan.settings.reads_part:
        return ""
    tokens = sum(typical_of(source)[1] for source in plan.sources)
    needed = int(tokens * _token_bytes(plan.settings)) - written
    free = free_bytes(output)
    if not 0 <= free < needed:
        return ""
    return warning(
        f"the tokens probably need about {show_bytes(needed)}, and {show_bytes(free)} are free: "
        "they may not fit (`plan` estimates it from the inputs)"
    )


def refuse_if_offline(missing: list[Source]) -> None:
    """Where the Hub is not to be asked, all that is missing is said at once."""
    from_hub = [source for source in missing if source.remote is not None and source.remote.hub]
    if not from_hub:
        return
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OfflineError(
            f"HF_HUB_OFFLINE is set, and {len(from_hub)} files of the inputs are not here "
            f"({show_bytes(sum(source.size for source in from_hub))}):",
            lines=[source.name for source in from_hub[:5]]
            + ([f"... and {len(from_hub) - 5} more"] if len(from_hub) > 5 else []),
            hint="download them once: run it with --download-only and without HF_HUB_OFFLINE",
        )


def _downloads_folder(remote: list[Source]) -> Path:
    """The cache that downloads go to when they are kept."""
    if all(source.remote is not None and source.remote.hub for source in remote):
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)
    return cache_folder()


def _device(folder: Path) -> int:
    try:
        return os.stat(nearest(folder)).st_dev
    except OSError:
        return -1
