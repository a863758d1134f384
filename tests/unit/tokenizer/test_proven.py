"""The fast encoder serves only what is proven; all else has the library's ids too."""

from __future__ import annotations

import base64
import io
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import quick
from support.encoding import by_library, characters_json, encoded
from support.inputs import ROOT, write_parquet
from support.proven import DIGITS, LEVEL, code_points
from support.tokenizer_files import (
    ADDED,
    SIZE,
    added,
    letters,
    rules,
    split,
    vocabulary,
    write_json,
)
from tokenizers import pre_tokenizers

import tokenmill as mill
from reliability.farm.oracle import open_oracle
from reliability.farm.proven_styles import try_draw
from tokenmill.errors import UsageError
from tokenmill.texts import count_strings, documents_with, from_bytes
from tokenmill.tokenizer.bundled import PATTERNS, bundled_ranks
from tokenmill.tokenizer.encoders.cuts import next_cut
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.encoders.preparation import nfkc_active
from tokenmill.tokenizer.encoders.screens import CodePoints
from tokenmill.tokenizer.files import find_encoding
from tokenmill.tokenizer.proof import gap_tables
from tokenmill.tokenizer.proof.piece_model import PieceModel
from tokenmill.tokenizer.proof.proven import (
    _same_order,
    judge_json,
    judge_model,
    judge_ranks,
    overlap,
)
from tokenmill.tokenizer.proof.rules import PROVEN_VERSIONS, RULE_SETS


def milled(path: Path, texts: list[str], folder: Path, **options: Any) -> list[list[int]]:
    """The ids that `prepare` writes for each document."""
    source = write_parquet(folder / "in.parquet", texts)
    out = folder / f"out{random.random()}"
    mill.prepare(source, out, tokenizer=str(path), val="none", eot="none", workers=0, **options)
    part = mill.open_dataset(out)["train"]
    spans = [part.documents.span(i) for i in range(len(part.documents))]
    return [part.tokens[start:stop].tolist() for start, stop in spans]


def train_model(path: Path, texts: list[str], **options: Any) -> Path:
    import sentencepiece

    model = io.BytesIO()
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2,
        **{"model_type": "bpe", "vocab_size": 1500, "byte_fallback": True,
           "character_coverage": 0.999, **options},
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return path


def test_a_sentencepiece_model_with_the_default_normalization(
    tmp_path: Path, texts: list[str]
) -> None:
    import sentencepiece

    path = train_model(tmp_path / "t.model", [*texts[:300], "はばぱ カガ ば が " * 50])
    assert find_encoding(str(path)).rules == "sentencepiece normalized"
    odd = ["は\u3099", "\x85a\x85", "\u0344\u0344", "½\u0345", "  a   b ", "か\u3099か\u3099"]
    documents = [*odd, *(unicodedata.normalize("NFD", text) for text in texts[:150])]
    library = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    assert encoded(path, documents) == library.encode(documents, out_type=int)
    assert milled(path, odd, tmp_path) == library.encode(odd, out_type=int)


def test_the_pattern_of_llama3_at_the_end_of_a_text(tmp_path: Path) -> None:
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)} | {b"\n ": 256, b"he": 257, b"llo": 259}
    ranks |= {b"ll": 258, b"hello": 260}
    path = tmp_path / "t.tiktoken"
    lines = sorted(ranks.items(), key=lambda item: item[1])
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(t), r) for t, r in lines))
    documents = ["hello world\n ", "a\n \n ", "\n ", " \n", "x \r\n ", "hello"]
    for name, pattern in PATTERNS.items():
        codec = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        assert find_encoding(str(path), name).rules == f"tiktoken {name}"
        assert encoded(path, documents, name) == [codec.encode_ordinary(t) for t in documents]


@pytest.mark.parametrize(
    ("name", "tokens", "documents"),
    [
        (
            "llama3",
            [added("<x>", SIZE, special=False, rstrip=True), added("  ", SIZE + 1, special=False)],
            ["a<x>  b", "a  b", "a<x>b"],
        ),
        (
            "llama3",
            [
                added("qx", SIZE, special=False),
                added("xz", SIZE + 1, special=False),
                added("qxz", SIZE + 2, special=False, normalized=True),
            ],
            ["qxz", "aqxza", "qx", "xz", "qqxzxz", "zzz"],
        ),
        (
            "qwen2",
            [added("café", SIZE, special=False), added("e\u0301x", SIZE + 1, special=False)],
            ["café\u0323", "cafe\u0301", "café", "e\u0301x", "\u00e9x", "none"],
        ),
        (
            "llama3",
            [added("wqrd", SIZE, special=False, single_word=True, lstrip=True)],
            ["a  wqrd b", "wqrds", "swqrd", "wqrd"],
        ),
    ],
)
def test_added_tokens_that_are_not_special(
    tmp_path: Path, name: str, tokens: list[dict[str, Any]], documents: list[str]
) -> None:
    path = write_json(tmp_path / "t.json", name, tokens=tokens)
    assert find_encoding(str(path)).rules, "documents without such a token are fast"
    assert encoded(path, documents) == by_library(path, documents)
    assert milled(path, documents, tmp_path) == by_library(path, documents)


