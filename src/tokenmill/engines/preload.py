"""Imported by the fork server before it forks anyone: opens the encoder that the workers will use.

Children then start in milliseconds, share the vocabulary's memory, and no thread was ever
running in their parent.
"""

from __future__ import annotations

import contextlib
import os

from tokenmill.engines.forkserver import PRELOAD_VARIABLE


def _preload() -> None:
    wanted = os.environ.pop(PRELOAD_VARIABLE, "").split()
    # Imported either way: the modules are most of a worker's start.
    import gigatoken  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from tokenmill.encoders.arrays import use_stand_in
    from tokenmill.encoders.unicode_gap import GAP
    from tokenmill.engines import worker

    use_stand_in()
    if len(wanted) == 3:
        tokenizer, encoder, check = wanted
        worker.preload(tokenizer, encoder, GAP, check == "check")


# Whatever is wrong here will be wrong in the worker too, where it can be reported.
with contextlib.suppress(Exception):
    _preload()
