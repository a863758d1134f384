"""The variables of the environment that say where a store is and who may use it.

A fork server keeps the environment that it was started with. A caller in Python may have got new
credentials since, so they go to each new worker through its pipe, and are written nowhere.
"""

from __future__ import annotations

import os

BEGINNINGS = ("AWS_", "GOOGLE_", "CLOUDSDK_")
NAMES = ("NO_GCE_CHECK", "STORAGE_EMULATOR_HOST", "TOKENMILL_BUCKET_CACHE")


def bucket_variables() -> dict[str, str]:
    """Those that are set in this process."""
    return {name: value for name, value in os.environ.items() if _is_one(name)}


def set_bucket_variables(values: dict[str, str]) -> None:
    """Exactly these, in this process."""
    for name in [name for name in os.environ if _is_one(name) and name not in values]:
        del os.environ[name]
    os.environ.update(values)


def _is_one(name: str) -> bool:
    return name.startswith(BEGINNINGS) or name in NAMES
