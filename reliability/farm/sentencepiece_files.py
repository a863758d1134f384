"""Drawing a SentencePiece model: trained with every option that changes how text is encoded."""

from __future__ import annotations

import os
import random
import tempfile
from typing import Any

from reliability.farm.vocabularies import train_sentencepiece

RULES = ("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
SYMBOLS = ("<x>", "[INST]", "  ", "▁▁", "\n", "the", "ab", "bc", "é", "1", "<sep>", "字", "</s2>")
# A rule of the user's own: hexadecimal code points to replace, a tab, what stands there instead.
OWN_RULE = "41\t61\n65 301\te9\n3000\t20\n\u0041 42\t43\n2026\t2e 2e 2e\nad\t\n"


def draw_options(rng: random.Random) -> dict[str, Any]:
    """The trainer's options. A real model's choice is more likely than others."""
    kind = rng.choices(("bpe", "unigram", "char", "word"), (0.66, 0.14, 0.1, 0.1))[0]
    options: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": rng.choice((1200, 1500, 2200, 3000)),
        "character_coverage": rng.choice((0.98, 0.98, 0.99, 0.9995)),
        "byte_fallback": rng.random() < 0.7,
        "normalization_rule_name": rng.choice((*RULES, "identity", "nmt_nfkc", "own")),
        "add_dummy_prefix": rng.random() < 0.7,
        "remove_extra_whitespaces": rng.random() < 0.4,
        "split_digits": rng.random() < 0.5,
    }
    for name in ("split_by_whitespace", "split_by_number", "split_by_unicode_script"):
        if rng.random() < 0.25:
            options[name] = False
    for name in ("treat_whitespace_as_suffix", "allow_whitespace_only_pieces"):
        if rng.random() < 0.2:
            options[name] = True
    if rng.random() < 0.3:
        options["user_defined_symbols"] = tuple(rng.sample(SYMBOLS, rng.randint(1, 4)))
    if rng.random() < 0.3:
        options["control_symbols"] = tuple(rng.sample(("<ctl>", "<pad2>", "[SEP]"), 2))
    if rng.random() < 0.2:
        options["max_sentencepiece_length"] = rng.choice((4, 8, 32))
    if rng.random() < 0.1:
        options |= {"bos_id": -1, "unk_piece": "⁇"}
    return options


def train(part: int, options: dict[str, Any]) -> bytes:
    """The model's bytes; trained once in each process for the same options."""
    try:
        return _train(part, options)
    except RuntimeError as error:
        if "Vocabulary size is smaller" not in str(error):
            raise
    return _train(part, {**options, "vocab_size": options["vocab_size"] + 4000})


def _train(part: int, options: dict[str, Any]) -> bytes:
    if options["normalization_rule_name"] != "own":
        return train_sentencepiece(part, tuple(sorted(options.items())))
    others = {k: v for k, v in options.items() if k != "normalization_rule_name"}
    settings = {**others, "normalization_rule_tsv": _own_rule_file()}
    return train_sentencepiece(part, tuple(sorted(settings.items())))


def _own_rule_file() -> str:
    """Always under the same name, since the model holds it: a seed gives the same bytes."""
    path = os.path.join(tempfile.gettempdir(), f"tokenmill-farm-rule-{os.getuid()}.tsv")
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(OWN_RULE)
    os.replace(file.name, path)
    return path


def describe(options: dict[str, Any]) -> str:
    shown = [f"{options['model_type']}, {options['normalization_rule_name']}"]
    shown += [name for name, value in options.items() if value is True]
    shown += [f"no {name}" for name, value in options.items() if value is False]
    shown += [name for name, value in options.items() if isinstance(value, tuple)]
    return ", ".join(shown)
