"""Who opens the input files: this process, or the nodes of a cluster (`engines/ray/access.py`).

A coordinator asks for everything that it must know of an input through `InputAccess`, so that on a
cluster it opens none itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tokenmill.errors import InputError
from tokenmill.inputs.download import Download, fetch
from tokenmill.inputs.kinds import refuse_changed, segments_of
from tokenmill.inputs.opening.identify import InputFile, at_hand, identify
from tokenmill.inputs.segments import Segment
from tokenmill.inputs.source import Source
from tokenmill.settings import Reading

THREADS = 4  # that look at files
MOST_AT_A_TIME = 64


class SourceCuts(Protocol):
    def of(self, source: Source) -> Iterable[Segment] | None:
        """The segments of a source; None: not known yet, ask again."""


class InputAccess(Protocol):
    shared: bool  # several machines read what is downloaded

    def identify(self, files: Sequence[InputFile]) -> list[Source | InputError]:
        """Check and fingerprint files; each as a source, or what is wrong with it."""

    def cuts(self, sources: Sequence[Source], reading: Reading, *, few: bool) -> SourceCuts:
        """`sources`: those that are here, in the order in which they are asked for. `few`: perhaps
        only the first of them are needed."""

    def refuse_changed(self, sources: Sequence[Source]) -> None:
        """Raise if a source is not what it was when planned."""

    def begin_downloads(self) -> None:
        """Sources will be downloaded."""

    def keep_up(self) -> None:
        """Called several times a second, while sources are downloaded."""

    def fetch(self, source: Source, flow: Download, folder: Path | None, reading: Reading) -> str:
        """Download a source: its path. Called by several threads."""

    def at_hand(self, source: Source, path: str, reading: Reading) -> Source:
        """A source that was downloaded: checked as any other file."""


def identify_all(files: Sequence[InputFile]) -> list[Source | InputError]:
    return [_source_or_fault(file) for file in files]


def _source_or_fault(file: InputFile) -> Source | InputError:
    try:
        return identify(file)
    except InputError as error:
        return error


class LocalAccess:
    """This process opens them, in threads."""

    shared = False

    def identify(self, files: Sequence[InputFile]) -> list[Source | InputError]:
        # Several at a time: to hand over a small file takes as long as to look at it.
        size = max(1, min(MOST_AT_A_TIME, len(files) // (4 * THREADS)))
        batches = [files[start : start + size] for start in range(0, len(files), size)]
        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            return list(itertools.chain.from_iterable(pool.map(identify_all, batches)))

    def cuts(self, sources: Sequence[Source], reading: Reading, *, few: bool) -> SourceCuts:
        return LocalCuts(reading)

    def refuse_changed(self, sources: Sequence[Source]) -> None:
        for source in sources:
            refuse_changed(source)

    def begin_downloads(self) -> None: ...

    def keep_up(self) -> None: ...

    def fetch(self, source: Source, flow: Download, folder: Path | None, reading: Reading) -> str:
        return fetch(flow, folder)

    def at_hand(self, source: Source, path: str, reading: Reading) -> Source:
        return at_hand(source, path, reading)


class LocalCuts:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def of(self, source: Source) -> Iterable[Segment]:
        return segments_of(source, self._reading)


LOCAL = LocalAccess()
