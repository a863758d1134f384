"""Texts encoded by the mill's encoder and by the library it must agree with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from support.tokenizer_files import (
    added,
)
from tokenizers import Tokenizer as LibraryTokenizer

from tokenmill.texts import from_bytes
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.files import find_encoding


def by_library(path: Path, texts: list[str]) -> list[list[int]]:
    library = LibraryTokenizer.from_str(path.read_text())
    library.encode_special_tokens = True
    return [library.encode(text, add_special_tokens=False).ids for text in texts]


def encoded(path: Path, texts: list[str], pattern: str = "") -> list[list[int]]:
    encoder = ExactEncoder(find_encoding(str(path), pattern), "auto")
    ids, offsets = encoder.encode(from_bytes([text.encode() for text in texts]))
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


def characters_json(path: Path, **changes: Any) -> Path:
    """A small file of Llama 2's kind: characters, bytes, and merges over spaces."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": b + 3 for b in range(256)}
    single = [*"\u2581abcdehlorstwx<>/", "\n"]
    merges = [
        ("\u2581", "\u2581"), ("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"),
        ("\u2581", "hello"), ("\u2581\u2581", "\u2581\u2581"), ("<", "/"), ("s", ">"), ("</", "s>"),
        ("a", "b"), ("ab", "c"), ("\n", "\n"),
    ]  # fmt: skip
    for name in [*single, *(a + b for a, b in merges)]:
        vocab.setdefault(name, len(vocab))
    content = {
        "version": "1.0",
        "added_tokens": [
            added(name, number, special=True)
            for number, name in enumerate(("<unk>", "<s>", "</s>"))
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": True,
            "ignore_merges": False, "vocab": vocab, "merges": [list(m) for m in merges],
        },
    } | changes  # fmt: skip
    path.write_text(json.dumps(content, ensure_ascii=False))
    return path
