"""Imported by the fork server before it forks anyone: opens the encoder that the workers will use.

Children then start in milliseconds, share the vocabulary's memory, and no thread was ever
running in their parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from pathlib import Path

from tokenmill.engines.forkserver import PRELOAD_VARIABLE, THREADS_VARIABLE
from tokenmill.interrupts import SIGNALS


def _preload() -> None:
    wanted = os.environ.pop(PRELOAD_VARIABLE, "").split("\n")
    # Imported either way: the modules are most of a worker's start.
    import gigatoken  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from tokenmill.encoders.arrays import remove_stand_in, use_stand_in
    from tokenmill.engines import worker
    from tokenmill.vocabulary_files import find_encoding

    use_stand_in()
    if len(wanted) == 8:
        tokenizer, pattern, encoder, check, threads, coordinator, folder, whose = wanted
        if folder:
            atexit.register(_clean_up_after, int(coordinator), Path(folder))
        # The caller may start processes of its own from this server: they get nothing of ours.
        if threads == "-":
            os.environ.pop(THREADS_VARIABLE, None)
        else:
            os.environ[THREADS_VARIABLE] = threads
        worker.preload(find_encoding(tokenizer, pattern), encoder, check == "check")  # type: ignore[arg-type]
        if whose == "shared":
            # As the caller would find them. One that came meanwhile was not for its processes.
            for number in signal.sigpending() & set(SIGNALS):
                signal.sigwait([number])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    remove_stand_in()


def _clean_up_after(coordinator: int, folder: Path) -> None:
    """A coordinator that was killed leaves the folder of this server's socket behind.

    Workers never come here: they end without clean-up.
    """
    from tokenmill.steps import remove_folder

    deadline = time.monotonic() + 1.0
    while os.getppid() == coordinator and time.monotonic() < deadline:
        time.sleep(0.01)  # it is about to end: that is why this server does
    if os.getppid() != coordinator:
        remove_folder(folder)


# Whatever is wrong here will be wrong in the worker too, where it can be reported.
with contextlib.suppress(BaseException):
    _preload()
