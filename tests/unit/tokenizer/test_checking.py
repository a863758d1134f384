"""`--encoder-check`: which documents the reference encodes again, and what is said about them."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checking import (
    MARKER,
    PLAIN,
    encoder,  # noqa: F401
    make_wrong,
    many,
)
from support.inputs import write_parquet
from support.tokenizer_files import write_json

import tokenmill
from tokenmill.cli.summary import check_line
from tokenmill.errors import EncoderError, TokenmillError
from tokenmill.texts import Texts, from_bytes
from tokenmill.tokenizer.encoders import checking, odd
from tokenmill.tokenizer.encoders.checking import Checker
from tokenmill.tokenizer.encoders.exact import ExactEncoder
from tokenmill.tokenizer.encoders.odd import ADDED, DIGITS, MARKS, ODD_KINDS, SCRIPT, WHITE_SPACE


def texts_of(*documents: str) -> Texts:
    return from_bytes([document.encode() for document in documents])


def kinds_of(document: str, added: tuple[str, ...] = (), seen: str = "") -> set[str]:
    """The kinds of one document that stands between two ordinary ones."""
    finder = odd.OddDocuments([token.encode() for token in added])
    finder.saw(seen.encode())
    found = finder.find(texts_of(PLAIN, document, PLAIN), 0, 1 << 20)
    assert all(set(members) <= {1} for members in found.values()), "the others are ordinary"
    return {kind for kind in ODD_KINDS if found[kind]}


@pytest.mark.parametrize(
    ("document", "kinds"),
    [
        (PLAIN, set()),
        ("", set()),
        ("x", set()),
        ("ends in a space ", {WHITE_SPACE}),
        ("\nbegins with a line end", {WHITE_SPACE}),
        (" ", {WHITE_SPACE}),
        ("ends in an ideographic space\u3000", {WHITE_SPACE, SCRIPT}),
        ("cafe\u0301 in two code points", {MARKS, SCRIPT}),
        ("か\u3099 in two code points", {MARKS, SCRIPT}),
        ("café in one", {SCRIPT}),
        ("a table:  12", {DIGITS}),
        ("a table:   | x", {DIGITS}),
        ("two  spaces and a word", set()),
        ("one space and 12", set()),
        ("Привет", {SCRIPT}),
        ("𐍈", {SCRIPT}),
    ],
)
def test_each_kind_of_odd_document_is_classified(document: str, kinds: set[str]) -> None:
    assert kinds_of(document) == kinds


def test_a_script_is_odd_until_a_document_of_it_was_checked() -> None:
    assert kinds_of("Привет", seen="другой текст") == set()
    assert kinds_of("漢字 and かな", seen="中文") == {SCRIPT}
    assert kinds_of("漢字", seen="中文") == set()
    assert kinds_of("한국어", seen="中文") == {SCRIPT}


def test_added_tokens_are_found_whole_and_inside_one_document() -> None:
    added = ("<tool>", "<tool_call>", "<x>", "  ", "▁▁")
    assert kinds_of("call <tool_call> now", added) == {ADDED}
    assert kinds_of("a<x>b", added) == {ADDED}
    assert kinds_of("two  spaces", added) == {ADDED}
    assert kinds_of("an <unknown> <too", added) == set()
    finder = odd.OddDocuments([b"<x>", b">y"])
    assert finder.find(texts_of("a <x", "> b", "<x", ">y"), 0, 99)[ADDED] == [3]


def test_the_expression_for_added_tokens_finds_what_a_plain_search_finds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = ["".join(rng.choice(list("ab<é "), rng.integers(1, 5))) for _ in range(9)]
        pattern = odd.added_pattern([token.encode() for token in tokens])
        assert pattern is not None
        for _ in range(200):
            text = "".join(rng.choice(list("ab<é c"), rng.integers(0, 8)))
            assert bool(pattern.search(text.encode())) == any(t in text for t in tokens), tokens
    assert odd.added_pattern([]) is None
    assert odd.added_pattern([b"a" * n + b"b" for n in range(1, 3000)]) is not None


def test_white_space_is_what_python_calls_so() -> None:
    letters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    spaces = [letter for letter in letters if letter.isspace()]
    others = [*letters[0x20:0x3100:7], "\u200b", "\ufeff", "\u2581", "\u3001"]
    for letter in {*spaces, *others}:
        texts = texts_of(f"x{letter}", PLAIN, f"{letter}x", letter)
        found = odd.OddDocuments().find(texts, 0, 0)[WHITE_SPACE]
        assert found == ([0, 2, 3] if letter.isspace() else []), hex(ord(letter))


def test_marks_are_what_unicode_calls_so() -> None:
    marks = [chr(c) for first, last in odd.MARK_RANGES for c in range(first, last + 1)]
    unassigned = {c for c in marks if unicodedata.category(c) == "Cn"}
    assert all(unicodedata.category(c) in ("Mn", "Me") for c in set(marks) - unassigned)
    letters = [chr(c) for c in range(0x80, 0x11000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(letters), 1000):
        some = letters[start : start + 1000]
        found = odd.OddDocuments().find(texts_of(*(f"a{one}b" for one in some)), 0, 1 << 20)
        assert [some[index] for index in found[MARKS]] == [one for one in some if one in marks]


def test_every_look_agrees_with_a_look_at_each_document_alone(texts: list[str]) -> None:
    documents = [text for text in texts if len(text.encode()) < odd.DOCUMENT_BYTES]
    batch = texts_of(*documents)
    for begin in (0, 17, len(documents) - 1):
        found = odd.OddDocuments([b"the"]).find(batch, begin, batch.size)
        for kind in set(ODD_KINDS) - {SCRIPT}:
            alone = [
                index
                for index, document in enumerate(documents)
                if odd.OddDocuments([b"the"]).find(texts_of(document), 0, 1 << 20)[kind]
            ]
            assert sorted(set(found[kind])) == alone, kind


def test_a_look_is_bounded() -> None:
    batch = texts_of(*[PLAIN] * 100, "a  1", *[PLAIN] * 100)
    finder = odd.OddDocuments()
    assert finder.find(batch, 90, 1000)[DIGITS] == [100]
    assert finder.find(batch, 110, 1000)[DIGITS] == []
    assert finder.find(batch, 110, batch.size)[DIGITS] == [100]
    late = texts_of("word " * odd.DOCUMENT_BYTES + "  1")
    assert finder.find(late, 0, late.size)[DIGITS] == [], "this part would not be checked"


def checked(
    monkeypatch: pytest.MonkeyPatch, encoder: ExactEncoder, batch: Texts, how: Any = "sample"
) -> tuple[list[int], Checker]:
    """The documents of one batch that are checked, in order."""
    order: list[int] = []
    right = ExactEncoder.check

    def noted(self: ExactEncoder, *args: Any) -> int:
        order.append(args[3])
        return right(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ExactEncoder, "check", noted)
        checker = Checker(encoder, how)
        checker.check(batch, *encoder.encode(batch), place=7)
    return order, checker


def test_odd_documents_are_checked_before_ordinary_ones(
    monkeypatch: pytest.MonkeyPatch, encoder: ExactEncoder
) -> None:
    batch = texts_of(*[PLAIN] * 500, "a  1", *[PLAIN] * 90, "e\u0301", "b\n", *[PLAIN] * 500, "Я")
    order, checker = checked(monkeypatch, encoder, batch)
    # The fourth is any document: a corpus may be odd from end to end.
    assert sorted(order[:3] + order[4:5]) == [500, 591, 592, 1093]
    assert order[3] == 7
    assert len(set(order)) == len(order)
    counts = checker.counts
    assert counts[DIGITS] == counts[MARKS] == counts[WHITE_SPACE] == counts[SCRIPT] == 1
    assert counts[checking.OTHER] == len(order) - 4 == encoder.stats.checked_documents - 4


def test_the_kind_that_was_checked_least_goes_first(
    monkeypatch: pytest.MonkeyPatch, encoder: ExactEncoder
) -> None:
    batch = texts_of(*[PLAIN + "\n"] * 900, "a  1", *[PLAIN + "\n"] * 100)
    order, checker = checked(monkeypatch, encoder, batch)
    assert order.index(900) == 1, "after one that ends in white space"
    assert checker.counts[checking.OTHER] == 0


def test_a_sample_stays_within_its_credit(
    monkeypatch: pytest.MonkeyPatch, encoder: ExactEncoder
) -> None:
    batch = texts_of(*[PLAIN * 10 + "\n"] * 5000)
    checker = Checker(encoder, "sample")
    for place in range(10):
        checker.check(batch, *encoder.encode(batch), place)
    due = checking.CHECK_BYTES + 10 * batch.size // checking.CHECK_SHARE
    assert due - checking.CHECK_BYTES // 10 < encoder.stats.checked_bytes < due + 700


def test_documents_that_the_reference_encoded_are_not_checked(
    monkeypatch: pytest.MonkeyPatch, encoder: ExactEncoder
) -> None:
    batch = texts_of(PLAIN, "new \u088f letter", PLAIN)
    assert checked(monkeypatch, encoder, batch, "all")[0] == [0, 2]
    assert sorted(checked(monkeypatch, encoder, batch, "sample")[0]) == [0, 2]
    assert checked(monkeypatch, encoder, batch, "none")[0] == []


def test_the_end_of_a_long_document_is_checked_where_the_end_is_odd(
    encoder: ExactEncoder,
) -> None:
    long = texts_of("some words " * 20_000 + "\n\n ")
    ids, offsets = encoder.encode(long)
    checker = Checker(encoder, "sample")
    checker.check(long, ids, offsets, 0)
    assert checker.counts[WHITE_SPACE] == 1
    assert encoder.stats.checked_bytes < 2 * odd.DOCUMENT_BYTES
    wrong = ids.copy()
    wrong[-1] += 1
    with pytest.raises(EncoderError, match="differ"):
        Checker(encoder, "sample").check(long, wrong, offsets, 0)


@pytest.mark.parametrize("oddity", [" ", " e\u0301.", "   =", " Ω.", ".\n\n"])
def test_a_sample_finds_a_wrong_id_in_the_only_odd_document_of_a_large_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, oddity: str
) -> None:
    path = many(tmp_path, f"a document with {MARKER}{oddity}")
    make_wrong(monkeypatch)
    with pytest.raises(EncoderError, match=f"differ on a document .*{MARKER}"):
        tokenmill.prepare(path, tmp_path / "o", workers=0)


def test_a_sample_finds_a_wrong_id_in_a_document_with_an_added_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_json(tmp_path / "tokenizer.json", "gpt2")
    inputs = many(tmp_path, f"a document with <tool_call> and {MARKER}.")
    result = tokenmill.prepare(inputs, tmp_path / "right", workers=0, tokenizer=str(path))
    assert result.run["encoder"]["checked_added"] == 1
    assert "1 with added tokens" in check_line(result)
    make_wrong(monkeypatch)
    with pytest.raises(EncoderError, match="differ"):
        tokenmill.prepare(inputs, tmp_path / "wrong", workers=0, tokenizer=str(path))


@pytest.mark.parametrize(
    ("value", "check"), [(True, "sample"), (False, "none"), ("all", "all"), ("none", "none")]
)
def test_python_takes_names_and_true_and_false(tmp_path: Path, value: Any, check: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", [PLAIN])
    result = tokenmill.prepare(path, tmp_path / "o", workers=0, encoder_check=value)
    assert result.run["encoder_check"] == check
    with pytest.raises(TokenmillError, match="encoder_check='some'"):
        tokenmill.prepare(path, tmp_path / "x", workers=0, encoder_check="some")


def test_the_check_may_change_on_resume_and_is_not_part_of_the_dataset(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [PLAIN, "b "])
    for check in ("all", "none"):
        tokenmill.prepare(path, tmp_path / check, workers=0, encoder_check=check)
    manifests = [(tmp_path / check / "manifest.json").read_bytes() for check in ("all", "none")]
    assert manifests[0] == manifests[1]
    assert not re.search(rb"encoder_check|checked", manifests[0])


def test_a_tokenizer_object_checks_odd_texts_of_a_file_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_json(tmp_path / "tokenizer.json", "gpt2")
    documents = [f"{PLAIN} Number {number}." for number in range(5000)]
    documents[1000] = f"only here {MARKER} "
    make_wrong(monkeypatch)
    with pytest.raises(EncoderError, match="differ"):
        tokenmill.Tokenizer(str(path)).encode_ordinary_batch(documents)
    assert len(tokenmill.Tokenizer("gpt2").encode_ordinary_batch(documents)) == 5000