SPACED = [
    "hello world", "  hello", " ", "    ", "a  b", "hello  hello", "x\n\n y", "\u2581hello", "é 字",
    "ab  abc", "", "hello\u2581\u2581 hello", "<0x41>", "s>", "\n\n\n",
]  # fmt: skip


def test_a_file_like_llama_2_with_added_white_space(tmp_path: Path) -> None:
    path = characters_json(tmp_path / "t.json")
    assert find_encoding(str(path)).rules == "llama2"
    assert encoded(path, SPACED) == by_library(path, SPACED)
    specials = json.loads(path.read_text())["added_tokens"]
    for flags in ({}, {"normalized": True}, {"lstrip": True}, {"rstrip": True}):
        vocab = json.loads(path.read_text())["model"]["vocab"]
        white = [
            added("  ", len(vocab), special=False, **flags),
            added("\n\n", vocab["\n\n"], special=False),
        ]
        other = characters_json(tmp_path / "w.json", added_tokens=[*specials, *white])
        assert encoded(other, SPACED) == by_library(other, SPACED), flags


def test_a_merge_that_is_listed_twice(tmp_path: Path) -> None:
    merges = vocabulary()[1]
    model = json.loads(write_json(tmp_path / "t.json").read_text())["model"]
    twice = {**model, "merges": [*merges, *merges[:40]]}
    path = write_json(tmp_path / "t.json", "gpt2", model=twice)
    assert find_encoding(str(path)).why_slow == "a merge is listed twice"
    documents = ["the then there", "in an on en", "hello world " * 5]
    assert encoded(path, documents) == by_library(path, documents)
    assert encoded(path, documents) != by_library(
        write_json(tmp_path / "u.json", "gpt2"), documents
    )


@pytest.mark.parametrize("first", [
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    {"type": "Punctuation", "behavior": "Isolated"},
])  # fmt: skip
def test_digits_or_punctuation_before_split(tmp_path: Path, first: dict[str, Any]) -> None:
    level = {**LEVEL, "use_regex": False}
    steps = [first, split(PATTERNS["llama3"]), level]
    path = write_json(
        tmp_path / "t.json", tokens=(), normalizer=None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
    )  # fmt: skip
    why = f"pre-tokenizer {first['type']} before Split before ByteLevel is not proven"
    assert find_encoding(str(path)).why_slow.startswith(why)
    documents = ["a  123", "a  |", "a  1|2  !", "  "]
    assert encoded(path, documents) == by_library(path, documents)
    assert milled(path, documents, tmp_path) == by_library(path, documents)


def test_added_tokens_that_overlap_special_ones(tmp_path: Path) -> None:
    tokens = [
        added("<|zap|>", SIZE, special=True), added("zap", SIZE + 1, special=False),
        added("zipx", SIZE + 2, special=True), added("xzop", SIZE + 3, special=False),
    ]  # fmt: skip
    path = write_json(tmp_path / "t.json", "llama3", tokens=tokens)
    documents = ["a<|zap|>b", "zap", "zipxzop", "zipx xzop", "none"]
    assert encoded(path, documents) == by_library(path, documents)


def test_a_byte_that_has_no_token(tmp_path: Path) -> None:
    model = json.loads(characters_json(tmp_path / "t.json").read_text())["model"]
    vocab = {name: number for name, number in model["vocab"].items() if name != "<0xC3>"}
    path = characters_json(tmp_path / "t.json", model={**model, "vocab": vocab})
    assert find_encoding(str(path)).why_slow == "there is no token for byte 0xc3"
    assert encoded(path, ["aé", "é字"]) == by_library(path, ["aé", "é字"])


