"""Tokenizer files that obey a proven rule set: the drawers for `prove`.

A drawer varies everything that the rule set leaves open: the vocabulary, its size, flags that do
not matter, special and plain added tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliability.farm import ranks_files, sentencepiece_files
from reliability.farm.added_tokens import PLAIN_NAMES, token
from reliability.farm.drawing import Drawn, RefusedError, from_json, from_model, from_ranks
from reliability.farm.json_files import UNKNOWN, bpe, json_file
from reliability.farm.rules import GEMMA_SPLIT, Rule, level, sequence, split, steps
from reliability.farm.vocabularies import Vocabulary, byte_level, llama_style
from tokenmill.tokenizer.proof.rules import RULE_SETS, RuleSet

Drawer = Callable[[random.Random, int, Path], Drawn]
SPLITS = ("gpt2", "llama3", "none")
LARGEST = 4000
SPECIAL_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[PAD]", "<mask>")
GEMMA_TOKENS = ("\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "\t", "\t\t", "<table>", "<unused0>")


def cut(vocabulary: Vocabulary, merges: int) -> Vocabulary:
    """The vocabulary after its first merges, as if training had stopped there."""
    kept = vocabulary.merges[:merges]
    made = {left + right for left, right in kept}
    all_made = {left + right for left, right in vocabulary.merges}
    tokens = [t for t in vocabulary.ids if t in made or t not in all_made]
    ids = {t: number for number, t in enumerate(tokens)}
    return Vocabulary(ids, tuple(m for m in kept if m[0] in ids and m[1] in ids))


def _size(rng: random.Random, limit: int) -> int:
    """Small sizes are as likely as large ones."""
    return min(limit, int(40 * (limit / 40) ** rng.random()))


def _added(rng: random.Random, vocab: dict[str, int], plain: tuple[str, ...]) -> list[Any]:
    tokens = [*rng.sample(SPECIAL_NAMES, rng.randint(0, 4)), *rng.sample(plain, rng.randint(0, 4))]
    rng.shuffle(tokens)
    number = max(vocab.values()) + 1
    added = []
    for content in tokens:
        special = content in SPECIAL_NAMES
        added.append(token(content, vocab.get(content, number), special=special))
        number += content not in vocab
    return added


def draw_byte_level(rules: RuleSet) -> Drawer:
    def draw(rng: random.Random, number: int, folder: Path) -> Drawn:
        whole = byte_level(LARGEST, SPLITS[number % 3], number // 3 % 17)
        vocabulary = cut(whole, _size(rng, len(whole.merges)))
        model = bpe(vocabulary, ignore_merges=rng.random() < 0.3)
        if rng.random() < 0.5:
            model["merges"] = [" ".join(merge) for merge in model["merges"]]
        normalizer = {"type": rules.form} if rules.form else rng.choice((None, sequence()))
        added = _added(rng, vocabulary.ids, PLAIN_NAMES)
        file = json_file(normalizer, _byte_level_steps(rng, rules), model, added)
        return from_json(number, f"{len(vocabulary.ids)} tokens", file, folder)

    return draw


def _byte_level_steps(rng: random.Random, rules: RuleSet) -> Rule:
    digits = [{"type": "Digits", "individual_digits": True}] if rules.digits else []
    removed = len(rules.splits) == 1 and rng.random() < 0.3
    behaviour = ("Removed", True) if removed else ("Isolated", False)
    splits = [split(regex, *behaviour) for regex in rules.splits]
    return steps(*digits, *splits, level(use_regex=not splits))


def draw_marked(rules: RuleSet) -> Drawer:
    """Llama 2, Gemma and their kind: `▁` for spaces, bytes for unknown characters."""
    only_replaces = len(rules.normalizers) == 1

    def draw(rng: random.Random, number: int, folder: Path) -> Drawn:
        whole = llama_style(LARGEST, number % 20, 0.98 + 0.004 * (number % 4))
        vocabulary = cut(whole, _size(rng, len(whole.merges)))
        ids = dict(vocabulary.ids)
        chosen = tuple(rng.sample(GEMMA_TOKENS, rng.choice((0, 0, 3, len(GEMMA_TOKENS)))))
        for content in chosen:  # these models have their added tokens in the vocabulary
            ids.setdefault(content, len(ids))
        model = bpe(Vocabulary(ids, vocabulary.merges), unk_token=UNKNOWN, byte_fallback=True)
        model["fuse_unk"] = rng.random() < 0.8
        special = [token(t, ids[t], special=True) for t in (UNKNOWN, "<s>", "</s>")]
        added = special + [token(t, ids[t], special=False) for t in chosen]
        normalizer = sequence(*rules.normalizers) if rules.normalizers else None
        no_op = GEMMA_SPLIT if only_replaces and rng.random() < 0.5 else None
        file = json_file(normalizer, rules.metaspace or no_op, model, added)
        return from_json(number, f"{len(ids)} tokens", file, folder)

    return draw


def draw_sentencepiece(names: tuple[str, ...], *prefixes: bool) -> Drawer:
    def draw(rng: random.Random, number: int, folder: Path) -> Drawn:
        options: dict[str, Any] = {
            "model_type": "bpe",
            "byte_fallback": True,
            "vocab_size": rng.choice((1300, 1800, 2600, 4000)),
            "character_coverage": rng.choice((0.98, 0.985, 0.99)),
            "normalization_rule_name": rng.choice(names),
            "remove_extra_whitespaces": names[0] != "identity" and rng.random() < 0.7,
            "split_digits": rng.random() < 0.5,
            "add_dummy_prefix": rng.choice(prefixes),
            "allow_whitespace_only_pieces": rng.random() < 0.5,
            "split_by_whitespace": rng.random() < 0.7,
        }
        if rng.random() < 0.5:
            options["control_symbols"] = ("[INST]", "<pad>")
        content = sentencepiece_files.train(number, options)
        return from_model(number, sentencepiece_files.describe(options), content, folder)

    return draw


def draw_ranks(pattern: str) -> Drawer:
    def draw(rng: random.Random, number: int, folder: Path) -> Drawn:
        if number % 4 == 0:
            ranks = dict(ranks_files.first_of_gpt2(300 + rng.randrange(20_000)))
        else:
            whole = byte_level(LARGEST, SPLITS[number % 3], number // 3 % 17)
            vocabulary = cut(whole, _size(rng, len(whole.merges)))
            ranks = {ranks_files.as_bytes(t): i for t, i in vocabulary.ids.items()}
        return from_ranks(number, f"{len(ranks)} ranks", ranks, pattern, folder)

    return draw


def drawer_of(name: str) -> Drawer:
    """What draws files of one proven rule set, by its name."""
    rules = RULE_SETS[name]
    if rules.kind == "ranks":
        return draw_ranks(name.removeprefix("tiktoken "))
    if name == "sentencepiece normalized":
        return draw_sentencepiece(("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"), True, False)
    if name.startswith("sentencepiece"):
        return draw_sentencepiece(("identity",), name == "sentencepiece")
    return draw_byte_level(rules) if rules.kind == "bytes" else draw_marked(rules)


def try_draw(name: str, number: int, folder: Path) -> Drawn | None:
    try:
        return drawer_of(name)(random.Random(f"prove {name} {number}"), number, folder)
    except RefusedError:
        return None
