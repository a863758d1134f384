"""Tokenizer files that are unusual or damaged: they give the ids of the library, or a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.encoding import by_library, characters_json, encoded
from support.odd_files import LETTERS, PAIRS, PLAIN, block, piece, real, varint, whole, write_model
from support.tokenizer_files import SIZE, added, vocabulary, write_json

from reliability.farm.oracle import open_oracle
from tokenmill.texts import from_bytes
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.files import find_encoding


def assert_exact(path: Path, documents: list[str]) -> None:
    assert encoded(path, documents) == open_oracle(path)(documents)


NAN = float("nan")


TEXTS = ["ab", "abc", "abcabc", "a\nb", " ab  bc", "cab"]


def test_a_model_written_as_usual_is_proven(tmp_path: Path) -> None:
    path = write_model(tmp_path / "t.model", PAIRS + LETTERS)
    assert find_encoding(str(path)).rules == "sentencepiece"
    assert_exact(path, TEXTS)


@pytest.mark.parametrize(
    ("pieces", "normalizer"),
    [
        (piece("ab", NAN) + piece("bc", NAN) + piece("ca", NAN) + LETTERS, PLAIN),
        (piece("ab", -1, 9) + piece("bc", -2) + LETTERS, PLAIN),
        (PAIRS + LETTERS + piece("<0x+A>", -3), PLAIN),
        (PAIRS + LETTERS, block(3, whole(3, 0) + whole(4, 0)) + block(3, whole(4, 0))),
        (PAIRS + LETTERS, block(3, whole(3, 0) + whole(4, 0) + block(3, b"x"))),
        (PAIRS + LETTERS, block(3, whole(3, 0) + whole(4, 0) + whole(3, 2**64))),
        (block(1, block(1, b"ab") + real(2, -1) + whole(3, 5) + block(3, b"x")) + LETTERS, PLAIN),
        (LETTERS + PAIRS + varint(9 << 3 | 3) + varint(9 << 3 | 4), PLAIN),
    ],
    ids=["nan", "kind", "byte", "twice", "type", "large", "piece", "group"],
)
def test_a_model_written_in_another_way_goes_to_the_library(
    tmp_path: Path, pieces: bytes, normalizer: bytes
) -> None:
    path = write_model(tmp_path / "t.model", pieces, normalizer)
    encoding = find_encoding(str(path))
    assert not encoding.rules
    assert encoding.why_slow
    assert_exact(path, TEXTS)


@pytest.mark.parametrize("name", ["<0x+A>", "<0xc3>", "<0x1>"])
def test_a_token_that_looks_like_a_byte(tmp_path: Path, name: str) -> None:
    model = json.loads(characters_json(tmp_path / "t.json").read_text())["model"]
    vocab = {**model["vocab"], name: len(model["vocab"])}
    path = characters_json(tmp_path / "t.json", model={**model, "vocab": vocab})
    assert find_encoding(str(path)).why_slow == f"the token {name} looks like a byte"
    assert_exact(path, ["a\nb", "hello \x01", "é"])


def test_merges_that_the_library_takes_for_a_comment(tmp_path: Path) -> None:
    vocab, merges = vocabulary()
    grown = ["#v", "#ve", "#ver", "#vers", "#versi", "#versio", "#version", "#versions"]
    names = {name: SIZE + i for i, name in enumerate(grown)}
    more = [f"{name[:-1]} {name[-1]}" for name in grown]
    model = {"type": "BPE", "vocab": {**vocab, **names}, "merges": [*more, *merges]}
    path = write_json(tmp_path / "t.json", "llama3", tokens=(), model=model)
    assert find_encoding(str(path)).rules == "llama3"
    assert_exact(path, ["#versions", "a #version b"])


def test_a_model_that_does_not_name_its_type(tmp_path: Path) -> None:
    vocab, merges = vocabulary()
    model: dict[str, Any] = {"vocab": vocab, "merges": merges, "unk_token": "a"}
    path = write_json(tmp_path / "t.json", "gpt2", tokens=(), model=model)
    assert find_encoding(str(path)).rules == "gpt2"
    assert_exact(path, ["hello there", "x"])
    odd = {**model, "byte_fallback": 0}
    path = write_json(tmp_path / "t.json", "gpt2", tokens=(), model=odd)
    assert find_encoding(str(path)).why_slow.startswith("the model WordLevel")
    assert_exact(path, ["hello there", "x"])


def test_a_special_token_with_another_id_than_in_the_vocabulary(tmp_path: Path) -> None:
    vocab, _ = vocabulary()
    for ignore_merges in (False, True):
        model = json.loads(write_json(tmp_path / "t.json").read_text())["model"]
        path = write_json(
            tmp_path / "t.json", "gpt2", tokens=[added("hello", SIZE + 5, special=True)],
            model={**model, "vocab": {**vocab, "hello": SIZE}, "ignore_merges": ignore_merges},
        )  # fmt: skip
        found = [
            ExactEncoder(find_encoding(str(path)), choice).encode(from_bytes([b"hello"]))[0]
            for choice in ("auto", "reference")
        ]
        assert found[0].tolist() == found[1].tolist()
        assert SIZE not in found[0].tolist()
        assert_exact(path, ["hello", "say hello there"])


def test_a_special_token_behind_a_prefix_of_words(tmp_path: Path) -> None:
    vocab = {"a": 0, "##b": 1, "b": 2, "ab": 3, "##a": 4}
    model = {
        "type": "BPE", "vocab": vocab, "merges": ["a ##b"], "continuing_subword_prefix": "##",
    }  # fmt: skip
    path = write_json(
        tmp_path / "t.json", tokens=[added("ab", 3, special=True)], model=model,
        normalizer=None, pre_tokenizer={"type": "WhitespaceSplit"}, post_processor=None,
        decoder=None,
    )  # fmt: skip
    assert by_library(path, ["ab"]) == [[3]], "what the library gives"
    assert encoded(path, ["ab", "a ab"]) == [[0, 1], [0, 0, 1]]


def test_a_special_token_that_is_one_byte_stays(tmp_path: Path) -> None:
    """Without its token that text could not be encoded."""
    tokens = [added("</s>", 2, special=True), added("<0x42>", 3 + 0x42, special=True)]
    path = characters_json(tmp_path / "t.json", added_tokens=tokens)
    assert encoded(path, ["aB"])[0][-1] == 3 + 0x42
    assert encoded(path, ["aB</s>"])[0].count(3 + 0x42) == 1
