"""Real read errors: from a chosen moment on the kernel answers this process's reads with EIO.

By a seccomp filter, so that native code gets them too. Small reads pass: pipes live on them.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

READ, PREAD = 0, 17  # x86-64
LEAST = 256  # of read(2); every pread fails

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000 | errno.EIO
_PR_SET_NO_NEW_PRIVS, _SECCOMP, _SET_FILTER, _ALL_THREADS = 38, 317, 1, 1


def available() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def fail_all_reads() -> None:
    """For good: meant for a forked child."""
    program = [
        (_LOAD, 0, 0, 0),  # the number of the call
        (_EQUAL, 4, 0, PREAD),
        (_EQUAL, 0, 2, READ),
        (_LOAD, 0, 0, 32),  # its third argument: how many bytes
        (_AT_LEAST, 1, 0, LEAST),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR),
    ]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    filter_ = ctypes.create_string_buffer(head, len(head))
    if kernel.syscall(_SECCOMP, _SET_FILTER, _ALL_THREADS, filter_):
        raise OSError(ctypes.get_errno(), "seccomp")
