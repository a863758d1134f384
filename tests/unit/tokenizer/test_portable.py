"""The tokenizer that goes anywhere: what it pickles as, and that it works wherever it arrives."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from support import reference
from support.cases import quick
from support.inputs import sample_texts
from support.portable import (
    PICKLERS,
    TEXT,
    _own_cache,  # noqa: F401
    make,
    unregistered,
)
from support.tokenizer_files import train_sentencepiece, write_json

import tokenmill
from tokenmill import Tokenizer, errors
from tokenmill.errors import EncoderError, UsageError
from tokenmill.tokenizer import session
from tokenmill.tokenizer import tokenizer as portable
from tokenmill.tokenizer.bundled import ENCODINGS


def test_an_encoding_of_tiktoken_that_we_bundle_pickles_as_its_name() -> None:
    tok = Tokenizer(reference.encoding("cl100k_base"))
    assert tok == Tokenizer("cl100k_base")
    assert not (Path(os.environ["XDG_CACHE_HOME"]) / "tokenmill").exists()


@pytest.mark.parametrize("kind", ["tiktoken", "tokenizers", "sentencepiece object"])
def test_an_object_is_written_to_the_cache_once_under_its_sha256(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path)
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "tokenmill"
    kept = sorted(cache.glob("tokenizer-*"))
    assert kept
    for path in kept:
        assert path.name == f"tokenizer-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    times = [path.stat().st_mtime_ns for path in kept]
    make(kind, tmp_path)
    assert [path.stat().st_mtime_ns for path in sorted(cache.glob("tokenizer-*"))] == times


@pytest.mark.parametrize("kind", ["tiktoken", "tokenizers", "transformers", "tokenizer.json"])
def test_embedded_it_needs_neither_the_cache_nor_the_file(kind: str, tmp_path: Path) -> None:
    tok, expected = make(kind, tmp_path, embed=True)
    payload = pickle.dumps(tok)
    (tmp_path / "cache").rename(tmp_path / "cache of another machine")
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    portable._opened.clear()
    assert pickle.loads(payload).encode_ordinary(TEXT) == expected


def test_embedded_it_works_where_no_cache_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tok, expected = make("tiktoken", tmp_path, embed=True)
    payload = pickle.dumps(tok)
    (tmp_path / "a file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    portable._opened.clear()
    assert pickle.loads(payload).encode_ordinary(TEXT) == expected


@pytest.mark.parametrize("kind", ["tiktoken", "tokenizers"])
def test_on_a_machine_without_the_cache_it_says_what_to_do(kind: str, tmp_path: Path) -> None:
    payload = pickle.dumps(make(kind, tmp_path)[0])
    (tmp_path / "cache").rename(tmp_path / "cache of another machine")
    portable._opened.clear()
    with pytest.raises(EncoderError, match="not in this machine's cache") as caught:
        pickle.loads(payload).encode_ordinary("x")
    assert "embed=True" in caught.value.hint


def test_a_file_that_changed_or_went_away_is_refused(tmp_path: Path) -> None:
    path = write_json(tmp_path / "tokenizer.json")
    payload = pickle.dumps(Tokenizer(path))
    portable._opened.clear()
    path.write_text(path.read_text().replace("<tool_call>", "<other_call>"))
    with pytest.raises(EncoderError, match="has changed since"):
        pickle.loads(payload).encode_ordinary("x")
    path.unlink()
    with pytest.raises(EncoderError, match="not on this machine"):
        pickle.loads(payload).encode_ordinary("x")


def test_a_damaged_file_in_the_cache_is_refused_and_written_again(tmp_path: Path) -> None:
    tok, expected = make("tiktoken", tmp_path)
    payload = pickle.dumps(tok)
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "tokenmill"
    for path in cache.glob("tokenizer-*"):
        path.write_bytes(path.read_bytes()[:-10])
    portable._opened.clear()
    with pytest.raises(EncoderError, match="damaged"):
        pickle.loads(payload).encode_ordinary("x")
    make("tiktoken", tmp_path)
    assert pickle.loads(payload).encode_ordinary(TEXT) == expected


def test_what_a_tokenizer_cannot_be_made_from_is_said() -> None:
    with pytest.raises(UsageError, match=r"object of builtins\.int"):
        Tokenizer(17)
    import gigatoken

    with pytest.raises(UsageError, match="gigatoken") as caught:
        Tokenizer(gigatoken.Tokenizer.__new__(gigatoken.Tokenizer))
    assert "made from" in caught.value.hint
    with pytest.raises(UsageError, match="unknown tokenizer"):
        Tokenizer("no_such_base")
    with pytest.raises(UsageError, match="the empty string"):
        Tokenizer("gpt2", special_tokens={"": 50_257})


def test_it_is_safe_to_use_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    portable._opened.clear()
    opened = []
    original = portable._OpenTokenizer
    monkeypatch.setattr(
        portable, "_OpenTokenizer", lambda encoding: opened.append(1) or original(encoding)
    )
    tok = Tokenizer("o200k_base")
    texts = sample_texts()[:200]
    expected = [reference.encoding("o200k_base").encode_ordinary(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: tok.encode_ordinary_batch(texts), range(16)):
            assert found == expected
    assert len(opened) == 1


@pytest.mark.parametrize("name", [n for n in vars(errors) if n.endswith(("Error", "Interrupted"))])
def test_every_error_of_ours_comes_back_from_a_pool(name: str) -> None:
    """One that pickles but does not unpickle hangs a pool for ever."""
    cls = getattr(errors, name)
    if not hasattr(cls, "exit_code"):
        return
    for pickler in PICKLERS.values():
        again = pickler.loads(pickler.dumps(cls("what", hint="do")))
        assert type(again) is cls
        assert (again.message, again.hint, str(again)) == (
            "what", "do", "what\nhint: do",
        )  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_surface_is_that_of_tiktoken(name: str) -> None:
    tok, enc = Tokenizer(name), reference.encoding(name)
    texts = sample_texts()[::5]
    for text in texts:
        assert tok.encode_ordinary(text) == enc.encode_ordinary(text)
        ids = tok.encode(text, disallowed_special=())
        assert ids == enc.encode(text, disallowed_special=())
        assert tok.decode(ids) == enc.decode(ids) == text
        assert tok.decode_bytes(ids) == enc.decode_bytes(ids)
    assert tok.encode_ordinary_batch(texts) == enc.encode_ordinary_batch(texts)
    clean = [text for text in texts if "<|" not in text]
    assert tok.encode_batch(clean, num_threads=2) == enc.encode_batch(clean)
    assert (tok.eot_token, tok.n_vocab, tok.max_token_value) == (
        enc.eot_token, enc.n_vocab, enc.max_token_value,
    )  # fmt: skip
    assert tok.special_tokens_set == enc.special_tokens_set
    found = tok.encode_to_numpy(texts[0], disallowed_special=())
    assert np.array_equal(found, enc.encode_to_numpy(texts[0], disallowed_special=()))
    assert found.dtype == np.uint32


SPECIAL_CASES: tuple[dict[str, Any], ...] = (
    {}, {"allowed_special": "all"}, {"disallowed_special": ()},
    {"allowed_special": {"<|endoftext|>"}},
    {"allowed_special": {"<|endoftext|>"}, "disallowed_special": ()},
    {"allowed_special": {"<|fim_prefix|>"}, "disallowed_special": {"<|endoftext|>"}},
    {"allowed_special": {"<|endoftext|>"}, "disallowed_special": {"<|endoftext|>"}},
    {"allowed_special": {"unknown"}}, {"disallowed_special": {"word"}},
)  # fmt: skip


@pytest.mark.parametrize("options", quick(SPECIAL_CASES, first=6), ids=str)
def test_special_tokens_in_text_behave_as_in_tiktoken(options: dict[str, Any]) -> None:
    tok, enc = Tokenizer("cl100k_base"), reference.encoding("cl100k_base")
    random.seed(1)
    parts = ["word", " ", "  \n", "<|", "|>", "<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>",
             "<|endof", "é", "<<|endoftext|>>", "\n"]  # fmt: skip
    for _ in range(300):
        text = "".join(random.choices(parts, k=random.randint(0, 7)))
        outcome = []
        for one in (enc, tok):
            for call in (one.encode, lambda t, one=one, **o: one.encode_batch(["a", t], **o)[1]):
                try:
                    outcome.append(call(text, **options))
                except ValueError:
                    outcome.append("ValueError")
        assert all(found == outcome[0] for found in outcome), text


@pytest.mark.parametrize("name", ENCODINGS)
def test_one_text_alone_gives_the_ids_it_has_in_a_batch(name: str) -> None:
    """The encoder is called in another way for a few short texts than for many."""
    tok = Tokenizer(name)
    texts = [*sample_texts(), *(f"{chr(c)}'s {chr(c)}1" for c in range(0x80, 0x3000, 7))]
    ids, offsets = tok.encode_flat(texts)
    for index, text in enumerate(texts):
        assert tok.encode_ordinary(text) == ids[offsets[index] : offsets[index + 1]].tolist(), text


def test_lone_surrogates_become_what_tiktoken_makes_of_them() -> None:
    tok, enc = Tokenizer("gpt2"), reference.encoding("gpt2")
    for text in ("a\ud800b", "\udc00", "\ud83d\udc4d thumbs", "é\ud800<|endoftext|>"):
        assert tok.encode_ordinary(text) == enc.encode_ordinary(text)
        assert tok.encode_flat([text, "x"])[0][:-1].tolist() == enc.encode_ordinary(text)
        assert tok.encode(text, allowed_special="all") == enc.encode(text, allowed_special="all")


def test_a_batch_may_be_a_generator_as_in_tiktoken() -> None:
    tok, enc = Tokenizer("cl100k_base"), reference.encoding("cl100k_base")
    for options in ({}, {"allowed_special": "all"}, {"disallowed_special": ()}):
        texts = ["a b", "c"]
        assert tok.encode_batch((text for text in texts), **options) == enc.encode_batch(texts)
    assert tok.encode_ordinary_batch(iter(texts)) == enc.encode_ordinary_batch(texts)


def test_what_is_no_text_is_a_type_error_as_in_tiktoken() -> None:
    tok, enc = Tokenizer("cl100k_base"), reference.encoding("cl100k_base")
    for wrong in (None, b"bytes", float("nan")):
        for one in (enc, tok):
            with pytest.raises(TypeError):
                one.encode_ordinary(wrong)
            with pytest.raises(TypeError):
                one.encode(wrong)
        if wrong != b"bytes":
            for one in (enc, tok):
                with pytest.raises(TypeError):
                    one.encode_ordinary_batch(["a", wrong])
                with pytest.raises(TypeError):
                    one.encode_batch(["a", wrong], disallowed_special=())
    with pytest.raises(TypeError):
        tok.decode([1.5])


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_scripts_use_of_tiktoken_beside_its_main_surface_is_there(name: str) -> None:
    tok, enc = Tokenizer(name), reference.encoding(name)
    ids = enc.encode("hello wörld <|endoftext|>", allowed_special="all")
    assert tok.decode_tokens_bytes(ids) == enc.decode_tokens_bytes(ids)
    assert tok.decode_bytes_batch([ids], num_threads=2) == enc.decode_bytes_batch([ids])
    assert tok.decode_batch([ids], errors="strict", num_threads=2) == enc.decode_batch([ids])
    for number in ids:
        content = enc.decode_single_token_bytes(number)
        assert tok.decode_single_token_bytes(number) == content
        assert tok.encode_single_token(content) == enc.encode_single_token(content) == number
        assert tok.is_special_token(number) == enc.is_special_token(number)
    assert tok.encode_single_token("<|endoftext|>") == tok.eot_token
    for one in (enc, tok):
        with pytest.raises(KeyError):
            one.encode_single_token("no single token is this")
    # private there, and used by the FineWeb scripts and by tiktoken's own README
    assert tok._special_tokens == enc._special_tokens
    assert tok._pat_str == enc._pat_str
    assert tok._mergeable_ranks == enc._mergeable_ranks


def test_an_encoding_can_be_extended_as_tiktokens_readme_does() -> None:
    base = Tokenizer("cl100k_base")
    special = {**base._special_tokens, "<|im_start|>": 100_264}
    enc = tiktoken.Encoding(
        "cl100k_im",
        pat_str=base._pat_str,
        mergeable_ranks=base._mergeable_ranks,
        special_tokens=special,
    )
    tok = pickle.loads(pickle.dumps(Tokenizer(enc)))
    assert tok.encode("<|im_start|>a", allowed_special="all") == [100_264, 64]


def test_a_separator_is_an_id_of_any_integer_type() -> None:
    assert Tokenizer("gpt2", eot=np.int64(5)).eot_token == 5
    for wrong in (True, 1.5, -1, 1 << 32):
        with pytest.raises(UsageError, match="not a token id"):
            Tokenizer("gpt2", eot=wrong)


def test_the_hint_shows_in_a_traceback() -> None:
    with pytest.raises(UsageError) as caught:
        Tokenizer("gpt2").encode("<|endoftext|>")
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        assert "hint: encode_ordinary(text)" in "".join(traceback.format_exception(error))


def test_an_id_that_stands_for_nothing_is_a_key_error_as_in_tiktoken() -> None:
    tok, enc = Tokenizer("cl100k_base"), reference.encoding("cl100k_base")
    for number in (100_256, 100_277, 10**6):
        for one in (enc, tok):
            with pytest.raises(KeyError):
                one.decode([1, number])


def test_files_and_objects_decode_as_their_own_library_does(tmp_path: Path) -> None:
    import sentencepiece
    import tokenizers

    path = write_json(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(path))
    model_path = train_sentencepiece(tmp_path / "x.model", sample_texts()[:40])
    model = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
    for text in sample_texts()[::40]:
        ids = Tokenizer(path).encode_ordinary(text)
        assert Tokenizer(path).decode(ids) == library.decode(ids, skip_special_tokens=False)
        ids = Tokenizer(model_path).encode_ordinary(text)
        assert Tokenizer(model_path).decode(ids) == model.decode(ids)


def test_the_separator_is_settled_by_file_object_or_caller(tmp_path: Path) -> None:
    assert (
        make("transformers", tmp_path)[0].eot_token == make("tokenizers", tmp_path)[0].eot_token + 1
    )
    path = write_json(tmp_path / "tokenizer.json", tokens=[])
    tok = Tokenizer(path)
    with pytest.raises(UsageError, match="does not define one end-of-text token") as caught:
        _ = tok.eot_token
    assert "eot=" in caught.value.hint
    assert Tokenizer(path, eot=7).eot_token == 7
    assert pickle.loads(pickle.dumps(Tokenizer(path, eot=7))).eot_token == 7
    assert Tokenizer("cl100k_base", eot="<|endofprompt|>").eot_token == 100_276


def test_a_ranks_file_takes_special_tokens_of_the_callers(tmp_path: Path) -> None:
    from tokenmill.tokenizer.bundled import write_ranks

    path = tmp_path / "own.tiktoken"
    path.write_bytes(write_ranks(unregistered()._mergeable_ranks))
    tok = Tokenizer(path, pattern="gpt2", special_tokens={"<|sep|>": 20_005}, eot="<|sep|>")
    again = pickle.loads(pickle.dumps(tok))
    assert again.encode("a<|sep|>", allowed_special="all")[-1] == again.eot_token == 20_005
    assert again.n_vocab == 20_006


def test_padding_and_truncation_of_an_object_change_nothing(tmp_path: Path) -> None:
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(write_json(tmp_path / "tokenizer.json")))
    before = Tokenizer(library)
    library.enable_truncation(5)
    library.enable_padding(length=50)
    assert Tokenizer(library) == before
    assert len(Tokenizer(library).encode_ordinary("many different words " * 9)) > 20


def test_a_tokenizer_that_is_not_proven_goes_to_the_reference_and_says_why(tmp_path: Path) -> None:
    path = write_json(tmp_path / "tokenizer.json", "llama3", normalizer={"type": "NFD"})
    tok = Tokenizer(path)
    assert not tok.is_fast
    assert tok.why_slow == "normalizer NFD is not proven for the fast encoder"
    assert tok.encode_ordinary("e\u0301") == tok.encode_ordinary("\u00e9")
    assert Tokenizer("gpt2").why_slow == ""


def test_a_fast_encoder_that_errs_on_a_users_vocabulary_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tok, _ = make("tiktoken", tmp_path)
    tok.encode_ordinary("x")
    fast = portable._opened[tok._recipe].session.encoder._fast
    original = fast.encode

    def wrong(texts: Any) -> Any:
        ids, offsets = original(texts)
        return ids + 1, offsets

    monkeypatch.setattr(fast, "encode", wrong)
    with pytest.raises(EncoderError, match="differ"):
        tok.encode_ordinary("some words")


def test_the_encoders_cache_of_words_is_dropped_when_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tok = Tokenizer("gpt2")
    tok.encode_ordinary("x")
    opened = portable._opened[tok._recipe].session
    reopened: list[int] = []
    monkeypatch.setattr(opened.encoder, "reopen", lambda: reopened.append(1))
    monkeypatch.setattr(session, "MEMORY_LOOK_BYTES", 10)
    monkeypatch.setattr(session, "resident_bytes", lambda: opened._empty_bytes + 10)
    tok.encode_ordinary("nothing has grown")
    assert not reopened
    monkeypatch.setattr(session, "resident_bytes", lambda: 10**12)
    tok.encode_ordinary("the process has grown")
    tok.encode_ordinary("and stays so, which is no reason to do it again")
    assert len(reopened) == 1


def test_the_tokenizer_is_public() -> None:
    assert tokenmill.Tokenizer is portable.Tokenizer
