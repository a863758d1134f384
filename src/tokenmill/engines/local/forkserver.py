"""Start the fork server: as early as possible, since opening an encoder takes half a second.

Kept free of heavy imports: the command line calls this before it loads anything else, so that the
server opens the encoder on one core while the coordinator looks at the inputs on another.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from tokenmill.system import allocator
from tokenmill.system.interrupts import owns_process, signals_held

PRELOAD_VARIABLE = "TOKENMILL_PRELOAD"  # JSON: the arguments of `preload`
THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"


def start_fork_server(
    *,
    tokenizer: str,
    pattern: str,
    encoder: str,
    encoder_check: str | bool,
    workers: int | None,
    start_method: str,
    **_other_options: object,
) -> None:
    """Begin to open the encoder that these options of `prepare` ask for; returns at once.

    The first call in a process starts the server. The command line calls this before it imports
    the pipeline; for a caller in Python the pipeline does.
    """
    if (workers is not None and workers <= 0) or start_method != "forkserver":
        return
    theirs = getattr(forkserver._forkserver, "_preload_modules", ["__main__"])
    multiprocessing.set_forkserver_preload(["tokenmill.engines.local.preload"])
    wanted = {
        "tokenizer": tokenizer,
        "pattern": pattern,
        "encoder": encoder,
        "check": encoder_check not in (False, "none"),
        "threads": os.environ.get(THREADS_VARIABLE),
        "coordinator": os.getpid(),
        "folder": _own_folder(),
        "shared": not owns_process(),
    }
    one_thread = "1"  # no thread in a process that forks
    variables = {PRELOAD_VARIABLE: json.dumps(wanted), THREADS_VARIABLE: one_thread}
    with _environment({**allocator.ENVIRONMENT, **variables}):
        _forget_inherited_server()
        resource_tracker.ensure_running()  # its start would end the hold
        with signals_held():
            forkserver.ensure_running()
    multiprocessing.set_forkserver_preload(theirs)  # a server of the caller's own is not ours


_folder_owner = 0  # the process that made the folder of the socket
_owner = 0  # the process that used a fork server last


def _own_folder() -> str:
    """Where multiprocessing puts the server's socket, if that is this process's alone: a forked
    child shares its parent's."""
    global _folder_owner
    if multiprocessing.current_process()._config.get("tempdir") is None:  # type: ignore[attr-defined]
        _folder_owner = os.getpid()
    folder = str(util.get_temp_dir())
    return folder if _folder_owner == os.getpid() else ""


def _forget_inherited_server() -> None:
    """In a process forked from one that had a fork server: that server is not our child."""
    global _owner
    if _owner not in (0, os.getpid()):
        server: Any = forkserver._forkserver
        server._forkserver_pid = server._forkserver_address = server._forkserver_alive_fd = None
    _owner = os.getpid()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ[key] for key in values if key in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for key in values:
            os.environ.pop(key, None)  # another thread may have been here too
        os.environ.update(before)
