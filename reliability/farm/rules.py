"""Normalizers and pre-tokenizers of a tokenizer.json: those of real models, and any others."""

from __future__ import annotations

import random
from typing import Any

from reliability.farm.regexes import ALL, DEEPSEEK, LLAMA3, MODELS, NEMO, O200K, QWEN2, QWEN35
from reliability.farm.vocabularies import charsmap

Rule = dict[str, Any] | None
BEHAVIOURS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
SCHEMES = ("always", "first", "never")
CHARSMAPS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


def split(regex: str, behaviour: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": invert}


def split_string(text: str, behaviour: str, invert: bool = False) -> dict[str, Any]:
    return {**split("", behaviour, invert), "pattern": {"String": text}}


def level(*, use_regex: bool, prefix: bool = False) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": prefix,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def steps(*rules: Rule) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(rules)}


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def metaspace(scheme: str = "always", splits: bool = True) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}


def sequence(*normalizers: Rule) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


PREPEND = {"type": "Prepend", "prepend": "▁"}
DIGITS = {"type": "Digits", "individual_digits": True}
MARKED = replace(" ", "▁")
BYTES = level(use_regex=False)
GEMMA_SPLIT = split_string(" ", "MergedWithPrevious")

# The normalizer and the pre-tokenizer as the files of real models have them.
BYTE_LEVEL_MODELS: dict[str, tuple[Rule, Rule]] = {
    "gpt2": (None, level(use_regex=True)),
    "claude": ({"type": "NFKC"}, level(use_regex=True)),
    "gpt2 with NFC": ({"type": "NFC"}, level(use_regex=True)),
    "command_r": ({"type": "NFC"}, steps(DIGITS, level(use_regex=True))),
    "digits": (None, steps(DIGITS, level(use_regex=True))),
    "llama3": (None, steps(split(LLAMA3), BYTES)),
    "qwen2": ({"type": "NFC"}, steps(split(QWEN2), BYTES)),
    "qwen35": ({"type": "NFC"}, steps(split(QWEN35), BYTES)),
    "deepseek": (sequence(), steps(*map(split, DEEPSEEK), BYTES)),
    "gpt4": (None, steps(split(LLAMA3, "Removed", True), BYTES)),
    "gpt4o": (None, steps(split(O200K, "Removed", True), BYTES)),
    "nemo": (None, steps(split(NEMO), BYTES)),
}
MARKED_MODELS: dict[str, tuple[Rule, Rule]] = {
    "llama2": (sequence(PREPEND, MARKED), None),
    "yi": (sequence(MARKED), None),
    "gemma": (MARKED, None),
    "gemma2": (MARKED, GEMMA_SPLIT),
    "mistral": (None, metaspace("first", False)),
    "tinyllama": (None, metaspace("always", False)),
    "metaspace": (None, metaspace("always", True)),
    "metaspace never": (None, metaspace("never", True)),
}
IGNORES_MERGES = ("llama3", "nemo")


def draw_normalizer(rng: random.Random, depth: int = 0) -> Rule:
    """Any normalizer that the library has."""
    if depth < 2 and rng.random() < 0.25:
        return sequence(*(draw_normalizer(rng, depth + 1) for _ in range(rng.randint(0, 3))))
    kind = rng.choice(NORMALIZERS)
    if kind == "None":
        return draw_normalizer(rng, depth) if depth else None
    if kind == "Strip":
        return {
            "type": kind,
            "strip_left": rng.random() < 0.5,
            "strip_right": rng.random() < 0.5,
        }
    if kind == "Replace":
        return _draw_replace(rng)
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice(("▁", " ", "x", "▁▁"))}
    if kind == "Precompiled":
        return {"type": kind, "precompiled_charsmap": charsmap(rng.choice(CHARSMAPS))}
    if kind == "BertNormalizer":
        return {
            "type": kind,
            "clean_text": rng.random() < 0.5,
            "handle_chinese_chars": rng.random() < 0.5,
            "strip_accents": rng.choice((None, True, False)),
            "lowercase": rng.random() < 0.5,
        }
    return {"type": kind}


NORMALIZERS = (
    "None", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace",
    "Prepend", "Nmt", "Precompiled", "BertNormalizer", "ByteLevel",
)  # fmt: skip


def _draw_replace(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.6:
        return replace(*rng.choice(_STRINGS))
    pattern = {"Regex": rng.choice((r"\s+", " {2,}", r"\d", r"[^\S\n]", "['’]", r"^\s*"))}
    return {"type": "Replace", "pattern": pattern, "content": rng.choice((" ", "▁", "", "0"))}


_STRINGS = ((" ", "▁"), ("▁", " "), ("\n", " "), ("``", '"'), ("a", "b"), ("  ", " "), ("\r", ""))


def draw_pre_tokenizer(rng: random.Random, depth: int = 0) -> Rule:
    """Any pre-tokenizer that the library has, also sequences in any order."""
    if depth < 2 and rng.random() < 0.35:
        inner = [draw_pre_tokenizer(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.6:
            inner.append(level(use_regex=rng.random() < 0.4, prefix=rng.random() < 0.2))
        return steps(*inner)
    kind = rng.choice(PRE_TOKENIZERS)
    if kind == "None":
        return draw_pre_tokenizer(rng, depth) if depth else None
    if kind == "ByteLevel":
        return level(use_regex=rng.random() < 0.6, prefix=rng.random() < 0.4)
    if kind == "Digits":
        return {"type": kind, "individual_digits": rng.random() < 0.5}
    if kind == "Punctuation":
        return {"type": kind, "behavior": rng.choice(BEHAVIOURS)}
    if kind == "Metaspace":
        return metaspace(rng.choice(SCHEMES), rng.random() < 0.5)
    if kind == "Split":
        return draw_split(rng)
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": rng.choice(" |/.a▁")}
    if kind == "FixedLength":
        return {"type": kind, "length": rng.randint(1, 9)}
    return {"type": kind}


PRE_TOKENIZERS = (
    "None", "ByteLevel", "ByteLevel", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation",
    "Metaspace", "Metaspace", "Split", "Split", "Split", "BertPreTokenizer", "UnicodeScripts",
    "CharDelimiterSplit", "FixedLength",
)  # fmt: skip


def draw_split(rng: random.Random) -> dict[str, Any]:
    behaviour, invert = rng.choice(BEHAVIOURS), rng.random() < 0.3
    if rng.random() < 0.2:
        return split_string(rng.choice((" ", "▁", "a", "\n", ".", "  ")), behaviour, invert)
    regexes = MODELS if rng.random() < 0.4 else ALL
    return split(regexes[rng.choice(sorted(regexes))], behaviour, invert)
