"""How the farm opens tokenmill's encoder: the one place that knows the interface."""

from __future__ import annotations

from pathlib import Path

from tokenmill.settings import EncoderChoice
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.files import find_encoding


def find(path: Path, pattern: str = "") -> Encoding:
    return find_encoding(str(path), pattern)


def open_encoder(encoding: Encoding, choice: EncoderChoice = "auto") -> ExactEncoder:
    """The encoder as a worker opens it."""
    return ExactEncoder(encoding, choice)
