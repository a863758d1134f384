"""Every error tokenmill raises on purpose, in one tree.

    TokenmillError                 exit 1   base: what, where, why, and what to do (the hint)
    ├── UsageError                 exit 2   an option or a value that cannot be
    │   ├── InputError             exit 2   an input that cannot be read as what it claims to be
    │   ├── TooLargeError          exit 2   a value or document that --memory does not hold
    │   ├── SpecialTokenError      exit 2   a special token's string in a text (a ValueError too)
    │   ├── UnknownTokenError      exit 2   an id that stands for nothing (a KeyError too)
    │   ├── UnknownSplitError      exit 2   a split that a dataset does not have (a KeyError too)
    │   └── UnknownKeywordError    exit 2   a keyword that there is not (a TypeError too)
    ├── RefusedError               exit 2   we could, but it would destroy or mix something
    ├── BadRowError                exit 1   a row that is not text (file, row, reason)
    ├── SourceError                exit 1   an input that broke or changed while it was read
    │   └── OfflineError           exit 1   not here yet, and no network is to be used
    ├── EncoderError               exit 1   fast and reference encoder disagree, or neither can
    ├── WorkerError                exit 1   workers died or hung on the same unit or row
    ├── StorageError               exit 1   the disk said no (path and operation)
    └── VerificationError          exit 3   a dataset is not what its manifest says

    Interrupted                    exit 130 or 143   stopped by a signal; the same command resumes

`Interrupted` is a KeyboardInterrupt and not an Exception, so that a loop with `except Exception`
does not swallow Ctrl-C. It is therefore not a TokenmillError.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

EXIT_OK = 0
EXIT_QUARANTINED = 4

# The user part and the query of a URL: both may hold keys.
# (A path that was a URL has lost one of its slashes.)
_USER = re.compile(r"(:/{1,2})[^/\s@]*@")
_QUERY = re.compile(r"(:/{1,2}[^\s?]*\?)[^\s'\"]+")


def printable(text: str, *, keep: str = "") -> str:
    """Nothing that would move a terminal's cursor or change its colors; `keep` stays as it is."""
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def without_secrets(text: str) -> str:
    """`https://user:key@host/x?token=y` as `https://***@host/x?***`."""
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))


def safe(text: str) -> str:
    """Text that may hold names and texts of others, safe for one line of a terminal or a log."""
    return printable(without_secrets(text))


def did_you_mean(name: str, known: Iterable[str], meant: Mapping[str, str] | None = None) -> str:
    """ "did you mean 'llmc'? " for 'llm.c', or nothing. `meant`: other words for a known name."""
    from difflib import get_close_matches  # errors are rare, and the start must be quick

    names = {_letters(one): one for one in known} | {
        _letters(word): one for word, one in (meant or {}).items()
    }
    wanted = _letters(name)
    close = [wanted] if wanted in names else get_close_matches(wanted, names, 1, 0.7)
    return f"did you mean {names[close[0]]!r}? " if close else ""


def _letters(name: str) -> str:
    """What is compared: `GPT-2` and `gpt2` are alike."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def warning(text: str) -> str:
    """A warning as it is: this marks it for docs/errors.md, which lists all of them."""
    return text


def problem(text: str) -> str:
    """What `verify` finds wrong with a dataset: marked for docs/errors.md."""
    return text


class _Report(BaseException):
    """What all errors of ours have; `hint` says what to do about it, `lines` more than one line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", lines: Sequence[str] = ()) -> None:
        self.message = "\n  ".join(map(safe, (message, *lines)))
        self.hint = safe(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        """With the hint: a caller in Python prints, logs or sees a traceback of this alone."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def located(self, where: str, *, instead_of: str = "") -> Self:
        """This error with the place where it happened before its message.

        `instead_of`: the name of the place that the message begins with until now.
        """
        told = self.message.removeprefix(f"{safe(instead_of)}: ") if instead_of else self.message
        self.message = f"{safe(where)}: {told}"
        self.args = (self.message,)
        return self

    def advised(self, hint: str) -> Self:
        """This error with another hint."""
        self.hint = safe(hint)
        return self

    def reword(self, change: Callable[[str], str]) -> None:
        """Other words for the message and the hint."""
        self.message = change(self.message)
        self.args = (self.message,)
        if self.hint:
            self.advised(change(self.hint))

    def to_wire(self) -> list[str]:
        return [type(self).__name__, self.message, self.hint]


class TokenmillError(_Report, Exception):
    """Base of all errors of ours."""


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


class UnknownSplitError(UsageError, KeyError):
    """A dataset is a Mapping, whose `get` and `in` expect a KeyError."""


class UnknownKeywordError(UsageError, TypeError):
    """Python itself raises TypeError here."""


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


class Interrupted(_Report, KeyboardInterrupt):
    """Ctrl-C or SIGTERM. What is durable is kept; the same call resumes."""

    exit_code = 130  # or 143, for SIGTERM


@contextlib.contextmanager
def faults_become(error_of: Callable[[BaseException], TokenmillError]) -> Iterator[None]:
    """Anything that a library raises in here becomes an error of ours.

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


def from_wire(wire: list[str]) -> TokenmillError:
    """Rebuild an error a worker reported as plain strings."""
    name, message, hint = wire
    first, *more = message.split("\n  ")
    kind = globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, TokenmillError)):
        kind = TokenmillError
    return kind(first, hint=hint, lines=more)