def test_user_defined_symbols_go_to_the_reference(tmp_path: Path, texts: list[str]) -> None:
    import sentencepiece

    path = train_model(
        tmp_path / "t.model", texts[:200], normalization_rule_name="identity",
        remove_extra_whitespaces=False, user_defined_symbols=["ctl"],
    )  # fmt: skip
    assert find_encoding(str(path)).rules == "sentencepiece"
    documents = ["a ctl b", "ctl", "xctly", "plain text"]
    library = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    assert encoded(path, documents) == library.encode(documents, out_type=int)


def test_characters_that_are_newer_than_the_library_go_to_the_reference(tmp_path: Path) -> None:
    import tiktoken

    codec = tiktoken.Encoding(
        "t", pat_str=PATTERNS["gpt2"], mergeable_ranks=bundled_ranks("gpt2"), special_tokens={}
    )
    documents = ["x\u088f's y", "\U000323b0's", "plain"]
    encoder = ExactEncoder(find_encoding("gpt2"), "auto")
    ids, offsets = encoder.encode(from_bytes([text.encode() for text in documents]))
    found = [part.tolist() for part in np.split(ids, offsets[1:-1])]
    assert found == [codec.encode_ordinary(text) for text in documents]
    assert encoder.stats.reference_documents == 2
    marks = ["a\u0897\u0323", "x\u1ac5\u0345 y", "\U00011938\U00011930"]
    path = write_json(tmp_path / "t.json", "qwen2")
    assert encoded(path, marks) == by_library(path, marks)


def test_a_document_that_is_a_special_tokens_string_is_text_for_every_encoder(
    tmp_path: Path,
) -> None:
    """The library alone would give the special id: the model builds it from text."""
    model = json.loads(characters_json(tmp_path / "t.json").read_text())["model"]
    for changes in ({"ignore_merges": True}, {}):
        path = characters_json(tmp_path / "t.json", model={**model, **changes})
        assert find_encoding(str(path)).guarded
        for text in ("</s>", "<s>"):
            found = [
                ExactEncoder(find_encoding(str(path)), choice).encode(from_bytes([text.encode()]))
                for choice in ("auto", "reference")
            ]
            assert found[0][0].tolist() == found[1][0].tolist()
            assert not set(found[0][0].tolist()) & {0, 1, 2}, (changes, text)
    assert by_library(path, ["</s>"]) == [[3 + ord(" ") * 0 + model["vocab"]["\u2581"] - 3, 2]]


def test_a_special_token_on_the_way_to_a_longer_one_does_not_matter(tmp_path: Path) -> None:
    """The library's ids stand where no special token comes out; else they are made without it."""
    vocab, _ = vocabulary()
    name = letters(b" the")
    path = write_json(tmp_path / "t.json", "gpt2", tokens=[added(name, vocab[name], special=True)])
    encoding = find_encoding(str(path))
    assert (encoding.rules, encoding.guarded, encoding.screened) == ("gpt2", (name,), (" the",))
    assert not encoding.cuttable
    longer = [" there", " they then", "a bcd"]
    assert encoded(path, longer) == by_library(path, longer)
    assert by_library(path, ["in the"])[0][-1] == vocab[name], "what the library gives"
    found = [
        ExactEncoder(encoding, choice).encode(from_bytes([b"in the"]))[0].tolist()
        for choice in ("auto", "reference")
    ]
    assert found[0] == found[1]
    assert vocab[name] not in found[0]


def test_words_and_pieces_that_are_special_stay_text(tmp_path: Path) -> None:
    vocab = {"[UNK]": 0, "[CLS]": 1, "hello": 2, "world": 3}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    tokens = [added("[UNK]", 0, special=True), added("[CLS]", 1, special=True)]
    path = write_json(
        tmp_path / "t.json", tokens=tokens, model=model, normalizer=None,
        pre_tokenizer={"type": "WhitespaceSplit"}, post_processor=None, decoder=None,
    )  # fmt: skip
    assert by_library(path, ["hello [CLS] x"]) == [[2, 1, 0]], "what the library gives"
    assert encoded(path, ["hello [CLS] x", "[UNK] world"]) == [[2, 0, 0], [0, 3]]


def test_added_tokens_keep_their_ids_when_special_ones_are_hidden(tmp_path: Path) -> None:
    model = json.loads(characters_json(tmp_path / "t.json").read_text())["model"]
    size = len(model["vocab"])
    tokens = [
        added("</s>", 2, special=True), added("<one>", size, special=True),
        added("<two>", size + 1, special=False), added("<unk>", 0, special=True),
    ]  # fmt: skip
    path = characters_json(
        tmp_path / "t.json", model={**model, "ignore_merges": True}, added_tokens=tokens
    )
    assert encoded(path, ["a<two>b", "<two>"])[1] == [size + 1]


