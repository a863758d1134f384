"""Tokenizer files for the tests, made from the bundled ranks: no corpus and no network needed."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

from tokenmill.tokenizer.bundled import PATTERNS, bundled_ranks

SIZE = 8000  # the first ranks of gpt2: enough merges to show every split


@functools.cache
def byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def letters(token: bytes) -> str:
    return "".join(byte_letters()[byte] for byte in token)


@functools.cache
def vocabulary() -> tuple[dict[str, int], list[str]]:
    """Vocabulary and merges of a tokenizer.json, recovered from ranks."""
    ranks = {token: rank for token, rank in bundled_ranks("gpt2").items() if rank < SIZE}
    merges = []
    for token, rank in ranks.items():
        if len(token) > 1:
            left, right = _parts(token, rank, ranks)
            merges.append(f"{letters(left)} {letters(right)}")
    return {letters(token): rank for token, rank in ranks.items()}, merges


def _parts(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best = min(
            range(len(parts) - 1),
            key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30),
        )
        assert ranks[parts[best] + parts[best + 1]] < rank
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def split(regex: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }


BYTES_ONLY = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
}  # fmt: skip
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)


def rules(name: str) -> dict[str, Any]:
    """Normalizer and pre-tokenizer as the models' own files have them."""
    if name == "gpt2":
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {"normalizer": None, "pre_tokenizer": level}
    if name == "deepseek":
        steps = [*map(split, DEEPSEEK), {**BYTES_ONLY, "trim_offsets": True}]
        normalizer: Any = {"type": "Sequence", "normalizers": []}
    else:
        steps = [split(PATTERNS[name]), BYTES_ONLY]
        normalizer = {"type": "NFC"} if name == "qwen2" else None
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
    }


def added(content: str, number: int, *, special: bool, **flags: bool) -> dict[str, Any]:
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **token, **flags, "special": special}


ADDED = (
    added("<|endoftext|>", SIZE, special=True),
    added("<|im_start|>", SIZE + 1, special=True),
    added("<tool_call>", SIZE + 2, special=False),
    added("</tool_call>", SIZE + 3, special=False),
    added("[pad]", SIZE + 4, special=True),
)


def write_json(path: Path, name: str = "qwen2", tokens: Any = ADDED, **changes: Any) -> Path:
    vocab, merges = vocabulary()
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(tokens),
        **rules(name),
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
        **changes,
    }
    path.write_text(json.dumps(content, ensure_ascii=False))
    return path


def train_sentencepiece(
    path: Path, texts: list[str], kind: str = "bpe", symbols: list[str] | None = None
) -> Path:
    """A small model of the kind that Llama and Mistral use (or a Unigram one)."""
    import sentencepiece

    model = io.BytesIO()
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=1500,
        model_type=kind,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=2,
        num_threads=1,
        control_symbols=["[INST]"],
        user_defined_symbols=symbols or [],
    )
    path.write_bytes(model.getvalue())
    return path
