"""Added tokens: special ones and plain ones, with every flag and with awkward strings."""

from __future__ import annotations

import random
from typing import Any

FLAGS = ("normalized", "lstrip", "rstrip", "single_word")
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<s>", "</s>", "<unk>", "[PAD]", "<mask>", "<|eot_id|>",
    "<bos>", "<｜end▁of▁sentence｜>", "[INST]", "<|im_end|>",
)  # fmt: skip
ODD_SPECIAL = ("<a b>", " <x>", "<|end", "of", "|>", "  ", "\n\n", "▁▁", "é", "the")
PLAIN_NAMES = (
    "<tool_call>", "</tool_call>", "<think>", "<unused0>", "<unused1>", "<|fim_prefix|>", "<2mass>",
    "[@BOS@]", "<table>", "</h1>", "<START_OF_TURN_TOKEN>", "[multimodal]",
)  # fmt: skip
WHITE = (
    "\n", "\n\n", "\n\n\n", "\t", "\t\t", "  ", "   ", "    ", " ", "▁▁", "▁▁▁▁", "▁", "\r\n",
    "\xa0", "\u3000", "\x85", " \n",
)  # fmt: skip
WORDS = (
    "the", " the", "hello", "world", "he", "lo", "ing", "New York", "a", "e", "1", "123", "0", "ab",
    "bc", "abc", "b", "café", "cafe\u0301", "naïve", "é", "e\u0301", "\u0301", "は\u3099", "ば",
    "Ö", "ſ", "ﬁ", "½", "Ａ", "字", "한국", "|", ".", "...", "endof", "end", "text", "im_", "</",
    "<", ">", "x>", "<x>", "<x", "THE", "İ", "don't", "'s", "_", "a_b", "👍", "<0x41>", "Ġ", "</w>",
)  # fmt: skip


def token(content: str, number: int, *, special: bool, **flags: bool) -> dict[str, Any]:
    off = dict.fromkeys(FLAGS, False)
    return {"id": number, "content": content, **off, **flags, "special": special}


def draw_added(rng: random.Random, vocab: dict[str, int], wild: float) -> list[dict[str, Any]]:
    """Up to a dozen tokens. `wild`: how likely a string or a flag is unusual."""
    tokens: list[dict[str, Any]] = []
    taken: set[str] = set()
    number = max(vocab.values(), default=-1) + 1
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8, 12))):
        special = rng.random() < 0.5
        content = _draw_content(rng, special, vocab, wild)
        if content in taken or (special and needed_by_text(content, vocab)):
            continue
        taken.add(content)
        flags = {flag: rng.random() < 0.3 for flag in FLAGS} if rng.random() < wild else {}
        if not special and rng.random() < 0.3:
            flags["normalized"] = True
        if content in vocab:
            tokens.append(token(content, vocab[content], special=special, **flags))
        else:
            tokens.append(token(content, number, special=special, **flags))
            number += 1
    return tokens


def needed_by_text(content: str, vocab: dict[str, int]) -> bool:
    """Whether text could not be written without this token: a letter, or a byte."""
    return content in vocab and (len(content) == 1 or content.startswith("<0x"))


def _draw_content(rng: random.Random, special: bool, vocab: dict[str, int], wild: float) -> str:
    if rng.random() < wild * 0.3 and vocab:
        return rng.choice(list(vocab))
    if special:
        return rng.choice(SPECIAL if rng.random() > wild * 0.5 else ODD_SPECIAL + WORDS)
    if rng.random() > wild:
        return rng.choice(PLAIN_NAMES)
    return rng.choice(rng.choice((WHITE, WORDS, WORDS, PLAIN_NAMES, SPECIAL)))
