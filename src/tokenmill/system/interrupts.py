"""Ctrl-C and SIGTERM: noticed at any moment, obeyed where nothing is left half done.

    planning, imports           the signal raises where it finds the main thread
    a job is open (`deferred`)  it sets a flag that the loops look at several times a second
    the commit                  it is ignored: a commit that is decided takes a moment
    nothing helps               the command ends itself in time; that is as safe as a kill -9

The first signal counts. Later ones change nothing, so that no clean-up is cut short.
Kept free of heavy imports: the command line needs it first of all.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Five seconds after the signal the command has ended, in any state.
GRACE_SECONDS = 3.5
TELLING_SECONDS = 0.5
AGAIN_SECONDS = 0.02


class _StopHereError(KeyboardInterrupt):
    """Raised by the handler: as a KeyboardInterrupt it passes every `except Exception`."""


class Interrupts:
    """The signals that came in, and whether one may raise where it finds the main thread."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.told = False  # the signal has become an exception
        self._deferred = False
        self._raised = False
        self._dropped = False

    def error(self) -> Interrupted:
        self.told = True
        return self.stopped_by(self.received[0])

    @staticmethod
    def stopped_by(number: int) -> Interrupted:
        kept = "; finished work is kept" if _work_is_kept else ""
        to_resume = " to resume" if _work_is_kept else ""
        error = Interrupted(
            f"stopped by {signal.Signals(number).name}{kept}",
            hint=f"run the same command again{to_resume}",
        )
        error.exit_code = 128 + number
        return error

    def check(self) -> None:
        """Raise when a signal has come in."""
        if self.received:
            raise self.error()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """In here a signal waits for `check`, which is called before and not after."""
        self.check()
        before, self._deferred = self._deferred, True
        try:
            with self.translated():
                yield
        finally:
            self._deferred = before

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """What the handler raised, as the error that says so."""
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt:
            if self.received:
                raise self.error() from None
            raise

    def enough(self) -> None:
        """The work is over and reported: later signals change nothing."""
        self._deferred = True

    def handle(self, number: int, _frame: object) -> None:
        self.received.append(number)
        if not (self._deferred or self._raised or self._dropped):
            self._raised = True
            raise _StopHereError

    def raise_again(self) -> None:
        """It was raised in a finalizer or a weak reference's callback, where Python drops it."""
        self._dropped = True  # what is raised in here is dropped too
        self._raised = False
        main = threading.main_thread().ident
        if main is not None:
            threading.Thread(target=self._signal, args=(main,), daemon=True).start()
        self._dropped = False

    def _signal(self, main: int) -> None:
        """Signal the main thread until it has left that place and the handler has raised."""
        time.sleep(AGAIN_SECONDS)
        while not (self._raised or self._deferred):
            signal.pthread_kill(main, self.received[0])
            time.sleep(AGAIN_SECONDS)


_work_is_kept = False  # a job is open, and what it finishes survives it


@contextlib.contextmanager
def keeping_work() -> Iterator[None]:
    """In here an interruption costs nothing that is finished, and its message says so."""
    global _work_is_kept
    before, _work_is_kept = _work_is_kept, True
    try:
        yield
    finally:
        _work_is_kept = before


_active: Interrupts | None = None
_owned = False


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Signals of this process become `Interrupted`; nested calls share the outermost's."""
    global _active
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        if _active is not None:  # the main thread gets the signals; this one looks at them too
            interrupts.received = _active.received
        yield interrupts
        return
    if _active is not None:
        with _active.translated():
            yield _active
        return
    before: dict[int, Any] = {}
    hook = sys.unraisablehook
    try:
        with interrupts.translated():
            with signals_held():  # all is in place before the first one can raise
                _active, before = interrupts, _install(interrupts)
            yield interrupts
    finally:
        interrupts.enough()
        _active = None
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
    if interrupts.received and not interrupts.told:
        signal.raise_signal(interrupts.received[0])  # we finished, but the caller is to know


def take_over(interrupts: Interrupts) -> None:
    """For a process that is ours alone: the signals are ours until it ends."""
    global _active, _owned
    _active, _owned = interrupts, True
    _install(interrupts)
    # Registered first, so called last: Python removes our handlers while it ends, and the default
    # handler would kill a command that has done all its work.
    atexit.register(_ignore_signals)


def owns_process() -> bool:
    """Whether this process is ours alone (the command line), not a caller's in Python."""
    return _owned


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _install(interrupts: Interrupts) -> dict[int, Any]:
    """An ignored signal stays ignored: a shell lets its background jobs ignore Ctrl-C."""
    wanted = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    hook = sys.unraisablehook

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        if what.exc_type is _StopHereError:
            interrupts.raise_again()
        else:
            hook(what)

    sys.unraisablehook = unraisable
    return {number: signal.signal(number, interrupts.handle) for number in wanted}


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """While a process is started: it is born with these signals blocked, and unblocks them when
    its own handlers are in place. Until then a Ctrl-C would find Python's, or ours, in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget_signals() -> None:
    """In a new process: signals that came while they were held are for its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def end_in_time(tell: Callable[[int], object], told: threading.Event) -> None:
    """For a process that is ours alone: a signal ends it in time, even where Python cannot run.

    A handler runs when the main thread returns from native code, which may take minutes (one long
    document) or for ever (a dead disk). A thread learns of the signal at once, through a pipe;
    after GRACE_SECONDS it calls `tell`, unless `told` is set, and ends the process.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they are the main thread's
        number = 0
        while number not in SIGNALS:
            number = os.read(reading, 1)[0]
        time.sleep(GRACE_SECONDS)
        if not told.is_set():
            # In a thread of its own: the reader of our messages may have stopped reading.
            telling = threading.Thread(target=tell, args=(number,), daemon=True)
            telling.start()
            telling.join(TELLING_SECONDS)
        os._exit(128 + number)

    threading.Thread(target=watch, daemon=True).start()
