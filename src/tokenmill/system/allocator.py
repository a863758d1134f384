"""Freed memory stays in a worker: a batch of text reuses the pages of the batch before it.

By default both allocators give large blocks back to the kernel at once, and the kernel clears fresh
pages for the next batch. That was a fifth of a worker's processor time (docs/log.md).
"""

from __future__ import annotations

import ctypes

# Read by Arrow's allocator when pyarrow is loaded: milliseconds until freed memory is given back.
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": "10000"}

KEPT_BYTES = 32 << 20  # at the end of the heap; larger blocks are given back when they are freed
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """For the blocks of the C library: numpy's arrays and the fast encoder's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, KEPT_BYTES // 8)


def give_memory_back() -> None:
    """Give freed memory back to the system; without it a dropped cache stays in the process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
