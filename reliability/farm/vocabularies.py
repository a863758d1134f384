"""Small trained vocabularies, from which the drawing derives others by editing.

Training takes 0.1 to 1 second, so that each process keeps what it has trained. All of it depends
on its arguments alone: a seed gives the same file in every process.
"""

from __future__ import annotations

import functools
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from reliability.farm.documents import documents
from reliability.farm.regexes import LLAMA3
from reliability.farm.sample_text import training_texts

Merge = tuple[str, str]
SIZES = (300, 700, 1500, 3000)


class Vocabulary(NamedTuple):
    """Tokens to ids, and the merges of a BPE model in their order."""

    ids: dict[str, int]
    merges: tuple[Merge, ...]


@functools.cache
def byte_level(size: int, splits: str, part: int = 0) -> Vocabulary:
    """A byte-level BPE. `splits`: how the training text is cut into words.

    'none' gives tokens that reach over the end of a word, so that every wrong split shows.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits == "gpt2")
    if splits == "llama3":
        split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    else:
        tokenizer.pre_tokenizer = level
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    return _trained(tokenizer, trainer, _texts(part))


@functools.cache
def characters(size: int, splits: str, part: int = 0) -> Vocabulary:
    """A BPE over characters, as models without byte-level letters have it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    if splits == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif splits == "words":
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = _texts(part)
    counts = Counter(letter for text in texts for letter in text)
    # The trainer's own limit of the alphabet chooses by chance among letters of one frequency.
    alphabet = set(sorted(counts, key=lambda letter: (-counts[letter], letter))[:500])
    trainer = trainers.BpeTrainer(vocab_size=size + 500, show_progress=False)
    common = ["".join(letter for letter in text if letter in alphabet) for text in texts]
    return _trained(tokenizer, trainer, common)


def _trained(tokenizer: Any, trainer: Any, texts: list[str]) -> Vocabulary:
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
    ids = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return Vocabulary(ids, tuple((left, right) for left, right in merges))


def _texts(part: int, odd: int = 2500) -> list[str]:
    """Real text, and odd documents: their strings become tokens too."""
    return [*training_texts(part), *(d[:300] for d in documents(("training", part), odd))]


@functools.cache
def train_sentencepiece(part: int, options: tuple[tuple[str, Any], ...]) -> bytes:
    """A model by sentencepiece's own trainer."""
    import sentencepiece

    # Few odd documents: each of their characters would have to be a piece.
    lines = [line for text in _texts(part, 300) for line in text.split("\n") if line.strip()]
    model = io.BytesIO()
    settings = {
        "minloglevel": 3,
        "num_threads": 1,
        "hard_vocab_limit": False,
        "vocab_size": 1500,
        **dict(options),
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in lines if "\0" not in line),
        model_writer=model,
        **settings,
    )
    return model.getvalue()


@functools.cache
def llama_style(size: int, part: int = 0, coverage: float = 0.98) -> Vocabulary:
    """The vocabulary of Llama 2 or Gemma: `<unk>`, `<s>`, `</s>`, 256 bytes, pieces.

    The merges are all pairs of pieces that make a piece, as converted models have them.
    """
    import sentencepiece

    options = (
        ("vocab_size", size + 1200),
        ("model_type", "bpe"),
        ("byte_fallback", True),
        ("character_coverage", coverage),
        ("normalization_rule_name", "identity"),
        ("remove_extra_whitespaces", False),
        ("allow_whitespace_only_pieces", True),
        ("split_by_whitespace", part % 2 == 0),
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=train_sentencepiece(part, options))
    ids = {model.id_to_piece(i): i for i in range(model.vocab_size())}
    merges = sorted(_all_merges(ids), key=lambda m: (ids[m[0] + m[1]], ids[m[0]], ids[m[1]]))
    return Vocabulary(ids, tuple(merges))


def _all_merges(ids: dict[str, int]) -> Iterator[Merge]:
    for piece in ids:
        if piece.startswith("<") and piece.endswith(">"):
            continue
        for cut in range(1, len(piece)):
            if piece[:cut] in ids and piece[cut:] in ids:
                yield piece[:cut], piece[cut:]


@functools.cache
def unigram(part: int = 0) -> tuple[tuple[str, float], ...]:
    """Pieces and scores of a Unigram model."""
    import sentencepiece

    options = (
        ("vocab_size", 3000),
        ("model_type", "unigram"),
        ("byte_fallback", True),
        ("character_coverage", 0.98),
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=train_sentencepiece(part, options))
    return tuple((model.id_to_piece(i), model.get_score(i)) for i in range(model.vocab_size()))


@functools.cache
def charsmap(rule: str) -> str:
    """The Precompiled normalizer of sentencepiece's rule, in base64 as tokenizer.json has it."""
    import base64

    options = (
        ("vocab_size", 4000),
        ("model_type", "char"),
        ("normalization_rule_name", rule),
        ("character_coverage", 0.98),
    )
    model = train_sentencepiece(0, options)
    return base64.b64encode(_field(_field(model, 3), 2)).decode()


def _field(message: bytes, wanted: int) -> bytes:
    """The content of one length-delimited field of a protobuf message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        if key & 7 == 2:
            size, position = _varint(message, position)
            if key >> 3 == wanted:
                return message[position : position + size]
            position += size
        elif key & 7 == 0:
            _, position = _varint(message, position)
        else:
            position += 4 if key & 7 == 5 else 8
    return b""


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
