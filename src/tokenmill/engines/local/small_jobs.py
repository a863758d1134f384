"""A command with little to do: one worker, forked from the command itself.

A fork server is a second Python that imports everything again and opens the encoder. That pays
where several workers share it. A job of two megabytes is done before it has (docs/log.md). The
worker stays a process of its own, so that a row that crashes it is found as in a large job.

Kept free of heavy imports: the command line asks before it loads anything else.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator

from tokenmill.system.interrupts import owns_process

# As the files are on disk. At 2 MB/s, where only the reference is exact, that is one second.
SMALL_BYTES = 2_000_000
MOST_FILES = 200
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".br")


def is_small(inputs: Iterable[str]) -> bool:
    """Whether the inputs are few local files of at most SMALL_BYTES together.

    False for what is not seen at once: addresses, standard input, compressed files. Forking is
    safe only where nobody else's threads are running: on Linux, in a process that is ours alone.
    """
    if sys.platform != "linux" or not owns_process():
        return False
    total = files = 0
    for place in inputs:
        for path in _files(place):
            try:
                total += os.stat(path).st_size
            except OSError:
                return False
            files += 1
            if total > SMALL_BYTES or files > MOST_FILES or path.endswith(COMPRESSED):
                return False
    return files > 0


def _files(place: str) -> Iterator[str]:
    if os.path.isdir(place):
        for folder, _, names in os.walk(place):
            yield from (os.path.join(folder, name) for name in names)
    elif os.path.exists(place) or not glob.has_magic(place):
        yield place
    else:
        yield from (path for path in glob.iglob(place, recursive=True) if os.path.isfile(path))
