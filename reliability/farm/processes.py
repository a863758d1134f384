"""Work for several processes: the farm is plain Python around libraries that use one core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[Result]:
    """Results in the order of the items. With one process: here, without a fork."""
    os.environ["RUST_BACKTRACE"] = "0"  # a library that panics on a document does so often
    if processes <= 1:
        yield from map(function, items)
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(function, items)
