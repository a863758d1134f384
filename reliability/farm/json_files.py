"""Drawing a tokenizer.json: a real model's rules with few changes, or anything at all."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from reliability.farm.added_tokens import draw_added, token
from reliability.farm.rules import (
    BEHAVIOURS,
    BYTE_LEVEL_MODELS,
    DIGITS,
    IGNORES_MERGES,
    MARKED_MODELS,
    draw_normalizer,
    draw_pre_tokenizer,
    draw_split,
)
from reliability.farm.vocabularies import (
    SIZES,
    Vocabulary,
    byte_level,
    characters,
    llama_style,
    unigram,
)

File = dict[str, Any]
UNKNOWN = "<unk>"


def draw_json(rng: random.Random) -> tuple[str, File]:
    """What was drawn, in one line, and the file's content."""
    chance = rng.random()
    if chance < 0.55:
        return draw_near(rng)
    if chance < 0.9:
        return draw_wild(rng)
    return draw_other_model(rng)


def json_file(normalizer: Any, pre_tokenizer: Any, model: dict[str, Any], added: list[Any]) -> File:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": copy.deepcopy(normalizer),
        "pre_tokenizer": copy.deepcopy(pre_tokenizer),
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def bpe(vocabulary: Vocabulary, **options: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": dict(vocabulary.ids),
        "merges": [list(merge) for merge in vocabulary.merges],
    }


