"""What a job with inputs from elsewhere will take: bytes over the line, and room on the disks.

The bytes to fetch are known to the byte. What the tokens will take is not, before the text is
here: it is put at what is typical for such files (docs/fineweb.md), and said to be so.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np

from tokenmill.errors import OfflineError, RefusedError
from tokenmill.formats import copies_of
from tokenmill.plan import Plan
from tokenmill.sources import Source
from tokenmill.storage import Workspace, cache_folder
from tokenmill.supply import AHEAD, Supply

# Text and GPT-2 tokens for each byte of a file. Parquet: FineWeb-Edu's 10BT sample has 28.52 GB
# for 45.97 GB of text and 9.97 G tokens. The others: JSON and text at 4.6 bytes a token.
TYPICAL = {"parquet": (1.61, 0.35), "arrow": (0.95, 0.21), "jsonl": (0.95, 0.21), "text": (1, 0.22)}
TYPICAL_EXPANSION = {"": 1.0, "gz": 2.6, "zst": 2.8, "bz2": 3.2, "xz": 3.4}
SURE = 0.7  # of the tokens' estimate: less than that it will hardly be


def typical_of(source: Source) -> tuple[float, float]:
    """Bytes of text and tokens that a source may hold."""
    text, tokens = TYPICAL[source.kind]
    size = source.size * TYPICAL_EXPANSION[source.compression]
    return size * text, size * tokens


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    fetch_files: int
    fetch_bytes: int
    here_files: int  # of those elsewhere: fetched before
    held_bytes: int  # of what is fetched, on disk at once
    output_bytes: int  # about
    downloads: str  # the folder they go to
    downloads_free: int
    output_free: int
    one_disk: bool

    @property
    def needed(self) -> int:
        return self.held_bytes + self.output_bytes

    def refuse_if_short(self) -> None:
        """Before a byte is fetched, not after a day."""
        sure = int(self.output_bytes * SURE)
        hint = "free some space; or --no-keep-downloads, which removes each file once it is done"
        if self.one_disk:
            if 0 <= self.output_free < self.held_bytes + sure:
                raise RefusedError(
                    f"the disk has {_gb(self.output_free)} free, {_gb(self.needed)} are needed: "
                    f"{_gb(self.held_bytes)} for {self.fetch_files} files to fetch, about "
                    f"{_gb(self.output_bytes)} for the tokens",
                    hint=hint,
                )
            return
        if 0 <= self.downloads_free < self.held_bytes:
            raise RefusedError(
                f"{self.downloads}: {_gb(self.downloads_free)} are free, {_gb(self.held_bytes)} "
                f"are needed for {self.fetch_files} files to fetch",
                hint=f"{hint}; HF_HOME (or XDG_CACHE_HOME) names another disk",
            )
        if 0 <= self.output_free < sure:
            raise RefusedError(
                f"the disk has {_gb(self.output_free)} free, about {_gb(self.output_bytes)} are "
                "needed for the tokens",
                hint="free some space, or write to another disk with -o",
            )

    def lines(self) -> list[str]:
        fetch = f"fetch: {self.fetch_files} file{'s' * (self.fetch_files != 1)}, "
        fetch += _gb(self.fetch_bytes)
        if self.here_files:
            fetch += f" ({self.here_files} more are here already)"
        if not self.fetch_files:
            fetch = f"fetch: nothing, {self.here_files} fetched before are here"
        disk = f"disk: about {_gb(self.needed)} needed"
        if self.held_bytes:
            disk += f" ({_gb(self.held_bytes)} fetched + {_gb(self.output_bytes)} of tokens)"
        if self.one_disk or not self.held_bytes:
            return [fetch, f"{disk}, {_gb(self.output_free)} free"]
        free = f"{_gb(self.downloads_free)} free in {self.downloads}"
        return [fetch, f"{disk}, {free}, {_gb(self.output_free)} free for the output"]


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 10**7 else f"{size / 1e6:.2f} MB"


def needs_of(plan: Plan, supply: Supply, workspace: Workspace, written: int = 0) -> Needs | None:
    """None where all inputs are local. `written`: bytes of tokens that are on disk already."""
    remote = [source for source in plan.sources if source.remote is not None]
    if not remote:
        return None
    missing = supply.missing
    sizes = sorted((source.size for source in missing), reverse=True)
    held = sum(sizes)
    if plan.settings.limited:  # it ends long before: files come one by one
        held = sizes[0] if sizes else 0
    elif not supply.keep:
        held = sum(sizes[: supply.downloads + AHEAD])
    tokens = sum(typical_of(source)[1] for source in plan.sources)
    each = sum(np.dtype(layout.dtype).itemsize for layout in copies_of(plan.settings))
    output = int(tokens * each) - written
    folder = _downloads_folder(remote, supply, workspace)
    return Needs(
        fetch_files=len(missing),
        fetch_bytes=sum(sizes),
        here_files=len(remote) - len(missing),
        held_bytes=held,
        output_bytes=0 if plan.settings.limited else max(0, output),
        downloads=str(folder),
        downloads_free=free_bytes(folder),
        output_free=free_bytes(workspace.output),
        one_disk=_device(folder) == _device(workspace.output),
    )


def refuse_if_offline(missing: list[Source]) -> None:
    """Where the Hub is not to be asked, all that is missing is said at once."""
    from_hub = [source for source in missing if source.remote is not None and source.remote.repo]
    if not from_hub:
        return
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OfflineError(
            f"HF_HUB_OFFLINE is set, and {len(from_hub)} files of the inputs are not here "
            f"({_gb(sum(source.size for source in from_hub))}):",
            lines=[source.name for source in from_hub[:5]]
            + ([f"... and {len(from_hub) - 5} more"] if len(from_hub) > 5 else []),
            hint="fetch them once: the same command with --download-only, without HF_HUB_OFFLINE",
        )


def _downloads_folder(remote: list[Source], supply: Supply, workspace: Workspace) -> Path:
    if not supply.keep:
        return workspace.work
    if all(source.remote is not None and source.remote.repo for source in remote):
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE)
    return cache_folder()


def _nearest(folder: str | os.PathLike[str]) -> Path:
    nearest = Path(os.path.abspath(folder))
    while not nearest.exists():
        nearest = nearest.parent
    return nearest


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Free on the file system that a folder is, or will be, on; -1 where it cannot be told."""
    try:
        return shutil.disk_usage(_nearest(folder)).free
    except OSError:
        return -1


def _device(folder: Path) -> int:
    try:
        return os.stat(_nearest(folder)).st_dev
    except OSError:
        return -1
