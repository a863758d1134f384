"""The tokenizer.json files of common models: the ids of tokenmill are those of the library.

`make tokenizers` downloads the files to `.tokenizers/`. TOKENMILL_TOKENIZERS=FOLDER names another
folder (scripts/get_tokenizers.py fills one).
"""

from __future__ import annotations

import functools
import os
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from support.inputs import ROOT, sample_texts
from tokenizers import Tokenizer

import tokenmill
from tokenmill.tokenizer.files import find_encoding

# Whether the fast encoder is proven for the model's rules. None: either is fine.
MODELS: dict[str, bool | None] = {
    "aya_expanse": True,
    "baichuan2": True,
    "chatglm3": None,
    "claude": True,
    "command_r_plus": True,
    "deepseek_v3": True,
    "deepseek_v4": True,
    "gemini": None,
    "gemma": True,
    "gemma2": True,
    "gemma3": True,
    "gpt2": True,
    "gpt35turbo": None,
    "gpt4": None,
    "gpt4o": True,
    "internlm2": True,
    "llama2": True,
    "llama3": True,
    "llama3_1": True,
    "llama3_2": True,
    "mistral_nemo": True,
    "qwen1_5": None,
    "qwen2_5": True,
    "qwen3": True,
    "yi": True,
}


def files() -> Path | None:
    named = os.environ.get("TOKENMILL_TOKENIZERS")
    if named and not Path(named).is_dir():
        raise FileNotFoundError(f"TOKENMILL_TOKENIZERS: {named} is not a folder")
    folder = Path(named) if named else ROOT / ".tokenizers"
    return folder if folder.is_dir() else None


FOLDER = files()
pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="no tokenizer files here: run `make tokenizers`, or set TOKENMILL_TOKENIZERS=FOLDER",
)


def model_file(name: str) -> Path:
    assert FOLDER is not None
    path = FOLDER / name / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER}: scripts/get_tokenizers.py downloads it")
    return path


def library(path: Path) -> Any:
    """The reference: all text is text, nothing is cut off or added."""
    opened = Tokenizer.from_file(str(path))
    opened.encode_special_tokens = True
    opened.no_truncation()
    opened.no_padding()
    return opened


PIECES = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2009", "\u0085", "\u2028",
    "a", "B", "word", " word", "don't", "I'LL", "x's", "12", "1234567", "３", "²", "|", "--", "...",
    "é", "e\u0301", "か\u3099", "が", "ﬁ", "½", "\u0345", "\u0344", "\u0301", "Å", "한국",
    "\u1112\u1161", "漢字", "ไทย", "हिन्दी", "عربي",
    "\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\u200d", "\u200b", "\ufeff", "\ufe0f", "\x00", "\x1f", "_", "<", ">",
    "▁", "▁▁", "Ġ", "<s>", "</s", "<0x0A>", "<|endoftext|>", "\u088f", "\U000323b0",
]  # fmt: skip


def hostile(seed: int, count: int, more: list[str]) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES + more, k=rng.randrange(1, 12))) for _ in range(count)]


@functools.cache
def documents() -> list[str]:
    """Documents of the sample: as they are, decomposed, and with white space at both ends."""
    texts = [text[:3000] for text in sample_texts()]
    short = [text[:400] for text in texts if text]
    changed = [unicodedata.normalize(form, text) for form in ("NFD", "NFKD") for text in short]
    rng = random.Random(13)
    white = [" ", "  ", "\n", "\n\n", "\n ", " \n", "\t", "\u3000", "\u00a0"]
    ends = [rng.choice(white) + text[:100] + rng.choice(white) for text in texts]
    return texts + changed + ends


@pytest.mark.parametrize("name", MODELS)
def test_the_ids_of_a_model_are_those_of_the_library(name: str) -> None:
    path = model_file(name)
    reference, ours = library(path), tokenmill.Tokenizer(path)
    added = [token.content for token in reference.get_added_tokens_decoder().values()][:200]
    # A special token's string is never a whole document: there all encoders say "text is text",
    # and the library does not.
    alone = set(added)
    texts = documents() + [t for t in hostile(1, 4000, added) if t not in alone]
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    found = ours.encode_ordinary_batch(texts)
    different = [i for i, ids in enumerate(expected) if ids != found[i]]
    assert not different, (
        f"{len(different)} of {len(texts)} documents differ; the first is "
        f"{texts[different[0]][:200]!r}"
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_with_proven_rules_are_fast(name: str) -> None:
    path = model_file(name)
    encoding = find_encoding(str(path))
    rules = getattr(encoding, "rules", None)
    if rules is None:
        pytest.skip("this version does not name the rules of a tokenizer file")
    why = getattr(encoding, "why_slow", "")
    assert bool(rules) != bool(why), "a reason where the encoder is slow, and only there"
    assert tokenmill.Tokenizer(path).is_fast == bool(rules)
    if MODELS[name] is not None:
        assert bool(rules) == MODELS[name], why
