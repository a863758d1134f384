"""The library that speaks to S3 and GCS (obstore), opened for one bucket."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from tokenmill.errors import StorageError, UsageError
from tokenmill.system.buckets.access import (
    gcs_endpoint,
    gcs_options,
    refuse_without_credentials,
    s3_access,
)
from tokenmill.system.buckets.address import BucketAddress

RETRIES = 8  # of one request, by the library, with growing pauses
RETRY_SECONDS = 90  # in all; a worker may be silent for longer (see `pipeline`)
REQUEST_SECONDS = 120  # a part of 8 MB at 70 kB/s


_used_by = 0  # the process that has opened a client


def refuse_after_fork(address: str) -> None:
    """A child of this process would wait for ever for threads that only its parent has."""
    global _used_by
    if _used_by not in (0, os.getpid()):
        raise StorageError(
            f"{address}: cannot be used in a process that was forked from one that uses a bucket",
            hint="start processes by 'spawn' or 'forkserver': --start-method forkserver, or "
            "DataLoader(..., multiprocessing_context='spawn')",
        )
    _used_by = os.getpid()


def open_client(address: BucketAddress, retries: int | None = None) -> Any:
    """`retries`: of one request, by the library; the caller makes more."""
    try:
        import obstore
    except ImportError:
        extra = "s3" if address.scheme == "s3" else "gcs"
        raise UsageError(
            f"{address}: needs the package obstore, which is not installed",
            hint=f"pip install 'tokenmill[{extra}]'",
        ) from None
    refuse_without_credentials(address)
    settings: dict[str, Any] = {
        "retry_config": _retries(RETRIES if retries is None else retries),
        "client_options": _client(address),
    }
    try:
        if address.scheme == "s3":
            return obstore.store.S3Store(address.bucket, **s3_access().options, **settings)
        return obstore.store.GCSStore(address.bucket, **gcs_options(), **settings)
    except Exception as error:
        # Its text may quote a setting, and a setting may be a key.
        raise UsageError(
            f"{address}: cannot be opened with these settings ({type(error).__name__})",
            hint="check the variables AWS_... or GOOGLE_... in the environment",
        ) from None


def pause_seconds() -> float:
    """The first pause before another try; tests have no time."""
    value = os.environ.get("TOKENMILL_RETRY_SECONDS", "")
    return float(value) if value.replace(".", "", 1).isdigit() else 1.0


def _retries(count: int) -> dict[str, Any]:
    first = timedelta(seconds=pause_seconds() / 4)
    return {
        "max_retries": count,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {"init_backoff": first, "max_backoff": first * 60, "base": 2},
    }


def _client(address: BucketAddress) -> dict[str, Any]:
    endpoint = s3_access().endpoint if address.scheme == "s3" else gcs_endpoint()
    chosen: dict[str, Any] = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=10),
    }
    if endpoint.startswith("http://"):  # who writes that wants it; keys are never sent as such
        chosen["allow_http"] = True
    return chosen
