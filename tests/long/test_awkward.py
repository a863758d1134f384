"""Documents that are known to hang or kill tokenizers: here they are just documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import reference
from support.inputs import write_jsonl, write_parquet
from support.tokenizer_files import train_sentencepiece, write_json

import tokenmill as mill

AWKWARD = [
    "a" * 1_000_000,
    " " * 999_999 + "x",
    "\n" * 500_000,
    "ab" * 300_000,
    "0" * 400_000,
    "国" * 200_000,
    "ก" * 200_000,
    "👍" * 100_000,
    "!" * 400_000,
    "a\u0301" * 200_000,
    "\u00a0" * 300_000,
    "<|endoftext|>" * 30_000,
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_STUCK_SECONDS", "30")


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base", "p50k_base"])
def test_awkward_documents_neither_hang_nor_kill(name: str, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", AWKWARD)
    result = mill.prepare(path, tmp_path / "o", tokenizer=name, val="none")
    assert result.run["retries"] == 0
    codec = reference.encoding(name)
    documents = mill.open_dataset(tmp_path / "o")["train"].documents
    for text, found in zip(AWKWARD, documents, strict=True):
        assert codec.decode_bytes(found[:-1].tolist()) == text.encode()
        if text[0] != " ":  # tiktoken itself fails on a million spaces before a letter
            assert np.array_equal(found[:-1], codec.encode_ordinary(text))


@pytest.mark.parametrize("kind", ["qwen2", "deepseek", "spm"])
def test_nor_with_tokenizer_files(
    kind: str, tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if kind == "spm":
        tokenizer = train_sentencepiece(tmp_path / "t.model", texts[:200])
        import sentencepiece

        encode = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer)).encode
    else:
        from tokenizers import Tokenizer

        tokenizer = write_json(tmp_path / "t.json", kind)
        library = Tokenizer.from_file(str(tokenizer))
        library.encode_special_tokens = True
        encode = lambda text: library.encode(text, add_special_tokens=False).ids  # noqa: E731
    path = write_parquet(tmp_path / "a.parquet", AWKWARD)
    result = mill.prepare(path, tmp_path / "o", tokenizer=str(tokenizer), val="none")
    assert result.run["retries"] == 0
    documents = mill.open_dataset(tmp_path / "o")["train"].documents
    for text, found in zip(AWKWARD, documents, strict=True):
        assert np.array_equal(found[:-1], encode(text)), text[:10]


def test_a_line_of_300_megabytes(tmp_path: Path) -> None:
    words = "three hundred megabytes of words in one line of JSON, and no end in sight; "
    path = write_jsonl(tmp_path / "a.jsonl", ["before", words * 4_000_000, "after"])
    assert path.stat().st_size > 300_000_000
    result = mill.prepare(path, tmp_path / "o", val="none", workers=1, memory="3GB")
    assert result.run["retries"] == 0
    assert result.manifest.counts["documents"] == 3
    found = mill.open_dataset(tmp_path / "o")["train"].documents[1]
    codec = reference.encoding("gpt2")
    # The line is `words` four million times. Its first and its last are encoded otherwise than
    # those between: a word in the middle has the space that ends the one before it.
    three, two = codec.encode_ordinary(words * 3), codec.encode_ordinary(words * 2)
    between = len(three) - len(two)
    first = next(
        n for n in range(len(three)) if three[n : n + between] * 2 == three[n:][: 2 * between]
    )
    body = found[first : first + between * 3_999_990].reshape(-1, between)
    assert (body == body[0]).all()
    assert body[0].tolist() == three[first : first + between]
    assert codec.decode(found[:-1][-between * 20 :].tolist()) in words * 30
    assert len(found) == len(two) + 3_999_998 * between + 1