def parsed(**changes: Any) -> dict[str, Any]:
    vocab, merges = vocabulary()
    model = {"type": "BPE", "vocab": vocab, "merges": merges} | changes.pop("model", {})
    return {"added_tokens": [], **rules("gpt2"), "model": model} | changes


def test_the_proven_list_is_explicit() -> None:
    assert judge_json(parsed()).rules == "gpt2"
    for form in ("NFC", "NFKC"):
        assert judge_json(parsed(normalizer={"type": form})).rules == f"gpt2 {form}"
        one = {"type": "Sequence", "normalizers": [{"type": form}]}
        assert judge_json(parsed(normalizer=one)).rules == f"gpt2 {form}"
    others = [
        {"type": "NFD"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
        {"type": "Nmt"}, {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFC"}]},
    ]  # fmt: skip
    for normalizer in others:
        verdict = judge_json(parsed(normalizer=normalizer))
        assert not verdict.rules
        assert "is not proven for the fast encoder" in verdict.why_slow


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        {**LEVEL, "add_prefix_space": True},
        {**LEVEL, "use_regex": False},
        {"type": "Sequence", "pretokenizers": [LEVEL, LEVEL]},
        {"type": "Sequence", "pretokenizers": [LEVEL, DIGITS]},
        {"type": "Sequence", "pretokenizers": [{**DIGITS, "individual_digits": False}, LEVEL]},
        {"type": "Sequence", "pretokenizers": [split(PATTERNS["llama3"]), LEVEL]},
        {"type": "Sequence", "pretokenizers": [
            {**split(PATTERNS["llama3"]), "behavior": "MergedWithNext"},
            {**LEVEL, "use_regex": False}]},
        {"type": "Sequence", "pretokenizers": [
            {**split(PATTERNS["llama3"]), "invert": True}, {**LEVEL, "use_regex": False}]},
        {"type": "Sequence", "pretokenizers": [
            split(PATTERNS["llama3"] + "|x"), {**LEVEL, "use_regex": False}]},
        {"type": "Sequence", "pretokenizers": [
            split(PATTERNS["llama3"]), split(PATTERNS["llama3"]), {**LEVEL, "use_regex": False}]},
    ],
)  # fmt: skip
def test_any_other_pre_tokenizer_goes_to_the_reference(pre_tokenizer: Any) -> None:
    assert not judge_json(parsed(pre_tokenizer=pre_tokenizer)).rules


def test_remove_inverted_is_the_same_as_isolated() -> None:
    removed = {**split(PATTERNS["llama3"]), "behavior": "Removed", "invert": True}
    steps = [removed, {**LEVEL, "use_regex": False}]
    verdict = judge_json(parsed(pre_tokenizer={"type": "Sequence", "pretokenizers": steps}))
    assert verdict.rules == "llama3"


def test_the_vocabulary_must_be_whole() -> None:
    vocab, merges = vocabulary()
    without = {token: number for token, number in vocab.items() if token != letters(b"a")}
    assert (
        judge_json(parsed(model={"vocab": without})).why_slow == "there is no token for byte 0x61"
    )
    same = {**vocab, "zzzz": 17}
    assert judge_json(parsed(model={"vocab": same})).why_slow == "two tokens have the same id"
    large = {**vocab, "zzzz": 1 << 21}
    assert "too large" in judge_json(parsed(model={"vocab": large})).why_slow
    foreign = {"vocab": {**vocab, "字": 9000, "a字": 9001}, "merges": [*merges, "a 字"]}
    assert "stand for no byte" in judge_json(parsed(model=foreign)).why_slow
    missing = {"merges": [*merges, "q q"]}
    assert "not in the vocabulary" in judge_json(parsed(model=missing)).why_slow
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        assert key in judge_json(parsed(model={key: "##"})).why_slow