def model_file(rng: random.Random, name: str, part: int = 0) -> File:
    """A file with a real model's rules and a vocabulary of its kind."""
    size = rng.choice(SIZES)
    if name in BYTE_LEVEL_MODELS:
        normalizer, pre_tokenizer = BYTE_LEVEL_MODELS[name]
        vocabulary = byte_level(size, rng.choice(("gpt2", "llama3", "none")), part)
        model = bpe(vocabulary, ignore_merges=name in IGNORES_MERGES)
        number = len(vocabulary.ids)
        added = [token("<|endoftext|>", number, special=True)]
        return json_file(normalizer, pre_tokenizer, model, added)
    normalizer, pre_tokenizer = MARKED_MODELS[name]
    vocabulary = llama_style(size, part % 2)
    model = bpe(vocabulary, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    special = [token(t, vocabulary.ids[t], special=True) for t in (UNKNOWN, "<s>", "</s>")]
    return json_file(normalizer, pre_tokenizer, model, special)


def draw_near(rng: random.Random) -> tuple[str, File]:
    """A real model's rules with zero, one or two changes."""
    name = rng.choice((*BYTE_LEVEL_MODELS, *MARKED_MODELS))
    file = model_file(rng, name, rng.randrange(3))
    if rng.random() < 0.6:  # added tokens as in real files: plain names, no flags
        _add_tokens(file, draw_added(rng, file["model"]["vocab"], rng.choice((0.0, 0.0, 0.5))))
    changes = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        change = rng.choice(CHANGES)
        change(rng, file)
        changes.append((change.__doc__ or "").rstrip("."))
    return f"{name}: {', '.join(changes) or 'as it is'}", file


def draw_wild(rng: random.Random) -> tuple[str, File]:
    """BPE under any rules."""
    size = rng.choice(SIZES)
    kind = rng.choice(("bytes", "bytes", "characters", "llama"))
    if kind == "bytes":
        vocabulary = byte_level(size, rng.choice(("gpt2", "llama3", "none")), rng.randrange(3))
    elif kind == "characters":
        splits = rng.choice(("metaspace", "words", "none"))
        vocabulary = characters(size, splits, rng.randrange(2))
    else:
        vocabulary = llama_style(size, rng.randrange(2))
    file = json_file(draw_normalizer(rng), draw_pre_tokenizer(rng), bpe(vocabulary), [])
    if kind == "llama" and rng.random() < 0.7:
        file["model"] |= {"byte_fallback": True, "unk_token": UNKNOWN}
    for change in rng.choices(CHANGES, k=rng.choice((0, 0, 1, 2, 3))):
        change(rng, file)
    if rng.random() < 0.6:
        _add_tokens(file, draw_added(rng, file["model"]["vocab"], rng.choice((0.2, 0.6, 1.0))))
    return f"wild, {kind}", file


def _add_tokens(file: File, tokens: list[Any]) -> None:
    taken = {t["content"] for t in file["added_tokens"]}
    number = max([*file["model"]["vocab"].values(), *(t["id"] for t in file["added_tokens"])]) + 1
    for one in tokens:
        if one["content"] in taken:
            continue
        if one["content"] not in file["model"]["vocab"]:
            one["id"] = number
            number += 1
        file["added_tokens"].append(one)


def draw_other_model(rng: random.Random) -> tuple[str, File]:
    """Unigram, WordPiece and WordLevel: the reference encodes them."""
    kind = rng.choice(("Unigram", "WordPiece", "WordLevel"))
    vocabulary = characters(rng.choice(SIZES), "words", rng.randrange(2))
    model: dict[str, Any]
    if kind == "Unigram":
        pieces = [list(piece) for piece in unigram()]
        model = {
            "type": kind,
            "unk_id": 0,
            "vocab": pieces,
            "byte_fallback": rng.random() < 0.5,
        }
        ids = {str(piece[0]): i for i, piece in enumerate(pieces)}
    else:
        pieces_of = list(vocabulary.ids)
        if kind == "WordPiece":
            pieces_of = [p for piece in pieces_of for p in (piece, "##" + piece)]
        ids = {piece: i for i, piece in enumerate(["[UNK]", *pieces_of])}
        model = {"type": kind, "unk_token": "[UNK]", "vocab": ids}
        if kind == "WordPiece":
            model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    file = json_file(draw_normalizer(rng), draw_pre_tokenizer(rng), model, [])
    file["added_tokens"] = draw_added(rng, ids, rng.choice((0.2, 0.8)))
    return f"wild, {kind}", file


# --- changes: each edits one thing -----------------------------------------------------------


def _change_normalizer(rng: random.Random, file: File) -> None:
    """another normalizer."""
    file["normalizer"] = draw_normalizer(rng)


def _change_pre_tokenizer(rng: random.Random, file: File) -> None:
    """another pre-tokenizer."""
    file["pre_tokenizer"] = draw_pre_tokenizer(rng)


def _add_step(rng: random.Random, file: File) -> None:
    """one more pre-tokenizer step."""
    before = file["pre_tokenizer"]
    inner = before["pretokenizers"] if before and before["type"] == "Sequence" else [before]
    extra = rng.choice((dict(DIGITS), {"type": "Punctuation", "behavior": "Isolated"},
                        {"type": "Digits", "individual_digits": False}, draw_split(rng),
                        draw_pre_tokenizer(rng, 1)))  # fmt: skip
    inner = [step for step in inner if step]
    inner.insert(rng.randint(0, len(inner)), extra)
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": inner}


def _change_flag(rng: random.Random, file: File) -> None:
    """a flag of the pre-tokenizer."""
    before = file["pre_tokenizer"]
    inner = before["pretokenizers"] if before and before["type"] == "Sequence" else [before]
    step = rng.choice(inner) if inner else None
    if not step:
        return
    flags = [key for key, value in step.items() if isinstance(value, bool)]
    if "behavior" in step and rng.random() < 0.5:
        step["behavior"] = rng.choice(BEHAVIOURS)
    elif flags:
        flag = rng.choice(flags)
        step[flag] = not step[flag]


def _change_model_flag(rng: random.Random, file: File) -> None:
    """a flag of the model."""
    flag = rng.choice(("byte_fallback", "ignore_merges", "fuse_unk"))
    file["model"][flag] = not file["model"].get(flag)


def _change_unknown(rng: random.Random, file: File) -> None:
    """another unknown token."""
    model = file["model"]
    name = rng.choice((None, UNKNOWN, "a", rng.choice(list(model["vocab"]))))
    if name is not None and name not in model["vocab"]:
        model["vocab"][name] = max(model["vocab"].values()) + 1
        file["added_tokens"] = [t for t in file["added_tokens"] if t["content"] in model["vocab"]]
    model["unk_token"] = name


def _add_affix(rng: random.Random, file: File) -> None:
    """a prefix or suffix of words."""
    key = rng.choice(("continuing_subword_prefix", "end_of_word_suffix"))
    file["model"][key] = rng.choice(("", "", "##", "</w>"))


def _repeat_merges(rng: random.Random, file: File) -> None:
    """merges listed twice."""
    merges = file["model"]["merges"]
    for _ in range(rng.randint(1, 60)):
        at = rng.randrange(min(200, len(merges)) or 1)
        merges.insert(rng.randint(0, len(merges)), list(merges[at]))


def _shuffle_merges(rng: random.Random, file: File) -> None:
    """merges in another order."""
    merges = file["model"]["merges"]
    first = rng.choice((0, 0, len(merges) // 2))
    tail = merges[first:]
    rng.shuffle(tail)
    merges[first:] = tail


def _late_parts(rng: random.Random, file: File) -> None:
    """merges whose parts come later."""
    merges = file["model"]["merges"]
    for _ in range(rng.randint(1, 40)):
        merges.insert(rng.randrange(min(50, len(merges))), merges.pop())


def _drop_merges(rng: random.Random, file: File) -> None:
    """some merges left out."""
    share = rng.choice((0.01, 0.1, 0.5))
    file["model"]["merges"] = [m for m in file["model"]["merges"] if rng.random() > share]


def _permute_ids(rng: random.Random, file: File) -> None:
    """ids in another order."""
    vocab = file["model"]["vocab"]
    ids = list(vocab.values())
    rng.shuffle(ids)
    file["model"]["vocab"] = dict(zip(vocab, ids, strict=True))
    _renumber(file)


def _holes(rng: random.Random, file: File) -> None:
    """ids with holes."""
    vocab = file["model"]["vocab"]
    step = rng.choice((1, 2, 7))
    start = rng.randrange(len(vocab))
    moved = {t: i if i < start else start + (i - start) * step + 5 for t, i in vocab.items()}
    file["model"]["vocab"] = moved
    _renumber(file)


def _renumber(file: File) -> None:
    vocab = file["model"]["vocab"]
    for one in file["added_tokens"]:
        one["id"] = vocab.get(one["content"], one["id"])


def _more_tokens(rng: random.Random, file: File) -> None:
    """unusual added tokens."""
    _add_tokens(file, draw_added(rng, file["model"]["vocab"], 0.9))


def _special_in_vocabulary(rng: random.Random, file: File) -> None:
    """a special token that the merges can make."""
    vocab = file["model"]["vocab"]
    long = [t for t in vocab if 2 <= len(t) <= 6 and not t.startswith("<")]
    content = rng.choice(long)
    if content not in {t["content"] for t in file["added_tokens"]}:
        file["added_tokens"].append(token(content, vocab[content], special=True))


Change = Callable[[random.Random, File], None]
CHANGES: tuple[Change, ...] = (
    _change_normalizer, _change_pre_tokenizer, _add_step, _add_step, _change_flag, _change_flag,
    _change_model_flag, _change_unknown, _add_affix, _repeat_merges, _shuffle_merges, _late_parts,
    _drop_merges, _permute_ids, _holes, _more_tokens, _more_tokens, _special_in_vocabulary,
)  # fmt: skip
