"""Every error tokenmill raises on purpose, in one tree.

    TokenmillError                 exit 1   base: what, where, why, and what to do (the hint)
    ├── UsageError                 exit 2   an option or a value that cannot be
    │   ├── InputError             exit 2   an input that cannot be read as what it claims to be
    │   ├── TooLargeError          exit 2   a value or document that --memory does not hold
    │   ├── SpecialTokenError      exit 2   a special token's string in a text (a ValueError too)
    │   └── UnknownTokenError      exit 2   an id that stands for nothing (a KeyError too)
    ├── RefusedError               exit 2   we could, but it would destroy or mix something
    ├── BadRowError                exit 1   a row that is not text (file, row, reason)
    ├── SourceError                exit 1   an input that broke or changed while it was read
    │   └── OfflineError           exit 1   not here yet, and no network is to be used
    ├── EncoderError               exit 1   fast and reference encoder disagree, or neither can
    ├── WorkerError                exit 1   workers died or hung on the same unit or row
    ├── StorageError               exit 1   the disk said no (path and operation)
    ├── VerificationError          exit 3   a dataset is not what its manifest says
    └── Interrupted                exit 130 or 143   stopped by a signal; the same command resumes

Exit codes: 0 done, 1 failed, 2 bad usage or refused, 3 verification failed, 4 done with rows
quarantined, 130 or 143 interrupted and resumable.

What is said may hold names of files and text of others: it is made safe for a terminal and a log
here, in one place, and a password in a URL never gets into it.

No exception object ever crosses a process boundary (one that pickles but does not unpickle hangs
a pool for ever): workers send `to_wire()` and the coordinator rebuilds with `from_wire()`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

EXIT_OK = 0
EXIT_QUARANTINED = 4


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Whatever stands before the @ of a URL, and whatever it asks for: keys are in both.
# (A path that was a URL has lost one of its slashes.)
_USER = re.compile(r"(:/{1,2})[^/\s@]*@")
_QUERY = re.compile(r"(:/{1,2}[^\s?]*\?)[^\s'\"]+")


def printable(text: str, *, keep: str = "") -> str:
    """Nothing that would move a terminal's cursor or change its colors; `keep` stays as it is."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    return _ESCAPES.get(letter) or letter.encode("unicode_escape", "surrogatepass").decode()


def without_secrets(text: str) -> str:
    """`https://user:key@host/x?token=y` as `https://***@host/x?***`."""
    if ":/" not in text:
        return text
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))


def safe(text: str) -> str:
    """On one line of a terminal or a log, whatever names and texts of others it holds."""
    return printable(without_secrets(text))


class TokenmillError(Exception):
    """Base of all errors of ours; `hint` says what to do about it, `lines` more than one line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", lines: Sequence[str] = ()) -> None:
        self.message = "\n  ".join(map(safe, (message, *lines)))
        self.hint = safe(hint)
        super().__init__(self.message)
        if self.hint:  # a caller in Python sees a traceback, where `hint` alone does not show
            self.add_note(f"hint: {self.hint}")

    def to_wire(self) -> list[str]:
        return [type(self).__name__, self.message, self.hint]


class UsageError(TokenmillError):
    exit_code = 2


class InputError(UsageError):
    pass


class TooLargeError(UsageError):
    pass


class SpecialTokenError(UsageError, ValueError):
    """tiktoken raises ValueError here, and callers catch that."""


class UnknownTokenError(UsageError, KeyError):
    """tiktoken raises KeyError here."""

    __str__ = Exception.__str__  # a KeyError would quote it


class RefusedError(TokenmillError):
    exit_code = 2


class BadRowError(TokenmillError):
    pass


class SourceError(TokenmillError):
    pass


class OfflineError(SourceError):
    pass


class EncoderError(TokenmillError):
    pass


class WorkerError(TokenmillError):
    pass


class StorageError(TokenmillError):
    pass


class VerificationError(TokenmillError):
    exit_code = 3


class Interrupted(TokenmillError):  # noqa: N818 - an interruption is not an error
    exit_code = 130

    def __init__(self, message: str, *, hint: str = "", signal_number: int = 2) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signal_number


@contextlib.contextmanager
def faults_become(error_of: Callable[[BaseException], TokenmillError]) -> Iterator[None]:
    """Whatever a library raises in here, as an error of ours.

    A panic in Rust is a BaseException that `except Exception` lets through.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise error_of(error) from None


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_BY_NAME: dict[str, type[TokenmillError]] = {
    cls.__name__: cls
    for cls in (
        UsageError,
        InputError,
        TooLargeError,
        RefusedError,
        BadRowError,
        SourceError,
        OfflineError,
        EncoderError,
        WorkerError,
        StorageError,
        VerificationError,
    )
}


def from_wire(wire: list[str]) -> TokenmillError:
    """Rebuild an error a worker reported as plain strings."""
    name, message, hint = wire
    first, *more = message.split("\n  ")
    return _BY_NAME.get(name, TokenmillError)(first, hint=hint, lines=more)
