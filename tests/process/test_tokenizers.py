"""Tokenizers that users bring: exact against the library each belongs to, and nothing guessed."""

from __future__ import annotations

from support.tokenizers import (
    folder,  # noqa: F401
    json_file,  # noqa: F401
)
