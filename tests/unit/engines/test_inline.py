"""`--workers 0`: the mill inside the caller's process."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

import tokenmill
from tokenmill.tokenizer.encoders.exact import ExactEncoder


def test_the_encoder_is_freed_when_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the collector, which does not see its 50 to 250 MB of native memory."""
    opened = weakref.WeakSet[ExactEncoder]()
    opens = []

    def noted(self: ExactEncoder, *args: object, **keywords: object) -> None:
        begin(self, *args, **keywords)  # type: ignore[arg-type]
        opened.add(self)
        opens.append(1)

    begin = ExactEncoder.__init__
    monkeypatch.setattr(ExactEncoder, "__init__", noted)
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "hello"}\n' * 9)
    gc.disable()
    try:
        tokenmill.prepare(str(source), tmp_path / "out", workers=0, val="none")
        assert opens
        assert not list(opened)
    finally:
        gc.enable()
