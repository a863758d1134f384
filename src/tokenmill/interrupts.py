"""Ctrl-C and SIGTERM: seen at any moment, acted on where nothing is left half done.

    planning, imports           the signal raises where it finds the main thread
    a job is open (`deferred`)  it sets a flag that the loops look at several times a second
    the commit                  it is let pass: what is decided is carried out, in a moment
    nothing helps               the command ends itself in time; that is as safe as a kill -9

The first signal counts. Those after it change nothing, so that no clean-up is broken off.
Kept free of heavy imports: the command line needs it first of all.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The command has ended five seconds after the signal, whatever it was at.
GRACE_SECONDS = 3.5
TELLING_SECONDS = 0.5


class _StopHereError(KeyboardInterrupt):
    """Raised by the handler: as a KeyboardInterrupt it passes every `except Exception`."""


class Interrupts:
    """What came in, and whether it may raise where it came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.told = False  # it has become an exception: nobody need look for it any more
        self._deferred = False
        self._raised = False

    def error(self) -> Interrupted:
        self.told = True
        return self.stopped_by(self.received[0])

    @staticmethod
    def stopped_by(number: int) -> Interrupted:
        return Interrupted(
            f"stopped by {signal.Signals(number).name}; what is durable is kept",
            hint="run the same command again to resume",
            signal_number=number,
        )

    def check(self) -> None:
        """Raise when a signal has come in."""
        if self.received:
            raise self.error()

    @contextlib.contextmanager
    def deferred(self, deferred: bool = True) -> Iterator[None]:
        """In here a signal waits for `check`, which is called before and not after."""
        self.check()
        before, self._deferred = self._deferred, deferred
        try:
            with self.translated():
                yield
        finally:
            self._deferred = before

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        """Within `deferred`: a long step that holds nothing and may be left anywhere."""
        return self.deferred(False)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """What the handler raised, as the error that says so."""
        try:
            yield
        except KeyboardInterrupt:
            if self.received:
                raise self.error() from None
            raise

    def enough(self) -> None:
        """The work is over and reported: whatever comes now changes nothing."""
        self._deferred = True

    def handle(self, number: int, _frame: object) -> None:
        self.received.append(number)
        if not self._deferred and not self._raised:
            self._raised = True
            raise _StopHereError


_active: Interrupts | None = None


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Signals of this process become `Interrupted`; nested calls share the outermost's."""
    global _active
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        if _active is not None:  # they come to the main thread; whoever asks in here is told too
            interrupts.received = _active.received
        yield interrupts
        return
    if _active is not None:
        with _active.translated():
            yield _active
        return
    before: dict[int, Any] = {}
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
    if interrupts.received and not interrupts.told:
        signal.raise_signal(interrupts.received[0])  # we finished, but the caller is to know


def take_over(interrupts: Interrupts) -> None:
    """For a process that is ours alone: the signals are ours until it ends."""
    global _active
    _active = interrupts
    _install(interrupts)
    # Registered first, so called last: while Python takes itself down it takes our handlers away,
    # and the default one would make a kill of what has ended well.
    atexit.register(_let_pass)


def _let_pass() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _install(interrupts: Interrupts) -> dict[int, Any]:
    """But what is ignored stays so: a shell tells its background jobs not to mind Ctrl-C."""
    wanted = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
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
    """In a new process: of signals held since its birth, those that came are for its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def end_in_time(tell: Callable[[int], object], told: threading.Event) -> None:
    """For a process that is ours alone: a signal ends it in time, even where Python cannot run.

    A handler runs when the main thread comes back from native code, which may take minutes (one
    long document) or for ever (a dead disk). The kernel's note of the signal reaches a thread
    at once; when the grace is over, it tells what there is to tell, and ends the process.
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
            # In a thread of its own: whoever reads our messages may have stopped reading.
            telling = threading.Thread(target=tell, args=(number,), daemon=True)
            telling.start()
            telling.join(TELLING_SECONDS)
        os._exit(128 + number)

    threading.Thread(target=watch, daemon=True).start()