def test_ranks_must_be_built_from_lower_ranks() -> None:
    ranks = {token: rank for token, rank in bundled_ranks("gpt2").items() if rank < 2000}
    assert judge_ranks(ranks, PATTERNS["gpt2"], "").rules == "tiktoken gpt2"
    assert "not proven" in judge_ranks(ranks, r"\S+|\s+", "").why_slow
    tokens = sorted(ranks, key=ranks.__getitem__)
    tokens[300], tokens[1900] = tokens[1900], tokens[300]
    swapped = {token: rank for rank, token in enumerate(tokens)}
    assert "cannot be built" in judge_ranks(swapped, PATTERNS["gpt2"], "").why_slow
    holes = {**ranks, b" aaaaaaaa a": 9000} | {b"aa": 2000, b" aa": 2001}
    assert judge_ranks(holes, PATTERNS["gpt2"], "").why_slow == "6,998 ranks are left out"
    moved = {**ranks, b"a": 5000, b"\xff\xff": ranks[b"a"]}
    assert "256 bytes" in judge_ranks(moved, PATTERNS["gpt2"], "").why_slow


def test_the_order_of_lines_in_a_ranks_file_does_not_matter(tmp_path: Path) -> None:
    lines = [
        b"%b %d\n" % (base64.b64encode(token), rank)
        for token, rank in bundled_ranks("gpt2").items()
        if rank < 3000
    ]
    (tmp_path / "a.tiktoken").write_bytes(b"".join(lines))
    random.Random(1).shuffle(lines)
    lines.sort(key=lambda line: line.endswith(b" 2999\n"))  # the largest rank last, as ever
    (tmp_path / "b.tiktoken").write_bytes(b"".join(lines))
    documents = ["hello there, how are you", "  the end\n"]
    found = [encoded(tmp_path / f"{name}.tiktoken", documents, "gpt2") for name in "ab"]
    assert found[0] == found[1]


def test_tokens_that_overlap() -> None:
    assert overlap(["<|zap|>"], ["zap"])
    assert overlap(["zap"], ["<|zap|>"])
    assert overlap(["zapx"], ["xzip"])
    assert overlap(["xzip"], ["zapx"])
    assert not overlap(["<s>", "</s>"], ["<b>", "\n\n"])


