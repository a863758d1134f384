"""Standard input (`-`): copied to a file first, since units are read in any order and again.

    $XDG_CACHE_HOME/tokenmill/stdin/KEY/stdin

KEY is of the output folder. The copy goes when the run ends, however it ends: a resumed run is
given the same input again, and the plan is bound to its content.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO, Any

import xxhash

from tokenmill.errors import InputError, UsageError
from tokenmill.system.cache import GrowingFile, cache_folder
from tokenmill.system.disk import remove_folder, sweep_unlocked

STDIN = "-"
NAME = "stdin"
READ_BYTES = 1 << 20
MTIME_NS = 10**18  # the content is what counts, and the plan is bound to that


def is_stdin(inputs: Any) -> bool:
    """Whether the input is `-`; it must be the only one."""
    given = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(given, list | tuple) or STDIN not in given:
        return False
    if len(given) > 1:
        raise UsageError("-: standard input must be the only input", hint="write it to a file")
    return True


@contextlib.contextmanager
def stdin_file(output: str | os.PathLike[str], stream: IO[bytes]) -> Iterator[str]:
    key = xxhash.xxh3_64_hexdigest(os.fsencode(os.path.realpath(output)))
    folder = cache_folder() / "stdin" / key
    sweep_unlocked(folder)
    try:
        with GrowingFile(folder) as file:
            while piece := stream.read(READ_BYTES):
                file.write(piece)
            if not file.length:
                raise InputError("-: standard input is empty")
            path = file.finish(NAME, MTIME_NS)
        yield str(path)
    finally:
        remove_folder(folder)
