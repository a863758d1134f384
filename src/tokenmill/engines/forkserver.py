"""Start the fork server: as early as possible, since opening an encoder takes half a second.

Kept free of heavy imports: the command line calls this before it loads anything else, so that the
server opens the encoder on one core while the coordinator looks at the inputs on another.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from tokenmill.interrupts import signals_held

# tokenizer, pattern, encoder, check, threads, our process, folder of the socket, whose it is
PRELOAD_VARIABLE = "TOKENMILL_PRELOAD"
THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"


def start_fork_server(
    tokenizer: str, encoder: str, check: bool, pattern: str = "", *, alone: bool = False
) -> None:
    """Begin to open the encoder in the fork server; returns at once.

    `alone`: nobody but us will start processes from it, so a Ctrl-C need never reach it.
    """
    theirs = getattr(forkserver._forkserver, "_preload_modules", ["__main__"])
    multiprocessing.set_forkserver_preload(["tokenmill.engines.preload"])
    threads = os.environ.get(THREADS_VARIABLE, "-")
    with _environment(
        {
            PRELOAD_VARIABLE: "\n".join(
                (
                    tokenizer,
                    pattern,
                    encoder,
                    "check" if check else "no",
                    threads,
                    str(os.getpid()),
                    _own_folder(),
                    "alone" if alone else "shared",
                )
            ),
            THREADS_VARIABLE: "1",  # no thread in a process that forks
        }
    ):
        _forget_inherited_server()
        resource_tracker.ensure_running()  # its start would end the hold
        with signals_held():
            forkserver.ensure_running()
    multiprocessing.set_forkserver_preload(theirs)  # a server of the caller's own is not ours


def _own_folder() -> str:
    """Where multiprocessing puts the server's socket, if that is this process's alone: a forked
    child shares its parent's."""
    global _folder_owner
    if multiprocessing.current_process()._config.get("tempdir") is None:  # type: ignore[attr-defined]
        _folder_owner = os.getpid()
    folder = str(util.get_temp_dir())
    return folder if _folder_owner == os.getpid() else ""


_folder_owner = 0


def _forget_inherited_server() -> None:
    """In a process forked from one that had a fork server: that one is not our child."""
    global _owner
    if _owner not in (0, os.getpid()):
        server: Any = forkserver._forkserver
        server._forkserver_pid = server._forkserver_address = server._forkserver_alive_fd = None
    _owner = os.getpid()


_owner = 0


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
