"""Tokenizers that users bring: exact against the library each belongs to, and nothing guessed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_files import write_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@functools.cache
def open_library(path: Path, mtime: int) -> Any:
    if path.suffix == ".model":
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def library_ids(path: Path, text: str) -> list[int]:
    """What the library itself says, without any code of ours."""
    library = open_library(path, path.stat().st_mtime_ns)
    if path.suffix == ".model":
        ids: list[int] = library.encode(text)
        return ids
    found: list[int] = library.encode(text, add_special_tokens=False).ids
    return found


KNOWN = ("gpt2", "qwen2", "deepseek", "llama3")


@pytest.fixture(scope="module", params=KNOWN)
def json_file(folder: Path, request: pytest.FixtureRequest) -> Path:
    (folder / request.param).mkdir(exist_ok=True)
    return write_json(folder / request.param / "tokenizer.json", request.param)
