"""The tokenizer that goes anywhere: what it pickles as, and that it works wherever it arrives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import pytest
import tiktoken
from support import reference
from support.inputs import sample_texts
from support.tokenizer_files import train_sentencepiece, write_json

from tokenmill import Tokenizer
from tokenmill.tokenizer import tokenizer as portable
from tokenmill.tokenizer.bundled import ENCODINGS, PATTERNS, bundled_ranks

TEXT = "Many words, 1234567 numbers; naïve café\n\n  and <|endoftext|> as text 👍"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # What anybody has left in the machine's temporary folder must not be found there.
    monkeypatch.setattr("tokenmill.system.cache._last_resort", lambda: tmp_path / "last resort")
    portable._opened.clear()  # what other tests have opened


def unregistered(specials: int = 1) -> tiktoken.Encoding:
    """A tiktoken.Encoding that no registry knows."""
    ranks = dict(list(bundled_ranks("gpt2").items())[:20_000])
    names = ["<|endoftext|>", *(f"<|reserved_special_token_{i}|>" for i in range(1, specials))]
    return tiktoken.Encoding(
        "my_own",
        pat_str=PATTERNS["gpt2"],
        mergeable_ranks=ranks,
        special_tokens={name: 20_000 + i for i, name in enumerate(names)},
    )


def make(kind: str, folder: Path, **options: Any) -> tuple[Tokenizer, list[int]]:
    """A tokenizer made from each kind of thing, and what its reference says of the text."""
    if kind in ENCODINGS:
        return Tokenizer(kind, **options), reference.encoding(kind).encode_ordinary(TEXT)
    if kind.startswith("tiktoken"):
        enc = unregistered(2000 if kind.endswith("specials") else 1)
        return Tokenizer(enc, **options), enc.encode_ordinary(TEXT)
    if kind.startswith("sentencepiece"):
        import sentencepiece

        path = train_sentencepiece(folder / "x.model", sample_texts()[:40])
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        source: Any = model if kind.endswith("object") else path
        return Tokenizer(source, **options), model.encode(TEXT)
    path = write_json(folder / "tokenizer.json")
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(path))
    if kind == "transformers":
        transformers = pytest.importorskip("transformers")
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=library, eos_token="<|im_start|>"
        )
        source = fast
    else:
        source = library if kind == "tokenizers" else path
    plain = tokenizers.Tokenizer.from_file(str(path))
    plain.encode_special_tokens = True
    return Tokenizer(source, **options), plain.encode(TEXT, add_special_tokens=False).ids


PICKLERS = {"pickle": pickle, "dill": dill, "cloudpickle": cloudpickle}
