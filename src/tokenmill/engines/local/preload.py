"""Imported by the fork server before it forks anyone: opens the encoder that the workers will use.

Children then start in milliseconds, share the vocabulary's memory, and no thread was ever
running in their parent.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tokenmill.engines.local.forkserver import PRELOAD_VARIABLE, THREADS_VARIABLE
from tokenmill.system.allocator import ENVIRONMENT
from tokenmill.system.interrupts import SIGNALS


def _preload(wanted: dict[str, Any]) -> None:
    # Imported either way: the modules are most of a worker's start.
    import gigatoken  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from tokenmill.engines.local import worker
    from tokenmill.tokenizer.encoders.awkward_stand_in import remove_stand_in, use_stand_in
    from tokenmill.tokenizer.files import find_encoding

    use_stand_in()
    if wanted:
        if wanted["folder"]:
            atexit.register(_clean_up_after, wanted["coordinator"], Path(wanted["folder"]))
        # The caller may start processes of its own from this server: they get nothing of ours.
        for name in (THREADS_VARIABLE, *ENVIRONMENT):
            os.environ.pop(name, None)
        if wanted["threads"] is not None:
            os.environ[THREADS_VARIABLE] = wanted["threads"]
        if wanted["tokenizer"]:  # none: files are made of tokens
            encoding = find_encoding(wanted["tokenizer"], wanted["pattern"])
            worker.preload(encoding, wanted["encoder"], wanted["check"])
        if wanted["shared"]:
            # As the caller would find them. One that came meanwhile was not for its processes.
            for number in signal.sigpending() & set(SIGNALS):
                signal.sigwait([number])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    remove_stand_in()


def _clean_up_after(coordinator: int, folder: Path) -> None:
    """A coordinator that was killed leaves the folder of this server's socket behind.

    Workers never call this: they end without clean-up.
    """
    from tokenmill.system.disk import remove_folder

    deadline = time.monotonic() + 1.0
    while os.getppid() == coordinator and time.monotonic() < deadline:
        time.sleep(0.01)  # it is about to end: that is why this server does
    if os.getppid() != coordinator:
        remove_folder(folder)


# A fault here will be a fault in the worker too, where it can be reported.
with contextlib.suppress(BaseException):
    _preload(json.loads(os.environ.pop(PRELOAD_VARIABLE, "{}")))
