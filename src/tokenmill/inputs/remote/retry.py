"""Which faults of the network pass by themselves, and how long to wait for that.

A server that is busy says so (429 and 5xx, often with Retry-After), a line that drops says
nothing. Both are tried again with growing pauses; as long as bytes arrive, for ever. What no
waiting will cure (401, 403, 404, a full disk) is raised at once.
"""

from __future__ import annotations

import contextlib
import email.utils
import errno
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tokenmill.errors import TokenmillError, first_line, safe
from tokenmill.system.buckets.faults import answer_of

T = TypeVar("T")
log = logging.getLogger("tokenmill")

ATTEMPTS = 8  # in a row without a byte, with pauses of two minutes in all
SILENCE = 120.0  # seconds in a row without a byte, besides the pauses: libraries try again, too
MAX_PAUSE = 60.0
# Until it is said that no server's name can be looked up: without DNS no waiting helps. Once a
# server has answered, the line was there and may come back, so that is waited for as for the rest.
NAME_SECONDS = 5.0
MAX_RETRY_AFTER = 900.0
PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524}
# By name, so that none of the libraries need be imported: httpx, requests, aiohttp, obstore.
PASSING_ERRORS = {
    "TransportError",
    "RequestException",
    "ClientConnectionError",
    "ClientPayloadError",
    "GenericError",
    "ChunkedEncodingError",
    "IncompleteRead",
}
# What a disk says, not a line.
LASTING_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG),
    *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST),
}


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised from: libraries wrap what happened."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def status_of(error: BaseException) -> int:
    """The HTTP status at the bottom of an error; 0 where there is none."""
    for one in chain_of(error):
        response: Any = getattr(one, "response", None)
        status = getattr(response, "status_code", None) or getattr(one, "status", None)
        if _is_obstore(one):
            status = answer_of(one).status or None
        if isinstance(status, int):
            return status
    return 0


def _is_obstore(error: BaseException) -> bool:
    return type(error).__module__.startswith("obstore")


def passes(error: BaseException) -> bool:
    """Whether it is worth another try."""
    if isinstance(error, TokenmillError):
        return False
    status = status_of(error)
    if status:
        return status in PASSING_STATUS
    chain = list(chain_of(error))
    if any(type(one).__name__ == "OfflineModeIsEnabled" for one in chain):
        return False
    if any(isinstance(one, OSError) and one.errno in LASTING_ERRNO for one in chain):
        return False
    if any({cls.__name__ for cls in type(one).__mro__} & PASSING_ERRORS for one in chain):
        return True
    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    return isinstance(error, OSError | EOFError | TimeoutError)


def retry_after(error: BaseException) -> float:
    """Seconds that the server asks to wait; 0 where it does not."""
    for one in chain_of(error):
        headers = getattr(getattr(one, "response", None), "headers", None)
        said = headers.get("Retry-After") if headers is not None else None
        if said is None:
            continue
        if str(said).strip().isdigit():
            return min(MAX_RETRY_AFTER, float(said))
        try:
            when = email.utils.parsedate_to_datetime(str(said)).timestamp()
        except ValueError:
            continue
        return min(MAX_RETRY_AFTER, max(0.0, when - time.time()))
    return 0.0


def _base_pause() -> float:
    value = os.environ.get("TOKENMILL_RETRY_SECONDS", "")  # tests have no time
    return float(value) if value.replace(".", "", 1).isdigit() else 1.0


def _say(why: str, seconds: float) -> None:
    """On stderr, where nobody has set up logging: or minutes pass without a word."""
    if seconds >= 1.5:
        log.warning("no answer (%s): another try in %.0f s", safe(why), seconds)


def patiently(
    action: Callable[[], T],
    *,
    on_wait: Callable[[str, float], None] = _say,
    progress: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Try until it works, or until waiting is no use; `progress` counts the bytes that came."""
    global _answered
    failures, silent, before = 0, 0.0, progress()
    start = time.monotonic()
    while True:
        began = time.monotonic()
        try:
            result = action()
            _answered = True
            return result
        except Exception as error:
            lasted = time.monotonic() - began
            came = progress()
            if came > before:
                failures, silent = 0, 0.0
            else:
                silent += lasted
            failures, before = failures + 1, came
            if not passes(error) or failures >= ATTEMPTS or silent >= SILENCE:
                raise
            pause = min(MAX_PAUSE, _base_pause() * 2 ** (failures - 1))
            pause = max(pause * random.uniform(0.7, 1.3), retry_after(error))
            hopeless = nameless(error) and not (_answered or came)
            if hopeless and time.monotonic() - start + pause + lasted > NAME_SECONDS:
                raise
            on_wait(why(error), pause)
            sleep(pause)


_answered = False  # a server, to this process, at any time


def nameless(error: BaseException) -> bool:
    """Whether the name of the server could not be looked up (`socket.gaierror`)."""
    return any(kind.__name__ == "gaierror" for one in chain_of(error) for kind in type(one).mro())


def _host_of(error: BaseException) -> str:
    """The server that was asked for, where a library tells."""
    for one in chain_of(error):
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            request: Any = getattr(one, "request", None)
            if host := urlsplit(str(request.url)).hostname:
                return f"the name {host}"
    return "the name of the server"


def why(error: BaseException) -> str:
    """In a few words, without the URL that libraries put in front of them."""
    status = status_of(error)
    if status:
        return f"HTTP {status}"
    if _is_obstore(error):
        return "the store does not answer"
    if nameless(error):
        return f"{_host_of(error)} cannot be looked up (no DNS: is there a network?)"
    return first_line(list(chain_of(error))[-1])
