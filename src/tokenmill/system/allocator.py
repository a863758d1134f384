"""Freed memory stays in a worker: a batch of text reuses the pages of the batch before it.

By default both allocators give large blocks back to the kernel at once, and the kernel clears fresh
pages for the next batch. That was a fifth of a worker's processor time (docs/log.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

# Read by Arrow's allocator when pyarrow is loaded: milliseconds until freed memory is given back.
ENVIRONMENT = {"MIMALLOC_PURGE_DELAY": "10000"}

KEPT_BYTES = 32 << 20  # at the end of the heap; larger blocks are given back when they are freed
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_PR_SET_THP_DISABLE = 41  # of linux/prctl.h


def keep_freed_memory() -> None:
    """For the blocks of the C library: numpy's arrays and the fast encoder's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, KEPT_BYTES // 8)


def without_huge_pages() -> None:
    """On Linux, no transparent huge pages for this process and its children.

    Arrow's allocator asks for them. The kernel then clears 2 MB where a worker touches a few
    kilobytes of it, and a worker's buffers are too small to gain from them.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def give_memory_back() -> None:
    """Give freed memory back to the system; without it a dropped cache stays in the process."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
