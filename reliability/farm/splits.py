"""Every short text, every byte-level splitter: gigatoken and the library cut at the same places.

The vocabulary holds every string of up to 5 representative characters, without merges and with
`ignore_merges`. Each word of the split is then one id, and the ids show the split. One
character stands for all that the expression cannot tell apart.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from reliability.farm.json_files import json_file
from reliability.farm.oracle import encode_with, load
from reliability.farm.ranks_files import as_bytes
from reliability.farm.regexes import CL100K, OLMO3, VARIANTS
from reliability.farm.rules import BYTE_LEVEL_MODELS, BYTES, Rule, split, steps

# A letter of each case, letters of contractions, an other letter, a mark, a digit, another number.
_LETTERS = "asA字\u03011²"
_COMMON = _LETTERS + " \n\t'!"
REPRESENTATIVES = {
    "gpt2": _COMMON + "l",
    "digits": _COMMON + "l",
    "llama3": _COMMON + "l\r",
    "gpt4": _COMMON + "l\r",
    "qwen2": _COMMON + "l\r",
    "qwen35": _COMMON + "l\r",
    "olmo3": _COMMON + "l\r",
    "cl100k": _COMMON + "l\r",
    "gpt2 of tiktoken": _COMMON + "l",
    "deepseek": "aé字\u03011² \n\t!”€\x00龦",
    "gpt4o": "asA字ǅʰ\u03011 \n\t'!/",
    "nemo": "asA字ǅʰ\u03011 \n\t'!/",
}
# Expressions of the fast encoder that no file of a model in `rules` has.
_REGEXES = {
    "olmo3": OLMO3,
    "cl100k": CL100K,
    "gpt2 of tiktoken": VARIANTS["gpt2, tiktoken's form"],
}
LENGTH = 5
BATCH = 100_000


class SplitResult(NamedTuple):
    scheme: str
    texts: int
    differences: int
    example: str


def pre_tokenizer_of(scheme: str) -> Rule:
    """How the scheme splits. No normalizer: only the splits are compared here."""
    if scheme in _REGEXES:
        return steps(split(_REGEXES[scheme]), BYTES)
    return BYTE_LEVEL_MODELS[scheme][1]


def check_splits(scheme: str, length: int = LENGTH) -> SplitResult:
    """All strings of up to `length` representatives through both."""
    import gigatoken

    representatives = REPRESENTATIVES[scheme]
    content = json.dumps(every_word_file(pre_tokenizer_of(scheme), representatives, length))
    try:
        fast = gigatoken.Tokenizer.from_json(content)
    except RuntimeError as error:
        return SplitResult(
            scheme, 0, 0, f"gigatoken cannot load this: {str(error).splitlines()[0]}"
        )
    library = load(content)
    count = differences = 0
    example = ""
    for texts in _batches(every_string(representatives, length)):
        found = fast.encode_batch_list(texts, parallel=False)
        for text, one, other in zip(texts, found, encode_with(library, texts), strict=True):
            if one != other:
                differences += 1
                example = example or f"{text!r}: {one}, should be {other}"
        count += len(texts)
    return SplitResult(scheme, count, differences, example)


def every_word_file(rule: Rule, representatives: str, length: int) -> dict[str, Any]:
    """A tokenizer.json in which each string of the representatives is a token."""
    letters = _letter_of_byte()
    vocab = {letters[byte]: byte for byte in range(256)}
    for word in every_string(representatives, length):
        vocab.setdefault("".join(letters[byte] for byte in word.encode()), len(vocab))
    model = {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": []}
    return json_file(None, rule, model, [])


def every_string(representatives: str, length: int) -> Iterator[str]:
    for size in range(1, length + 1):
        yield from map("".join, itertools.product(representatives, repeat=size))


def _letter_of_byte() -> dict[int, str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return {as_bytes(letter)[0]: letter for letter in ByteLevel.alphabet()}


def _batches(strings: Iterator[str]) -> Iterator[Sequence[str]]:
    while batch := list(itertools.islice(strings, BATCH)):
        yield batch
