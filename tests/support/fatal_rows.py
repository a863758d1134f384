"""Documents that end the process that encodes them."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable

import pytest

from tokenmill.engines.unit import UnitWorker

MARKER = "<<MARKER>>"


def plant(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object] = os.abort, least: int = 1
) -> None:
    """Let every worker fail that encodes the marker, among at least so many documents."""
    right = UnitWorker.encode_batch

    def encode_batch(
        self: UnitWorker, source: object, batch: object, packer: object, *known: object
    ) -> int:
        texts = batch.texts  # type: ignore[attr-defined]
        if MARKER.encode() in texts.used().tobytes() and texts.documents >= least:
            faulthandler.disable()  # pytest's would print the stack, every time
            fault()
        return right(self, source, batch, packer, *known)  # type: ignore[arg-type]

    monkeypatch.setattr(UnitWorker, "encode_batch", encode_batch)