def test_pieces_of_one_score_are_runs_or_not_proven(tmp_path: Path, texts: list[str]) -> None:
    path = train_model(
        tmp_path / "t.model", texts[:300], normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    assert judge_model(PieceModel(path.read_bytes())) == ("sentencepiece", "")
    mark = "\u2581"

    def with_pieces(**scores: float) -> PieceModel:
        model = PieceModel(path.read_bytes())
        model.kinds |= dict.fromkeys(scores, 1)
        model.scores |= scores
        return model

    runs = {mark * length: -1e9 for length in range(2, 9)}
    assert judge_model(with_pieces(**runs)) == ("sentencepiece", "")
    same = "two pieces have the same score"
    assert judge_model(with_pieces(**runs, aeae=-1e9, ae=-2.5)).why_slow == same
    assert judge_model(with_pieces(**runs, **{mark * 9: -1e8})).why_slow == same
    assert judge_model(with_pieces(**runs, **{f"a{mark}": -1e8})).why_slow == same
    assert judge_model(with_pieces(aei=-0.5, eia=-0.5, ae=-0.25)).why_slow == same


def test_runs_are_merged_in_the_same_order_only_from_the_left() -> None:
    assert all(_same_order([1] * n, {1, 2, 3, 4}) for n in range(2, 40))
    assert all(_same_order([1] * n, {1, *range(2, 15), 16}) for n in range(2, 70))
    assert not _same_order([1, 2, 1], {1, 2, 3}), "from the right it would differ"


WORDS = [
    "word",
    " next",
    "Ab",
    " Cd",
    "слово",
    " ещё",
    "한국",
    " 말",
    "漢字",
    "，",
    "。",
    "かな",
    "、",
]


OTHERS = [
    "12", "½", "e\u0301", "'s", "...", "\n", "\n\n ", "  ", "\u0338", "\u3099", "\u1161", "I'", "/",
    "ﬁ", "\r\n",
]  # fmt: skip


@pytest.mark.parametrize(
    "rules", quick([name for name, rules in RULE_SETS.items() if rules.cuttable], first=5)
)
def test_a_text_may_be_cut_between_words(rules: str, tmp_path: Path) -> None:
    """The library's ids of the pieces, end to end, are those of the whole."""
    drawn = try_draw(rules, 1, tmp_path)
    assert drawn is not None
    oracle = open_oracle(drawn.path, drawn.pattern)
    rng = random.Random(rules)
    cut_places = 0
    for _ in range(300):
        text = "".join(rng.choices(WORDS * 3 + OTHERS, k=rng.randrange(2, 60))).encode()
        pieces, at = [], 0
        while (cut := next_cut(text, at + 1, len(text))) >= 0:
            pieces.append(text[at:cut].decode())
            at = cut
        pieces.append(text[at:].decode())
        cut_places += len(pieces) - 1
        whole, *apart = oracle([text.decode(), *pieces])
        assert whole == [number for ids in apart for number in ids or []], text.decode()
    assert cut_places > 300, "not for want of places"


def test_another_version_of_a_library_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ExactEncoder(find_encoding("gpt2"), "auto").is_fast
    monkeypatch.setitem(PROVEN_VERSIONS, "gigatoken", ("0.9.0",))
    tok = mill.Tokenizer("gpt2")
    encoder = ExactEncoder(find_encoding("gpt2"), "auto")
    assert not encoder.is_fast
    assert "gigatoken 0.10.0 is not proven" in tok.why_slow
    assert "pip install gigatoken==0.9.0" in tok.why_slow


@given(
    st.lists(st.text(st.sampled_from("ab 12é²٣½ก่字か\u3099\u0301\U000323b0\u088f𝟘"), max_size=40)),
    st.sampled_from([gap_tables.GAP, nfkc_active(), gap_tables.NUMERALS]),
)
def test_code_points_are_found_in_any_text(documents: list[str], table: gap_tables.Ranges) -> None:
    ranges = tuple(r for r in table if r[0] >= 0x80)
    points = code_points(ranges)
    texts = from_bytes([document.encode() for document in documents])
    holding = [i for i, d in enumerate(documents) if any(ord(c) in points for c in d)]
    finder = CodePoints(ranges)
    assert finder.documents(texts) == holding
    joined = "".join(documents)
    at = [len(joined[:i].encode()) for i, c in enumerate(joined) if ord(c) in points]
    assert sorted(finder.positions(texts).tolist()) == at


@given(st.lists(st.text(st.sampled_from("a<|>b é"), max_size=30)))
def test_strings_are_found_inside_documents_only(documents: list[str]) -> None:
    strings = ["<|a|>", "<|", "|", "ab", "é<", "<b>"]
    texts = from_bytes([document.encode() for document in documents])
    encoded = [string.encode() for string in strings]
    assert documents_with(texts, encoded) == [
        i for i, d in enumerate(documents) if any(string in d for string in strings)
    ]
    assert count_strings(texts, encoded) == sum(
        d.startswith(string, at) for d in documents for string in strings for at in range(len(d))
    )


@given(
    st.lists(st.binary(max_size=5), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), st.binary(max_size=5)),
)
def test_documents_are_replaced_in_their_place(
    documents: list[bytes], changed: dict[int, bytes]
) -> None:
    changed = {index: new for index, new in changed.items() if index < len(documents)}
    texts = from_bytes([b"before", *documents]).slice(1, len(documents) + 1)
    found = texts.with_documents(changed)
    expected = [changed.get(i, document) for i, document in enumerate(documents)]
    assert [found.document(i) for i in range(found.documents)] == expected


def test_the_table_of_numerals_is_that_of_the_library() -> None:
    digits = pre_tokenizers.Digits(individual_digits=True)
    numerals = code_points(gap_tables.NUMERALS)
    for start in range(0, 0x110000, 512):
        block = [c for c in range(start, start + 512) if not 0xD800 <= c <= 0xDFFF]
        pieces = {
            piece for piece, _ in digits.pre_tokenize_str("".join(f"a{chr(c)}b" for c in block))
        }
        assert {c for c in block if chr(c) in pieces - {"a", "b"}} == numerals & set(block)


def test_every_rule_set_has_its_argument_in_the_documentation() -> None:
    text = (ROOT / "docs" / "exactness.md").read_text()
    missing = [name for name in RULE_SETS if f"`{name}`" not in text]
    assert not missing


def test_an_added_token_that_normalizing_removes_is_refused(tmp_path: Path) -> None:
    """The library would search for the empty string for ever."""
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    tokens = [*ADDED, added("    ", SIZE + 5, special=False, normalized=True)]
    path = write_json(tmp_path / "t.json", tokens=tokens, normalizer=strip)
    with pytest.raises(UsageError, match="nothing is left of the added token"):
        find_encoding(str(path))


def test_two_tokens_with_one_id_are_refused(tmp_path: Path) -> None:
    path = write_json(tmp_path / "t.json", tokens=[added("<|endoftext|>", 500, special=True)])
    with pytest.raises(UsageError, match="have the same id, 500"):
        find_encoding(str(path))
