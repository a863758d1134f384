"""The farm of tokenizers: a small sample, its oracle, what it reaches, and that it has teeth."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.inputs import ROOT
from support.tokenizer_files import added, write_json

from reliability.farm import ranks_files, sentencepiece_files
from reliability.farm.added_tokens import FLAGS, draw_added
from reliability.farm.comparing import compare, examine
from reliability.farm.documents import documents
from reliability.farm.drawing import draw, from_json
from reliability.farm.json_files import CHANGES, bpe, draw_json, json_file
from reliability.farm.oracle import json_oracle, load, unmatchable
from reliability.farm.rules import BEHAVIOURS, NORMALIZERS, PRE_TOKENIZERS, SCHEMES, metaspace
from reliability.farm.splits import check_splits
from reliability.farm.teeth import WIDER
from reliability.farm.vocabularies import Vocabulary

SAMPLE = range(500_000_000, 500_000_024)


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_drawn_tokenizer_gives_the_ids_of_its_library(seed: int, tmp_path: Path) -> None:
    result = examine(draw(seed, tmp_path), 300)
    assert result.documents + result.library_failed == 300
    assert result.differences == 0, f"{result.line}: {result.example}"


def test_the_reference_encoder_gives_the_same_ids(tmp_path: Path) -> None:
    for seed in SAMPLE[:8]:
        drawn = draw(seed, tmp_path)
        result = compare(drawn, documents(seed, 200, drawn.tokens), "reference")
        assert not result.is_fast
        assert result.differences == 0, f"{result.line}: {result.example}"


def test_a_seed_gives_the_same_file_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from reliability.farm.drawing import draw\n"
        "for seed in map(int, sys.argv[2:]): draw(seed, Path(sys.argv[1]))"
    )
    seeds = SAMPLE[:6]
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *map(str, reversed(seeds))],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        check=True,
    )
    there = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()
    }
    assert len(there) == len(seeds)
    for seed in seeds:
        path = draw(seed, tmp_path).path
        assert hashlib.sha256(path.read_bytes()).hexdigest() == there[path.name]


# --- the oracle's exception: text is text ----------------------------------------------------


def words_file(vocab: dict[str, int], tokens: list[Any], **options: Any) -> str:
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab, **options}
    return json.dumps(json_file(None, {"type": "WhitespaceSplit"}, model, tokens))


def test_a_special_tokens_string_never_becomes_its_id() -> None:
    vocab = {"[UNK]": 0, "a": 1, "<s>": 2, "b": 3}
    content = words_file(vocab, [added("[UNK]", 0, special=True), added("<s>", 2, special=True)])
    library = load(content)
    assert library.encode("a <s> b", add_special_tokens=False).ids == [1, 2, 3]
    assert json_oracle(content)(["a <s> b", "a b"]) == [[1, 0, 3], [1, 3]]


def test_unknown_text_keeps_the_unknown_tokens_id() -> None:
    vocab = {"[UNK]": 0, "a": 1, "b": 3, "<p>": 2}
    content = words_file(vocab, [added("[UNK]", 0, special=True)])
    assert json_oracle(content)(["a z b", "<p>"]) == [[1, 0, 3], [2]]


def test_the_unknown_tokens_own_string_is_text() -> None:
    letters = {letter: number for number, letter in enumerate("<unk>a")}
    ids = {**letters, "<u": 6, "nk": 7, "nk>": 8, "<unk>": 9}
    merges = (("<", "u"), ("n", "k"), ("nk", ">"), ("<u", "nk>"))
    model = bpe(Vocabulary(ids, merges), unk_token="<unk>")
    content = json.dumps(json_file(None, None, model, [added("<unk>", 9, special=True)]))
    assert load(content).encode("a<unk>", add_special_tokens=False).ids == [5, 9]
    assert json_oracle(content)(["a<unk>", "aé", "é"]) == [[5, 6, 8], [5, 9], [9]]


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_merges_and_whole_words_cannot_make_a_special_token(
    ignore_merges: bool, tmp_path: Path
) -> None:
    file = json.loads(write_json(tmp_path / "t.json", "llama3", tokens=[]).read_text())
    the = file["model"]["vocab"]["the"]
    file["added_tokens"] = [added("the", the, special=True)]
    file["model"]["ignore_merges"] = ignore_merges
    content = json.dumps(file)
    assert load(content).encode("the", add_special_tokens=False).ids == [the]
    ids = json_oracle(content)(["the", " the", "a the b the"])
    assert all(the not in (one or ()) for one in ids)
    assert all(ids), "the text is not lost"


def test_plain_added_tokens_keep_their_ids_where_special_ones_cannot_match() -> None:
    vocab = {"[UNK]": 0, "a": 1, "<s>": 2}
    tokens = [
        added("<s>", 2, special=True),
        added("<x>", 3, special=True),
        added("<y>", 4, special=False),
    ]
    content = words_file(vocab, tokens)
    assert json_oracle(content)(["<s> <y>", "<y>"]) == [[0, 4], [4]]
    assert load(json.dumps(unmatchable(json.loads(content)))).token_to_id("<y>") == 4


# --- what the drawing reaches ----------------------------------------------------------------


def types_in(rule: Any) -> set[str]:
    if isinstance(rule, list):
        return {name for item in rule for name in types_in(item)}
    if not isinstance(rule, dict):
        return {"None"} if rule is None else set()
    inner = [*rule.get("normalizers", ()), *rule.get("pretokenizers", ())]
    return {str(rule.get("type"))} | types_in(inner)


@pytest.fixture(scope="module")
def drawn_files() -> list[tuple[str, dict[str, Any]]]:
    return [draw_json(random.Random(number)) for number in range(800)]


def test_every_normalizer_and_pre_tokenizer_is_drawn(
    drawn_files: list[tuple[str, dict[str, Any]]],
) -> None:
    normalizers = {name for _, file in drawn_files for name in types_in(file["normalizer"])}
    assert {*NORMALIZERS, "Sequence"} <= normalizers
    assert any(f["normalizer"] == {"type": "Sequence", "normalizers": []} for _, f in drawn_files)
    steps = {name for _, file in drawn_files for name in types_in(file["pre_tokenizer"])}
    assert {*PRE_TOKENIZERS, "Sequence"} <= steps
    shown = json.dumps([file["pre_tokenizer"] for _, file in drawn_files])
    for behaviour in BEHAVIOURS:
        assert f'"behavior": "{behaviour}"' in shown
    for scheme in SCHEMES:
        for splits in (False, True):
            assert json.dumps(metaspace(scheme, splits)) in shown


def test_every_model_flag_and_change_is_drawn(
    drawn_files: list[tuple[str, dict[str, Any]]],
) -> None:
    models = [file["model"] for _, file in drawn_files]
    assert {m["type"] for m in models} == {"BPE", "Unigram", "WordPiece", "WordLevel"}
    plain = [m for m in models if m["type"] == "BPE"]
    for flag in ("byte_fallback", "ignore_merges", "fuse_unk"):
        assert {m[flag] for m in plain} == {False, True}
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        assert any(m[key] for m in plain)
    lines = " ".join(line for line, _ in drawn_files)
    for change in CHANGES:
        assert (change.__doc__ or "?").rstrip(".") in lines
    assert "as it is" in lines


def test_added_tokens_have_every_combination_of_flags() -> None:
    rng = random.Random(0)
    seen = {
        (token["special"], *(token[flag] for flag in FLAGS))
        for _ in range(1500)
        for token in draw_added(rng, {"a": 0, "the": 1}, 1.0)
    }
    assert len(seen) == 2 ** (1 + len(FLAGS))


def test_every_pattern_and_training_option_is_drawn() -> None:
    rng = random.Random(0)
    lines = {ranks_files.draw_ranks(rng)[0] for _ in range(150)}
    for words in ("consistent", "swapped", "closed up", "holes", "another order", "parts are not"):
        assert any(words in line for line in lines), words
    options = [sentencepiece_files.draw_options(rng) for _ in range(300)]
    rules = {one["normalization_rule_name"] for one in options}
    assert rules == {*sentencepiece_files.RULES, "own"}
    assert {one["model_type"] for one in options} == {"bpe", "unigram", "char", "word"}
    for name in ("treat_whitespace_as_suffix", "user_defined_symbols", "control_symbols"):
        assert any(one.get(name) for one in options)
        assert not all(one.get(name) for one in options)


def test_documents_are_short_and_hold_the_tokens_and_the_known_cases() -> None:
    texts = documents("test", 20_000, ["<tok>", "  "])
    sizes = sorted(len(text.encode()) for text in texts)
    assert 16 <= sizes[len(sizes) // 2] <= 60
    assert sizes[0] == 0
    assert sizes[-1] > 2000
    assert "<tok>" in texts, "a whole document that is a token"
    whole = "\n".join(texts)
    for piece in (
        "は\u3099",
        "\x85",
        "½\u0345",
        "<0x41>",
        "▁",
        "\ufeff",
        "<tok><tok>",
        "\u0344\u0344",
    ):
        assert piece in whole, piece
    assert documents("test", 20, ["<tok>"]) == documents("test", 20, ["<tok>"])


# --- teeth -----------------------------------------------------------------------------------


def test_a_wrong_id_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bpe(Vocabulary({"a": 0, "b": 1, "ab": 2}, (("a", "b"),)))
    drawn = from_json(1, "test", json_file(None, None, model, []), tmp_path)
    assert compare(drawn, ["ab", "a", ""]).differences == 0
    oracle = json_oracle(drawn.path.read_text())
    monkeypatch.setattr(
        "reliability.farm.comparing.open_oracle",
        lambda path, pattern: (
            lambda texts: [[*(ids or []), 0] for ids in oracle(texts[:1])] + oracle(texts[1:])
        ),
    )
    result = compare(drawn, ["ab", "a", ""])
    assert result.differences == 1
    assert "'ab'" in result.example


@pytest.mark.parametrize("name", WIDER)
def test_a_wider_list_of_proven_rules_is_noticed(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reliability.farm.teeth", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]


@pytest.mark.parametrize("scheme", ["gpt2", "llama3", "deepseek", "gpt4o"])
def test_short_texts_are_split_as_the_library_splits_them(scheme: str) -> None:
    result = check_splits(scheme, 3)
    assert result.texts > 2000
    assert result.differences == 0, result.example
