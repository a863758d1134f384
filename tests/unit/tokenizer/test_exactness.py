"""Ids equal those of the reference, for every input and every way to run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.cases import quick
from support.commands import token_bytes
from support.exactness import (
    FAST,
    references,  # noqa: F401
)
from support.inputs import write_jsonl, write_parquet

import tokenmill
from reliability import r10_right_tokens
from tokenmill.errors import EncoderError
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.bundled import ENCODINGS, bundled_ranks_file, get_encoding
from tokenmill.tokenizer.encoders.exact import ExactEncoder


@pytest.fixture(scope="module")
def encoders() -> dict[str, ExactEncoder]:
    return {name: ExactEncoder(get_encoding(name), "auto") for name in FAST}


def assert_equal(encoder: ExactEncoder, codec: object, texts: list[str]) -> None:
    ids, offsets = encoder.encode(from_bytes([text.encode() for text in texts]))
    assert len(offsets) == len(texts) + 1
    for index, text in enumerate(texts):
        expected = codec.encode_ordinary(text)  # type: ignore[attr-defined]
        assert ids[offsets[index] : offsets[index + 1]].tolist() == expected, repr(text[:200])


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("format", quick(["nanogpt", "llmc"], "llmc"))
def test_bytes_equal_the_slow_twin(
    name: str, format: str, inputs: list[Path], tmp_path: Path
) -> None:
    if format == "nanogpt":
        expected = reference.nanogpt(inputs, name, 0.02, seed=3)
        tokenmill.prepare(inputs, tmp_path / "o", tokenizer=name, val=0.02, seed=3, workers=0)
    else:
        expected = reference.llmc(inputs, "fw", 100_000, name)
        tokenmill.prepare(
            inputs, tmp_path / "o", tokenizer=name, format=format, shard_tokens="100k", name="fw",
            workers=0,
        )  # fmt: skip
    assert token_bytes(tmp_path / "o") == expected


@pytest.mark.parametrize("encoder", ["gigatoken", "reference"])
def test_p50k_base_with_the_hole_in_its_ranks(
    encoder: str, inputs: list[Path], tmp_path: Path
) -> None:
    inputs = [write_jsonl(tmp_path / "a.jsonl", ["  x\n    y" * 50, "naïve", "\t\t\tz  " * 9])]
    tokenmill.prepare(inputs, tmp_path / "o", tokenizer="p50k_base", encoder=encoder, workers=0)
    assert token_bytes(tmp_path / "o") == reference.nanogpt(inputs, "p50k_base")


def test_holes_are_filled_with_what_no_text_holds() -> None:
    from tokenmill.tokenizer.families.tiktoken import fill_holes, parse_ranks

    for name in ("gpt2", "cl100k_base", "o200k_base"):
        content = bundled_ranks_file(name)
        assert fill_holes(content) == content
    before = parse_ranks(bundled_ranks_file("p50k_base"), Path("x"))
    after = parse_ranks(fill_holes(bundled_ranks_file("p50k_base")), Path("x"))
    (filler,) = after.keys() - before.keys()
    assert after[filler] == 50256
    with pytest.raises(UnicodeDecodeError):
        filler.decode()
    assert not any(filler in token for token in before)


@pytest.mark.parametrize("name", FAST)
def test_fuzzed_documents(name: str) -> None:
    """The scorecard's R10, whose code this is, has 10,000."""
    special = list(ENCODINGS[name].special_tokens)
    r10_right_tokens.compare(name, r10_right_tokens.fuzzed(random.Random(name), 500, special))


@given(st.lists(st.text(), max_size=8), st.sampled_from(FAST))
def test_any_text_gives_the_ids_of_the_reference(
    encoders: dict[str, ExactEncoder], references: dict[str, object], texts: list[str], name: str
) -> None:
    assert_equal(encoders[name], references[name], texts)


def test_a_document_of_the_gap_goes_to_the_reference_and_is_counted(
    encoders: dict[str, ExactEncoder], references: dict[str, object]
) -> None:
    encoder = ExactEncoder(get_encoding("gpt2"), "auto")
    texts = ["plain", "x\u088f's y", "ไทย" * 50, "字" * 50 + "\U000323b0's", ""]
    assert_equal(encoder, references["gpt2"], texts)
    assert encoder.stats.reference_documents == 2
    strict = ExactEncoder(get_encoding("gpt2"), "gigatoken")
    with pytest.raises(EncoderError, match="not exact"):
        strict.encode(from_bytes([text.encode() for text in texts]))


def test_where_the_reference_panics_the_fast_encoder_serves() -> None:
    encoder = ExactEncoder(get_encoding("gpt2"), "reference")
    ids, _ = encoder.encode(from_bytes([b" " * 1_000_000 + b"x"]))
    assert len(ids) > 0
    assert encoder.stats.reference_failures == 1


def test_the_encoder_check_finds_a_wrong_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tokenmill.tokenizer.encoders import fast

    path = write_parquet(tmp_path / "a.parquet", ["hello world, how are you"] * 50)
    right = fast.FastEncoder.encode

    def wrong(self: object, texts: object) -> object:
        ids, offsets = right(self, texts)  # type: ignore[arg-type]
        ids = ids.copy()
        ids[::5] = 11
        return ids, offsets

    monkeypatch.setattr(fast.FastEncoder, "encode", wrong)
    with pytest.raises(EncoderError, match="differ"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)
    tokenmill.prepare(path, tmp_path / "unchecked", workers=0, encoder_check=False)


def test_patterns_and_special_tokens_are_those_of_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiktoken_ext import openai_public

    hashes: dict[str, str] = {}

    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        hashes["sha256"] = expected_hash
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", load)
    for name in ("r50k_base", "p50k_base", "cl100k_base", "o200k_base"):
        theirs, ours = getattr(openai_public, name)(), ENCODINGS[name]
        assert ours.pattern == theirs["pat_str"]
        assert ours.special_tokens == theirs["special_tokens"]
        assert ours.sha256 == hashes["sha256"]
        assert ours.vocab_size == reference.encoding(name).max_token_value + 1


def test_a_damaged_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenmill.tokenizer import bundled as tokenizer

    ranks = tokenizer._unchecked_ranks(get_encoding("gpt2"))
    ranks.popitem()
    monkeypatch.setattr(tokenizer, "_unchecked_ranks", lambda _: ranks)
    with pytest.raises(EncoderError, match="damaged"):
        bundled_ranks_file("gpt2")
