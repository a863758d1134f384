"""Imported by the fork server before it forks anyone: opens the encoder that the workers will use.

Children then start in milliseconds, share the vocabulary's memory, and no thread was ever
running in their parent.
"""

from __future__ import annotations

import contextlib
import os

from tokenmill.engines.forkserver import PRELOAD_VARIABLE, THREADS_VARIABLE


def _preload() -> None:
    wanted = os.environ.pop(PRELOAD_VARIABLE, "").split("\n")
    # Imported either way: the modules are most of a worker's start.
    import gigatoken  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from tokenmill.encoders.arrays import remove_stand_in, use_stand_in
    from tokenmill.engines import worker
    from tokenmill.vocabulary_files import find_encoding

    use_stand_in()
    if len(wanted) == 5:
        tokenizer, pattern, encoder, check, threads = wanted
        # The caller may start processes of its own from this server: they get nothing of ours.
        if threads == "-":
            os.environ.pop(THREADS_VARIABLE, None)
        else:
            os.environ[THREADS_VARIABLE] = threads
        worker.preload(find_encoding(tokenizer, pattern), encoder, check == "check")  # type: ignore[arg-type]
    remove_stand_in()


# Whatever is wrong here will be wrong in the worker too, where it can be reported.
with contextlib.suppress(BaseException):
    _preload()
