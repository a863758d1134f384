"""`--encoder-check`: which documents the reference encodes again, and what is said about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.inputs import write_parquet

from tokenmill.texts import Texts
from tokenmill.tokenizer.bundled import get_encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder

PLAIN = "An ordinary document. It has words, and 12 of them are short."


@pytest.fixture
def encoder() -> ExactEncoder:
    return ExactEncoder(get_encoding("gpt2"), "auto")


MARKER = "qwxz"


def make_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast encoder that gives a wrong last id for a document that holds the marker."""
    from tokenmill.tokenizer.encoders import fast

    right = fast.FastEncoder.encode

    def wrong(self: Any, texts: Texts) -> Any:
        ids, offsets = right(self, texts)
        ids = ids.copy()
        for index in range(texts.documents):
            if MARKER.encode() in texts.document(index):
                ids[offsets[index + 1] - 1] += 1
        return ids, offsets

    monkeypatch.setattr(fast.FastEncoder, "encode", wrong)


def many(tmp_path: Path, *planted: str, count: int = 8000) -> Path:
    documents = [f"{PLAIN} This one is number {number}." for number in range(count)]
    documents[count // 3 : count // 3] = planted
    return write_parquet(tmp_path / "many.parquet", documents, rows=len(documents))
